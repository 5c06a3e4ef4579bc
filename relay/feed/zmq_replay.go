// SPDX-License-Identifier: Apache-2.0

// Before: an engine's ROUTER socket. After: Stream.

package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/fdwait"
	"kindex/relay/wire"
)

// zmqReplay is one request to a replay socket and its answer. Each request has a
// socket of its own: an answer that comes late cannot be taken for another's.
type zmqReplay struct {
	t      *zmqTap
	req    ReplayRequest
	ctx    context.Context // the request's life
	cancel context.CancelFunc
	sock   *zmq.Socket
	wait   *fdwait.Waiter
	msgs   []Message
	addr   address
	heard  bool // anything came
}

// startReplay begins req in place of the request under way. mu is held.
func (t *zmqTap) startReplay(req ReplayRequest) {
	t.dropReplay()
	r := &zmqReplay{t: t, req: req}
	r.ctx, r.cancel = context.WithCancel(t.ctx)
	t.asking = r
	t.wg.Add(1)
	go r.run()
}

// dropReplay ends the request under way without an answer. mu is held.
func (t *zmqTap) dropReplay() {
	if r := t.asking; r != nil {
		t.asking = nil
		r.cancel()
		if r.wait != nil {
			interrupt(r.wait)
		}
	}
}

func (r *zmqReplay) run() {
	defer r.t.wg.Done()
	defer r.cancel()
	if err := r.ask(); err != nil {
		r.t.mu.Lock()
		r.finish(false, err)
		r.t.mu.Unlock()
	} else {
		r.collect()
	}
	// Nobody else uses these once the request is no longer the tap's.
	if r.wait != nil {
		_ = r.wait.Close()
	}
	if r.sock != nil {
		_ = r.sock.Close()
	}
}

// ask connects and sends the request.
func (r *zmqReplay) ask() error {
	addr, err := r.t.replay.resolve(r.ctx)
	if err != nil {
		return err
	}
	r.addr = addr
	sock, err := r.t.z.socket(zmq.DEALER)
	if err != nil {
		return err
	}
	r.sock = sock
	if addr.ipv6 {
		if err := sock.SetIpv6(true); err != nil {
			return err
		}
	}
	if err := sock.Connect(addr.text); err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	frames := wire.MakeReplayRequest(r.req.Start)
	for i, f := range frames {
		flag := zmq.DONTWAIT
		if i < len(frames)-1 {
			flag |= zmq.SNDMORE
		}
		if _, err := sock.SendBytes(f, flag); err != nil {
			return fmt.Errorf("asking: %w", err)
		}
	}
	wait, err := waiterOf(sock)
	if err != nil {
		return err
	}
	r.t.mu.Lock()
	r.wait = wait // from now on dropReplay interrupts it
	r.t.mu.Unlock()
	return nil
}

// collect hands the answer on as it comes, until it is whole, silent for too
// long, or no longer wanted.
func (r *zmqReplay) collect() {
	idle := r.t.z.opts.ReplayIdle
	if r.extend(idle) {
		for {
			done := false
			err := r.wait.Wait(func() bool {
				var more bool
				more, done = r.pump(idle)
				return more || done
			})
			if done {
				return
			}
			if err != nil {
				if errors.Is(err, fdwait.ErrInterrupted) {
					err = r.silence(idle)
				}
				r.t.mu.Lock()
				r.finish(false, err)
				r.t.mu.Unlock()
				return
			}
		}
	}
}

// silence says why nothing came for so long.
func (r *zmqReplay) silence(idle time.Duration) error {
	if !r.heard {
		if c, err := r.addr.connect(r.ctx); err != nil {
			return fmt.Errorf("no answer for %v: %w", idle, err)
		} else if err := c.Close(); err != nil {
			return err
		}
	}
	return fmt.Errorf("no answer for %v", idle)
}

// extend puts the end of patience off. It returns false when the request is no
// longer wanted.
func (r *zmqReplay) extend(idle time.Duration) bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.t.asking != r {
		return false
	}
	return r.wait.Deadline(time.Now().Add(idle)) == nil
}

// pump hands on one burst of the answer.
func (r *zmqReplay) pump(idle time.Duration) (more, done bool) {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking != r {
		return false, true
	}
	var end bool
	var err error
	now := time.Now()
	r.msgs, more, end, err = receiveReplay(r.sock, r.msgs[:0])
	// Whether the live connection broke before this came decides whose life it
	// may be of.
	t.monitor(nil, now)
	if end || err != nil {
		r.finish(end, err)
		return false, true
	}
	if len(r.msgs) > 0 {
		r.heard = true
		t.s.Replayed(r.req.ID, r.msgs, false, nil, now)
		r.forget()
		_ = r.wait.Deadline(now.Add(idle))
	}
	t.next(now)
	return more, false
}

// finish tells the stream how the request ended, unless it is no longer wanted.
// mu is held.
func (r *zmqReplay) finish(end bool, err error) {
	t := r.t
	if t.asking != r {
		return
	}
	t.asking = nil
	now := time.Now()
	t.s.Replayed(r.req.ID, r.msgs, end, err, now)
	r.forget()
	t.next(now)
}

// forget lets go of messages handed on.
func (r *zmqReplay) forget() {
	clear(r.msgs)
	r.msgs = r.msgs[:0]
}
