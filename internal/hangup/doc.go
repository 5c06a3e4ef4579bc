// SPDX-License-Identifier: Apache-2.0

// Package hangup tells when the other end of a connection has hung up, while nobody
// reads from it.
//
// A server that works on a request does not read: what the client might send is the
// next request, and belongs to whoever reads that. So it does not see the client go,
// and works on for nobody. One goroutine here watches all connections at once, through
// the system's own readiness queue, for the end of the other side's sending and for
// errors, and for nothing else: data that arrives wakes nobody.
//
// A client that only ends its own sending and goes on reading looks the same as one
// that has gone. HTTP clients do not do that.
//
// Where the system has no such queue, [New] says so and everything else does nothing.
package hangup

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// ErrUnsupported is what [New] returns where the system cannot tell.
var ErrUnsupported = errors.New("this system does not tell when a client hangs up")

// A Mark is what is known of one connection.
//
// Concurrency: any goroutine. A nil Mark is of a connection that is not watched: it
// never goes.
type Mark struct {
	gone atomic.Bool
	slot uint32
	turn uint32 // of the slot

	mu   sync.Mutex
	tell func()
}

// Gone reports whether the other end has hung up.
func (m *Mark) Gone() bool { return m != nil && m.gone.Load() }

// Tell has fn called once the other end hangs up: at once where it has, else by the
// watching goroutine, which it must not keep waiting. It takes the place of an earlier
// one; nil: nobody is told. When Tell returns, an earlier one is not running.
func (m *Mark) Tell(fn func()) {
	if m == nil {
		return
	}
	m.mu.Lock()
	gone := m.gone.Load()
	if gone {
		m.tell = nil
	} else {
		m.tell = fn
	}
	m.mu.Unlock()
	if gone && fn != nil {
		fn()
	}
}

// hangUp marks m, once, and tells.
func (m *Mark) hangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone.Swap(true) || m.tell == nil {
		return
	}
	fn := m.tell
	m.tell = nil
	fn()
}

// below returns the connection that c wraps, where it says so, as TLS connections do.
func below(c net.Conn) net.Conn {
	for {
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = over.NetConn()
	}
}
