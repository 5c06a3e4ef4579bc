// SPDX-License-Identifier: Apache-2.0

// Before: publisher.go. After: a relay's sockets, or an index host's.

package publish

import (
	"errors"
	"fmt"
	"sync"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/relay/wire"
)

// replayTick bounds how late a replay server notices its end.
const replayTick = 20 * time.Millisecond

// maxQueued is how many messages a socket keeps for a subscriber that does not read, as
// in an engine.
const maxQueued = 100_000

// kept is one batch of a replay buffer.
type kept struct {
	seq     uint64
	payload []byte
}

// rankSockets are one rank's PUB and ROUTER, and the batches that it can replay.
//
// Concurrency: pub is the publisher's under its lock; router is the replay server's;
// mu guards the buffer.
type rankSockets struct {
	pub    *zmq.Socket
	router *zmq.Socket

	mu     sync.Mutex
	buffer []kept // oldest first
	served uint64 // replay requests answered
}

// sockets are the publishers of all ranks for one life: rank r is at port + r.
type sockets struct {
	ctx   *zmq.Context
	host  string
	ranks []*rankSockets
	how   wire.ReplayFrames
	limit int // batches that a buffer keeps

	stop chan struct{}
	done sync.WaitGroup
}

// bind opens all sockets at the ports and serves replays.
func bind(host string, pub, replay, ranks, limit int, how wire.ReplayFrames) (*sockets, error) {
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("libzmq: %w", err)
	}
	s := &sockets{ctx: ctx, host: host, how: how, limit: limit, stop: make(chan struct{})}
	for r := range ranks {
		k := &rankSockets{}
		s.ranks = append(s.ranks, k)
		if k.pub, err = s.open(zmq.PUB, pub+r); err == nil {
			k.router, err = s.open(zmq.ROUTER, replay+r)
		}
		if err != nil {
			s.closeSockets()
			return nil, err
		}
	}
	for _, k := range s.ranks {
		s.done.Go(func() { s.serve(k) })
	}
	return s, nil
}

func (s *sockets) open(kind zmq.Type, port int) (*zmq.Socket, error) {
	sock, err := s.ctx.NewSocket(kind)
	if err != nil {
		return nil, fmt.Errorf("libzmq: %w", err)
	}
	at := fmt.Sprintf("tcp://%s:%d", s.host, port)
	if err = errors.Join(sock.SetLinger(0), sock.SetSndhwm(maxQueued), sock.Bind(at)); err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return sock, nil
}

// close ends the life: nothing more is sent, replayed or kept.
func (s *sockets) close() {
	close(s.stop)
	s.done.Wait()
	s.closeSockets()
}

func (s *sockets) closeSockets() {
	for _, k := range s.ranks {
		if k.pub != nil {
			_ = k.pub.Close()
		}
		if k.router != nil {
			_ = k.router.Close()
		}
	}
	_ = s.ctx.Term()
}

// keep puts a batch into a rank's replay buffer.
func (s *sockets) keep(rank int, seq uint64, payload []byte) {
	k := s.ranks[rank]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buffer = append(k.buffer, kept{seq, payload})
	if len(k.buffer) >= 2*s.limit {
		k.buffer = append(make([]kept, 0, 2*s.limit), k.buffer[len(k.buffer)-s.limit:]...)
	}
}

// send puts one batch on the wire.
func (s *sockets) send(rank int, topic string, seq uint64, payload []byte) error {
	_, err := s.ranks[rank].pub.SendMessage(wire.MakeMessage(topic, seq, payload))
	return err
}

// serve answers a rank's replay requests, one after the other, until the life ends.
func (s *sockets) serve(k *rankSockets) {
	poller := zmq.NewPoller()
	poller.Add(k.router, zmq.POLLIN)
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		ready, err := poller.Poll(replayTick)
		if err != nil || len(ready) == 0 {
			continue
		}
		frames, err := k.router.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil || len(frames) < 1 {
			continue
		}
		start, err := wire.ParseReplayRequest(frames[1:])
		if err != nil {
			continue // as an engine: no answer
		}
		for _, b := range k.from(start, s.limit) {
			_, _ = k.router.SendMessage(frames[0], wire.MakeReplay(s.how, "", b.seq, b.payload))
		}
		_, _ = k.router.SendMessage(frames[0], wire.MakeReplayEnd(s.how))
	}
}

// from returns the batches that are kept, from start on, limit at most.
func (k *rankSockets) from(start uint64, limit int) []kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.served++
	window := k.buffer[max(0, len(k.buffer)-limit):]
	for i := range window {
		if window[i].seq >= start {
			return append([]kept(nil), window[i:]...)
		}
	}
	return nil
}

// Raw is the sockets of one rank without a cache: the caller makes the batches. There
// are no faults and no truth.
//
// Concurrency: Send and Keep are one goroutine's.
type Raw struct {
	s           *sockets
	pub, replay int
}

// OpenRaw binds one rank's sockets, with a replay buffer of so many batches.
func OpenRaw(buffer int) (*Raw, error) {
	first, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	s, err := bind("127.0.0.1", first, first+1, 1, buffer, wire.ReplayTopic)
	if err != nil {
		return nil, err
	}
	return &Raw{s: s, pub: first, replay: first + 1}, nil
}

// Ports returns where events are published and replayed.
func (r *Raw) Ports() (pub, replay int) { return r.pub, r.replay }

// Send publishes one batch and keeps it for replays.
func (r *Raw) Send(seq uint64, payload []byte) error {
	r.s.keep(0, seq, payload)
	return r.s.send(0, "", seq, payload)
}

// Close ends the sockets.
func (r *Raw) Close() { r.s.close() }
