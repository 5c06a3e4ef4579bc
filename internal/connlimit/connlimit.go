// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the connections of a listener.
package connlimit

import (
	"net"
	"sync/atomic"
)

// New returns ln with so many connections at most at once. One over the number is
// closed at once, for one that waits would look like one that is served; refused
// counts those.
func New(ln net.Listener, most int, refused *atomic.Uint64) net.Listener {
	return &listener{Listener: ln, room: make(chan struct{}, most), refused: refused}
}

type listener struct {
	net.Listener
	room    chan struct{}
	refused *atomic.Uint64
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return &conn{Conn: c, room: l.room}, nil
		default:
			l.refused.Add(1)
			_ = c.Close() // nothing was written
		}
	}
}

type conn struct {
	net.Conn
	room   chan struct{}
	closed atomic.Bool
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		<-c.room
	}
	return c.Conn.Close()
}
