// SPDX-License-Identifier: Apache-2.0

// Before: player.go. After: an index host's sockets.

package mockworker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/harness/mockworker/engine"
	"kindex/relay/wire"
)

// maxRequest bounds one frame of a replay request.
const maxRequest = 1 << 10

// rankSockets are one rank's publisher: what it sends on and what it keeps.
type rankSockets struct {
	rank   int
	pub    *zmq.Socket
	router *zmq.Socket // nil: no replay
	buffer []kept      // the last batches, oldest first
	topic  string
	last   uint64
	has    bool
}

// sockets are the publishers of all ranks. As in an engine, one thread publishes
// and answers replays, in turn.
//
// Concurrency: one goroutine.
type sockets struct {
	ctx     *zmq.Context
	how     wire.ReplayFrames
	steps   int // batches a buffer keeps
	ranks   []int
	all     []*rankSockets
	pubs    []string
	replays []string
	poller  *zmq.Poller
}

// open binds a PUB, and a ROUTER where replay is not empty, for each rank at
// port + rank. Port 0 takes any.
func open(pub, replay string, ranks []int, how wire.ReplayFrames, steps int) (*sockets, error) {
	zctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("libzmq: %w", err)
	}
	s := &sockets{ctx: zctx, how: how, steps: steps, ranks: ranks, poller: zmq.NewPoller()}
	for _, rank := range ranks {
		r := &rankSockets{rank: rank}
		s.all = append(s.all, r)
		var at string
		if r.pub, at, err = s.bind(zmq.PUB, pub, rank, 0); err != nil {
			s.close()
			return nil, fmt.Errorf("--pub: %w", err)
		}
		s.pubs = append(s.pubs, at)
		if replay == "" {
			continue
		}
		// A whole buffer must fit, lest a slow reader miss a part of it.
		if r.router, at, err = s.bind(zmq.ROUTER, replay, rank, 2*(steps+1)); err != nil {
			s.close()
			return nil, fmt.Errorf("--replay: %w", err)
		}
		s.replays = append(s.replays, at)
		s.poller.Add(r.router, zmq.POLLIN)
	}
	return s, nil
}

// bind opens one socket at endpoint's port + rank and returns where it is.
func (s *sockets) bind(kind zmq.Type, endpoint string, rank, sndhwm int) (*zmq.Socket, string, error) {
	at, err := engine.Endpoint(endpoint, rank)
	if err != nil {
		return nil, "", err
	}
	sock, err := s.ctx.NewSocket(kind)
	if err != nil {
		return nil, "", err
	}
	err = errors.Join(sock.SetLinger(0), sock.SetMaxmsgsize(maxRequest))
	if err == nil && sndhwm > 0 {
		err = sock.SetSndhwm(sndhwm)
	}
	if err == nil {
		err = sock.Bind(at)
	}
	if err != nil {
		_ = sock.Close()
		return nil, "", fmt.Errorf("%s: %w", at, err)
	}
	if bound, err := sock.GetLastEndpoint(); err == nil && bound != "" && !strings.Contains(at, "*") {
		at = bound
	}
	return sock, at, nil
}

func (s *sockets) close() {
	for _, r := range s.all {
		if r.pub != nil {
			_ = r.pub.Close()
		}
		if r.router != nil {
			_ = r.router.Close()
		}
	}
	_ = s.ctx.Term()
}

func (s *sockets) of(rank int) *rankSockets {
	for _, r := range s.all {
		if r.rank == rank {
			return r
		}
	}
	return nil
}

// keep puts a batch into a rank's replay buffer.
func (s *sockets) keep(rank int, seq uint64, payload []byte) {
	r := s.of(rank)
	if r == nil {
		return
	}
	r.buffer = append(r.buffer, kept{seq, payload})
	if extra := len(r.buffer) - s.steps; extra > 0 {
		clear(r.buffer[:extra])
		r.buffer = r.buffer[extra:] // appending copies it once in a while, not each time
	}
	r.last, r.has = seq, true
}

// forget begins a new life: nothing is kept of the old one.
func (s *sockets) forget() {
	for _, r := range s.all {
		r.buffer, r.last, r.has = nil, 0, false
	}
}

// published returns each rank's last number.
func (s *sockets) published() map[string]uint64 {
	out := map[string]uint64{}
	for _, r := range s.all {
		if r.has {
			out[strconv.Itoa(r.rank)] = r.last
		}
	}
	return out
}

// publish sends one batch and keeps it.
func (s *sockets) publish(rank int, topic string, seq uint64, payload []byte) error {
	r := s.of(rank)
	if r == nil {
		return nil
	}
	r.topic = topic
	if _, err := r.pub.SendMessage(wire.MakeMessage(topic, seq, payload)); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	s.keep(rank, seq, payload)
	return nil
}

// serve answers replay requests for d, until ctx ends or a value comes through
// wake (nil: none will). It returns ctx's error.
func (s *sockets) serve(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	const tick = 20 * time.Millisecond // how late the end of ctx or a line may be seen
	forever := d > 1000*time.Hour
	end := time.Now().Add(min(d, 1000*time.Hour))
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
			return nil
		default:
		}
		left := time.Until(end)
		if forever {
			left = tick
		}
		if left <= 0 {
			return nil
		}
		if len(s.replays) == 0 {
			if err := pause(ctx, min(left, tick)); err != nil {
				return err
			}
			continue
		}
		ready, err := s.poller.Poll(min(left, tick))
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		for _, p := range ready {
			for _, r := range s.all {
				if r.router == p.Socket {
					s.answer(r)
				}
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// answer answers one replay request. A malformed one gets nothing, as from an
// engine.
func (s *sockets) answer(r *rankSockets) {
	frames, err := r.router.RecvMessageBytes(zmq.DONTWAIT)
	if err != nil || len(frames) < 1 {
		return
	}
	start, err := wire.ParseReplayRequest(frames[1:])
	if err != nil {
		return
	}
	for _, b := range r.buffer {
		if b.seq >= start {
			s.reply(r, frames[0], wire.MakeReplay(s.how, r.topic, b.seq, b.payload))
		}
	}
	s.reply(r, frames[0], wire.MakeReplayEnd(s.how))
}

// reply sends one message to a client. One that went away costs nothing.
func (s *sockets) reply(r *rankSockets, client []byte, frames [][]byte) {
	_, _ = r.router.SendMessage(client, frames)
}
