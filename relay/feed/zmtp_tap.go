// SPDX-License-Identifier: Apache-2.0

// Before: zmtp.go (an engine's PUB socket). After: Stream.

package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"kindex/internal/fdwait"
)

// pongTime bounds the writing of answers, for which a socket's buffer has room.
// Chosen, not measured.
const pongTime = time.Second

// link is a tap's connection to a publisher.
type link struct {
	conn net.Conn
	raw  fdwait.Raw
	framer
	over bool // it has ended; the tap's mu guards it
}

// connect keeps the tap connected to its publisher until the tap is closed or the
// peer turns out to be too old, which libzmq then talks to.
func (t *zmqTap) connect() {
	defer t.wg.Done()
	delay := reconnectMin
	for t.ctx.Err() == nil {
		l, err := t.dial()
		switch {
		case errors.Is(err, errOldPeer):
			if t.fallBack() {
				return
			}
		case err == nil:
			began := time.Now()
			t.follow(l)
			if time.Since(began) > delay {
				delay = reconnectMin // one that hangs up at once is not run after
			}
		default:
			t.unconnected(err)
		}
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(delay):
			delay = min(2*delay, reconnectMax)
		}
	}
}

// dial connects to the publisher and subscribes.
func (t *zmqTap) dial() (*link, error) {
	addr, err := t.live.resolve(t.ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, handshakeTime)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepaliveIdle * time.Second, Interval: keepaliveEvery * time.Second, Count: keepaliveTries,
	}}
	c, err := d.DialContext(ctx, addr.network, addr.dial)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(t.ctx, func() { _ = c.Close() })
	defer stop()
	err = errors.Join(handshakeDeadline(c), greet(c))
	raw, rawErr := fdwait.RawOf(c)
	if err = errors.Join(err, rawErr, c.SetDeadline(time.Time{})); err != nil {
		_ = c.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errNotZMTP
		}
		return nil, err
	}
	return &link{conn: c, raw: raw, framer: framer{max: uint64(t.z.opts.MaxFrame)}}, nil
}

// follow hands on what comes through l until it ends.
func (t *zmqTap) follow(l *link) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		_ = l.conn.Close()
		return
	}
	t.link, t.peers = l, 1
	now := time.Now()
	t.s.Connected(now)
	t.next(now)
	t.mu.Unlock()
	err := l.raw.Wait(func(fd uintptr) bool { return t.pumpLink(l, fd) })
	if err != nil {
		t.mu.Lock()
		t.unlink(l, err, time.Now())
		t.mu.Unlock()
	}
	_ = l.conn.Close()
}

// pumpLink hands on all that l has. It returns whether l has ended.
func (t *zmqTap) pumpLink(l *link, fd uintptr) bool {
	for {
		t.mu.Lock()
		more := !t.closed && !l.over && t.readLink(l, fd)
		over := t.closed || l.over
		if !over {
			t.next(time.Now())
		}
		t.mu.Unlock()
		if over || !more {
			return over
		}
	}
}

// readLink hands on one burst of what l has, and tells whether there may be more.
// mu is held.
func (t *zmqTap) readLink(l *link, fd uintptr) (more bool) {
	now := time.Now()
	msgs, more, err := l.next(t.msgs[:0])
	if !more && err == nil {
		space := l.space()
		var n int
		if n, err = fdwait.Read(fd, space); err == nil {
			l.read(n)
			msgs, _, err = l.next(msgs)
			// A short read is not the end of what has come: the connection's end may
			// have come with it, in the one signal that woke us.
			more = true
		} else if errors.Is(err, fdwait.ErrNothing) {
			err = nil
		}
	}
	t.msgs = msgs
	if len(msgs) > 0 {
		t.s.Live(msgs, now)
		clear(t.msgs)
	}
	if len(l.pong) > 0 && err == nil {
		// A peer that asks and reads no answers is let go of: mu is held meanwhile.
		if err = l.conn.SetWriteDeadline(time.Now().Add(pongTime)); err == nil {
			_, err = l.conn.Write(l.pong)
		}
		l.pong = l.pong[:0]
	}
	if err != nil {
		t.unlink(l, err, now)
		return false
	}
	return more
}

// drainLink hands on what the live connection has, its end included, before what
// another socket has. mu is held.
func (t *zmqTap) drainLink() {
	l := t.link
	if l == nil || l.over {
		return
	}
	err := l.raw.Now(func(fd uintptr) {
		for !l.over && t.readLink(l, fd) {
		}
	})
	if err != nil {
		t.unlink(l, err, time.Now())
	}
}

// unlink notes that l has ended. mu is held.
func (t *zmqTap) unlink(l *link, err error, now time.Time) {
	if l.over || t.closed {
		return
	}
	l.over = true
	t.link, t.peers = nil, 0
	_ = l.conn.SetReadDeadline(time.Unix(1, 0)) // whoever waits for it
	why := fmt.Sprintf("receiving: %v", err)
	if errors.Is(err, io.EOF) {
		why = "the peer closed it"
	}
	t.s.Disconnected(why, now)
	t.next(now)
}
