// SPDX-License-Identifier: Apache-2.0

// Before: a client that connects. After: the server of a front.

package engine

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"kindex/internal/fdwait"
)

// gate is a listener that can be closed for a while: its port then refuses whoever
// connects, and who is connected is cut off.
//
// Concurrency: any goroutine; one accepts.
type gate struct {
	addr  string
	moved chan struct{} // something changed; room for one

	mu    sync.Mutex
	inner net.Listener           // nil while closed; guarded by mu
	ended bool                   // guarded by mu
	conns map[*gateConn]struct{} // guarded by mu
}

// openGate listens at addr.
func openGate(addr string) (*gate, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &gate{addr: l.Addr().String(), inner: l, moved: make(chan struct{}, 1), conns: make(map[*gateConn]struct{})}, nil
}

// Addr returns where the gate is, open or closed.
func (g *gate) Addr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", g.addr)
	if err != nil {
		panic("an address that was listened at: " + err.Error())
	}
	return a
}

// Accept waits for a connection, as long as the gate is closed too.
func (g *gate) Accept() (net.Conn, error) {
	for {
		g.mu.Lock()
		l, ended := g.inner, g.ended
		g.mu.Unlock()
		switch {
		case ended:
			return nil, net.ErrClosed
		case l == nil:
			<-g.moved
			continue
		}
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			g.mu.Lock()
			if g.inner == l {
				g.inner = nil
			}
			g.mu.Unlock()
			continue
		}
		if err != nil {
			return nil, err
		}
		out := &gateConn{Conn: fdwait.Quiet(c), gate: g} // a token is a small write
		g.mu.Lock()
		shut := g.inner != l
		if !shut {
			g.conns[out] = struct{}{}
		}
		g.mu.Unlock()
		if shut {
			_ = c.Close()
			continue
		}
		return out, nil
	}
}

// shut refuses connections from now on, or no longer, and returns how many it cut.
//
// Errors: somebody else took the port meanwhile.
func (g *gate) shut(on bool) (cut int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ended || on == (g.inner == nil):
		return 0, nil
	case on:
		_ = g.inner.Close()
		g.inner = nil
		for c := range g.conns {
			_ = c.Conn.Close()
			cut++
		}
		clear(g.conns)
	default:
		l, err := net.Listen("tcp", g.addr)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", g.addr, err)
		}
		g.inner = l
	}
	g.wake()
	return cut, nil
}

// Close ends the gate; connections are their server's to end.
func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.wake()
	if g.inner == nil {
		return nil
	}
	err := g.inner.Close()
	g.inner = nil
	return err
}

func (g *gate) wake() {
	select {
	case g.moved <- struct{}{}:
	default:
	}
}

// gateConn is a connection that its gate can cut.
type gateConn struct {
	net.Conn
	gate *gate
}

func (c *gateConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
