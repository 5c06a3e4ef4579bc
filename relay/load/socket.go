// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: SGLang's load socket, one PUB a rank. After it: the meter,
// which publishes each reading.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/fdwait"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// Sizes and times of the sockets, chosen, not measured.
const (
	socketQueue  = 64 // messages kept; a newer reading makes an older one worthless
	maxFrame     = 64 << 10
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 2 * time.Second
	burst        = 256 // messages taken at one wake
	socketFrames = 3
	reopenDelay  = time.Second
	silenceLimit = 15 * time.Second // a scheduler that runs says something every second
)

// loadEndpoints returns the addresses of the ranks' load sockets: consecutive
// ports from the configured one.
func loadEndpoints(text string, ranks int) ([]string, error) {
	wrong := fmt.Errorf("loads=%s: must be tcp://host:port, with ports enough for %d ranks", strings.ToValidUTF8(text, "?"), ranks)
	addr, ok := strings.CutPrefix(text, "tcp://")
	if !ok {
		return nil, wrong
	}
	host, portText, err := net.SplitHostPort(addr)
	port, perr := strconv.ParseUint(portText, 10, 16)
	if err != nil || perr != nil || host == "" || port == 0 || int(port)+ranks-1 > 65535 {
		return nil, wrong
	}
	var out []string
	for r := range ranks {
		out = append(out, "tcp://"+net.JoinHostPort(host, strconv.Itoa(int(port)+r)))
	}
	return out, nil
}

// binds tells whether we are the end that others connect to, by the rule that
// the engines go by.
func binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "//0.0.0.0:") || strings.Contains(endpoint, "//[::]:")
}

// socket receives what the load sockets of all ranks push.
type socket struct {
	m       *Meter
	silence time.Duration // after which a socket joins its address anew
	ctx     *zmq.Context
	subs    []*zmq.Socket
}

func (s *socket) open() error {
	endpoints, err := loadEndpoints(s.m.cfg.Loads, s.m.cfg.Ranks)
	if err != nil {
		return err
	}
	if s.ctx, err = zmq.NewContext(); err != nil {
		return err
	}
	if err := s.ctx.SetBlocky(false); err != nil {
		return err
	}
	for _, e := range endpoints {
		sub, err := s.ctx.NewSocket(zmq.SUB)
		if err != nil {
			return err
		}
		s.subs = append(s.subs, sub)
		err = errors.Join(
			sub.SetLinger(0), sub.SetRcvhwm(socketQueue), sub.SetMaxmsgsize(maxFrame), sub.SetIpv6(strings.Contains(e, "[")),
			sub.SetReconnectIvl(reconnectMin), sub.SetReconnectIvlMax(reconnectMax),
			sub.SetTcpKeepalive(1), sub.SetTcpKeepaliveIdle(15), sub.SetTcpKeepaliveIntvl(5), sub.SetTcpKeepaliveCnt(3),
			sub.SetSubscribe(""),
		)
		if err != nil {
			return err
		}
		if binds(e) {
			err = sub.Bind(e)
		} else {
			err = sub.Connect(e)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e, err)
		}
	}
	return nil
}

func (s *socket) close() {
	for _, sub := range s.subs {
		_ = sub.Close()
	}
	if s.ctx != nil {
		_ = s.ctx.Term()
	}
	s.subs, s.ctx = nil, nil
}

// run receives until ctx ends. Sockets that cannot be had, as when another has
// bound the address, are tried again.
func (s *socket) run(ctx context.Context) {
	for {
		err := s.receiveAll(ctx)
		if ctx.Err() != nil {
			return
		}
		s.m.failed(FailSocket, fmt.Errorf("loads=%s: %w", s.m.cfg.Loads, err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopenDelay):
		}
	}
}

// receiveAll receives until ctx ends or a socket fails.
func (s *socket) receiveAll(ctx context.Context) error {
	defer s.close()
	if err := s.open(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i, sub := range s.subs {
		wg.Go(func() {
			if err := s.receive(ctx, i, sub); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// receive takes what one socket has until ctx ends. One that is silent joins its
// address anew: libzmq itself does not, after a peer that did not speak as a
// publisher does.
func (s *socket) receive(ctx context.Context, rank int, sub *zmq.Socket) error {
	fd, err := sub.GetFd()
	if err != nil {
		return err
	}
	w, err := fdwait.New(fd)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = w.Deadline(time.Unix(1, 0)) })
	defer stop()
	for {
		heard := false
		if err := w.Deadline(time.Now().Add(s.silence)); err != nil {
			return err
		}
		if ctx.Err() != nil { // after the deadline was set, lest it undo the end's
			return nil
		}
		err := w.Wait(func() bool {
			heard = s.drain(rank, sub)
			return heard
		})
		switch {
		case err != nil && !errors.Is(err, fdwait.ErrInterrupted):
			return err
		case err != nil && ctx.Err() == nil:
			s.m.failed(FailSocket, fmt.Errorf("loads=%s: rank %d has said nothing for %v", s.m.cfg.Loads, rank, s.silence))
			if err := s.rejoin(rank, sub); err != nil {
				return err
			}
		}
	}
}

func (s *socket) rejoin(rank int, sub *zmq.Socket) error {
	endpoints, err := loadEndpoints(s.m.cfg.Loads, s.m.cfg.Ranks)
	if err != nil || binds(endpoints[rank]) {
		return err
	}
	_ = sub.Disconnect(endpoints[rank]) // fails where libzmq has given it up already
	return sub.Connect(endpoints[rank])
}

// drain takes one burst, and tells whether there was anything.
func (s *socket) drain(rank int, sub *zmq.Socket) (heard bool) {
	for range burst {
		events, err := sub.GetEvents()
		if err != nil || events&zmq.POLLIN == 0 {
			return heard
		}
		frames, err := sub.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil {
			return heard
		}
		heard = true
		s.m.pushed(rank, frames, time.Now())
	}
	return heard
}

// pushed takes one message of the socket of a rank.
func (m *Meter) pushed(rank int, frames [][]byte, now time.Time) {
	if len(frames) < socketFrames {
		m.failed(FailSocket, fmt.Errorf("loads=%s: a message of %d frames, not %d", m.cfg.Loads, len(frames), socketFrames))
		return
	}
	l, err := wire.DecodeLoad(frames[len(frames)-1])
	if err != nil {
		m.failed(FailSocket, fmt.Errorf("loads=%s: %w", m.cfg.Loads, err))
		return
	}
	// The message names its rank, and all ranks may share one socket.
	if l.Rank > 0 && l.Rank < int64(len(m.ranks)) {
		rank = int(l.Rank)
	}
	m.ranks[rank].take(fromSocket(&l, rank, now), true)
	m.good.Add(1)
	m.lastErr.Store(nil)
}

// The places of figures in a message, of which older releases have fewer.
const (
	placeUncached   = 6
	placeMaxRunning = 8
)

func fromSocket(l *kv.Load, rank int, now time.Time) *Reading {
	r := &Reading{
		Rank: rank, Taken: now,
		Running:    toCount(float64(l.Running)),
		Waiting:    toCount(float64(l.Waiting)),
		UsedTokens: toTokens(float64(l.UsedTokens)),
		MaxTokens:  toTokens(float64(l.MaxTokens)),
	}
	if l.Fields >= placeUncached && !l.Unsaid(placeUncached) {
		r.WaitingUncached = toCount(float64(l.WaitingUncachedTokens))
		r.PrefillPending = r.WaitingUncached
	}
	if l.Fields >= placeMaxRunning && !l.Unsaid(placeMaxRunning) {
		r.MaxRunning = toCount(float64(l.MaxRunning))
	}
	if l.MaxTokens > 0 && r.UsedTokens.Known {
		r.Usage = toShare(float64(l.UsedTokens) / float64(l.MaxTokens))
	}
	return r
}
