// SPDX-License-Identifier: Apache-2.0

// Before: an engine's PUB socket. After: Stream.

package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/fdwait"
)

// zmqTap is one stream's sockets: a SUB for live messages, the PAIR that tells
// of its connection, and while a replay is under way a DEALER.
//
// Where the engine binds and we connect, which is the rule, zmtp_tap.go reads the
// live socket without libzmq: one goroutine connects, waits and hands on.
//
// Else three goroutines serve it: one waits for each of the first two sockets, one
// looks after the address. Whoever is woken pumps them both under mu, in one
// order, so that a reconnect is always told before what came through it.
type zmqTap struct {
	z      *ZMQ
	s      *Stream
	live   endpoint
	replay endpoint

	ctx    context.Context // the tap's life
	cancel context.CancelFunc
	wg     sync.WaitGroup
	lost   chan struct{} // signals the address goroutine, capacity 1

	mu      sync.Mutex // guards all below, sockets included
	closed  bool
	sub     *zmq.Socket
	mon     *zmq.Socket
	subWait *fdwait.Waiter
	monWait *fdwait.Waiter
	joined  string // address that sub connects or is bound to
	peers   int    // connections with a finished handshake
	failing int    // connections that will end without having counted as peers
	ever    bool   // connected at least once
	wake    time.Time
	asking  *zmqReplay
	link    *link       // nil: none, or libzmq has it
	look    *time.Timer // for wake; nil: libzmq's socket wakes
	msgs    []Message
	changes []change
}

// change is one event of the live connection.
type change struct {
	up  bool
	why string
}

const notZMTP = "what listens there does not speak ZMTP as a publisher does"

const monitored = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL |
	zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

// Open implements [Source].
func (z *ZMQ) Open(cfg *Config, s *Stream) (Tap, error) {
	t := &zmqTap{z: z, s: s, lost: make(chan struct{}, 1)}
	var err error
	if t.live, err = parseEndpoint(cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.ReplayEndpoint != "" {
		if t.replay, err = parseEndpoint(cfg.ReplayEndpoint); err != nil {
			return nil, err
		}
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if !t.live.bind {
		t.look = time.AfterFunc(time.Hour, t.lookAgain)
		t.look.Stop()
		t.wg.Add(1)
		go t.connect()
		return t, nil
	}
	if err := t.open(); err != nil {
		return nil, err
	}
	return t, nil
}

// open has libzmq serve the live socket.
func (t *zmqTap) open() error {
	if err := t.sockets(); err != nil {
		t.closeSockets()
		return fmt.Errorf("%w: %w", ErrNoSockets, err)
	}
	t.wg.Add(3)
	go t.serve(t.subWait)
	go t.serve(t.monWait)
	go t.keepAddress()
	return nil
}

// fallBack has libzmq talk to a peer that is too old for us. It returns false where
// there is no room for its sockets.
func (t *zmqTap) fallBack() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return true
	}
	err := t.open()
	now := time.Now()
	if err != nil {
		t.s.Disconnected(err.Error(), now)
	}
	// What wakes the tap from now on may be another thing.
	t.look.Stop()
	t.wake = time.Time{}
	t.next(now)
	return err == nil
}

func (t *zmqTap) sockets() (err error) {
	if t.sub, err = t.z.socket(zmq.SUB); err != nil {
		return err
	}
	if err = t.sub.SetSubscribe(""); err != nil {
		return err
	}
	name := fmt.Sprintf("inproc://tap-%d", t.z.taps.Add(1))
	if err = t.sub.Monitor(name, monitored); err != nil {
		return fmt.Errorf("monitoring a ZMQ socket: %w", err)
	}
	if t.mon, err = t.z.socket(zmq.PAIR); err != nil {
		return err
	}
	if err = t.mon.Connect(name); err != nil {
		return fmt.Errorf("monitoring a ZMQ socket: %w", err)
	}
	if t.subWait, err = waiterOf(t.sub); err != nil {
		return err
	}
	t.monWait, err = waiterOf(t.mon)
	return err
}

// Close implements [Tap].
func (t *zmqTap) Close() {
	t.mu.Lock()
	t.closed = true
	t.cancel()
	for _, w := range []*fdwait.Waiter{t.subWait, t.monWait} {
		if w != nil {
			interrupt(w)
		}
	}
	if t.look != nil {
		t.look.Stop()
	}
	if t.link != nil {
		_ = t.link.conn.SetReadDeadline(time.Unix(1, 0)) // ends its wait
	}
	t.dropReplay()
	t.mu.Unlock()
	t.wg.Wait()
	t.closeSockets()
}

// interrupt ends a waiter's wait. A waiter that cannot be interrupted could not
// have been made.
func interrupt(w *fdwait.Waiter) { _ = w.Deadline(time.Unix(1, 0)) }

func (t *zmqTap) closeSockets() {
	for _, w := range []*fdwait.Waiter{t.subWait, t.monWait} {
		if w != nil {
			_ = w.Close()
		}
	}
	// The monitor ends before the socket that reads it: libzmq's I/O thread sends
	// monitor events by a blocking call, and one that finds the reader gone blocks
	// that thread, and with it every other stream, until the context ends.
	if t.sub != nil {
		_ = t.sub.Monitor("", 0)
	}
	for _, s := range []*zmq.Socket{t.sub, t.mon} {
		if s != nil {
			_ = s.Close()
		}
	}
	// A tap whose sockets could not be had goes on without.
	t.subWait, t.monWait, t.sub, t.mon = nil, nil, nil, nil
}

// serve pumps the tap whenever w's socket signals, until the tap is closed.
func (t *zmqTap) serve(w *fdwait.Waiter) {
	defer t.wg.Done()
	for t.ctx.Err() == nil {
		err := w.Wait(t.pump)
		if errors.Is(err, fdwait.ErrInterrupted) {
			// The wake time, or the end: close sets its deadline under mu after
			// closed, so it is not overwritten.
			t.mu.Lock()
			if !t.closed {
				_ = w.Deadline(time.Time{})
				t.wake = time.Time{}
			}
			t.mu.Unlock()
		}
	}
}

// pump takes one burst of everything that the sockets have to the stream, and
// does what the stream wants next. It returns whether there may be more.
func (t *zmqTap) pump() (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return true
	}
	// Data first, events after, and handed on the other way round: an event that
	// came before some of the data is then always told before it.
	now := time.Now()
	var err error
	t.msgs, more, err = receiveLive(t.sub, t.msgs[:0])
	t.monitor(err, now)
	if len(t.msgs) > 0 {
		if !t.ever && len(t.changes) == 0 {
			// Peers older than ZMTP 3 finish no handshake that would be told.
			t.ever, t.peers = true, 1
			t.s.Connected(now)
		}
		t.s.Live(t.msgs, now)
		clear(t.msgs)
	}
	t.next(time.Now())
	return more
}

// next does what the stream wants now. mu is held.
func (t *zmqTap) next(now time.Time) {
	req, ask, wake := t.s.Next(now)
	if ask {
		t.startReplay(req)
	}
	if !wake.Equal(t.wake) {
		t.wake = wake
		t.deadline(wake)
	}
}

// deadline has the tap look again at the time at; zero: not before something comes.
// mu is held.
func (t *zmqTap) deadline(at time.Time) {
	switch {
	case t.subWait != nil:
		_ = t.subWait.Deadline(at)
	case at.IsZero():
		t.look.Stop()
	default:
		t.look.Reset(max(time.Until(at), 0))
	}
}

// lookAgain does what the stream wants at its wake time.
func (t *zmqTap) lookAgain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.subWait != nil {
		return
	}
	t.wake = time.Time{}
	t.next(time.Now())
}

// monitor tells the stream what became of the connection. err is what receiving
// from it met. mu is held.
func (t *zmqTap) monitor(err error, now time.Time) {
	if t.mon == nil {
		t.drainLink()
		return
	}
	t.changes = t.changes[:0]
	if err != nil {
		t.changes = append(t.changes, change{why: fmt.Sprintf("receiving: %v", err)})
	}
	for {
		events, err := t.mon.GetEvents()
		if err != nil || events&zmq.POLLIN == 0 {
			break
		}
		ev, _, _, err := t.mon.RecvEvent(zmq.DONTWAIT)
		if err != nil {
			break
		}
		t.changed(ev)
	}
	for _, c := range t.changes {
		if c.up {
			t.ever = true
			t.s.Connected(now)
		} else {
			t.s.Disconnected(c.why, now)
			t.signalLost()
		}
	}
}

// changed notes one event of the live connection. A connecting socket has one
// connection; a bound one counts them, and those that fail before they count.
func (t *zmqTap) changed(ev zmq.Event) {
	switch ev {
	case zmq.EVENT_HANDSHAKE_SUCCEEDED:
		if t.peers++; !t.live.bind {
			t.peers, t.failing = 1, 0
		}
		t.changes = append(t.changes, change{up: true})
	case zmq.EVENT_DISCONNECTED:
		switch {
		case t.live.bind && t.failing > 0:
			t.failing--
		case t.peers > 0:
			if t.peers--; t.peers == 0 {
				t.changes = append(t.changes, change{why: "the peer closed it"})
			}
		default:
			t.changes = append(t.changes, change{why: notZMTP})
		}
	case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_AUTH:
		t.failing++
		if t.peers == 0 {
			t.changes = append(t.changes, change{why: notZMTP})
		}
	default:
	}
}

// signalLost wakes the address goroutine.
func (t *zmqTap) signalLost() {
	select {
	case t.lost <- struct{}{}:
	default:
	}
}
