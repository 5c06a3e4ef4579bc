// SPDX-License-Identifier: Apache-2.0

// Before: clients' sockets. After: the HTTP server, which takes them for ordinary
// connections.

package gateway

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/internal/fdwait"
	"kindex/internal/hangup"
)

// epoch is the zero of this file's times, in ns.
var epoch = time.Now()

func sinceEpoch() int64 { return int64(time.Since(epoch)) }

// clientConns are all connections of clients. It watches them for hang-ups, and ends
// those whose time to read or to write is over: a timer for each would be set and
// stopped with every request.
type clientConns struct {
	watcher    *hangup.Watcher // nil: the system has none
	writeStall time.Duration   // a client that takes nothing for that long is gone; 0: never

	mu   sync.Mutex
	open map[*clientConn]struct{}

	lingering atomic.Int64
	stalled   atomic.Uint64 // connections ended because the client took nothing
	late      atomic.Uint64 // or sent nothing
}

// Bounds of what is read, and thrown away, from clients that were refused while they
// still sent: they read the refusal once they have sent all.
const (
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
	lingerers   = 256
)

// clientConn is a client's connection, below TLS where there is any.
//
// Concurrency: as [net.Conn].
type clientConn struct {
	net.Conn
	all  *clientConns
	mark *hangup.Mark
	ctx  atomic.Pointer[requestContext] // of the request under way; nil: none

	readBy  atomic.Int64 // when a read is late, since epoch; 0: never
	writeBy atomic.Int64 // when the write under way is; 0: there is none
	linger  atomic.Bool  // the client still sends what nobody will read
	last    atomic.Bool  // no further request is read
	closing atomic.Bool
}

// clientListener accepts [clientConn]s.
type clientListener struct {
	net.Listener
	all *clientConns
}

// Accept implements [net.Listener].
func (l *clientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.all.take(c), nil
}

func (cs *clientConns) take(c net.Conn) *clientConn {
	cc := &clientConn{Conn: fdwait.Quiet(c), all: cs}
	if cs.watcher != nil {
		// Without a mark a hang-up is seen with the next write: that is all it costs.
		cc.mark, _ = cs.watcher.Watch(c)
	}
	cs.mu.Lock()
	cs.open[cc] = struct{}{}
	cs.mu.Unlock()
	return cc
}

// connOf returns the connection of a request, or nil: it came by another listener.
func connOf(rc *fasthttp.RequestCtx) *clientConn {
	for c := rc.Conn(); ; {
		if cc, ok := c.(*clientConn); ok {
			return cc
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = over.NetConn()
	}
}

// past is a moment that is over.
var past = time.Unix(1, 0)

// sweep ends the reads and writes that are late at now, and has look see to the request
// of each connection that has one, and since when its client has taken nothing; 0: it
// does.
func (cs *clientConns) sweep(now int64, look func(ctx *requestContext, stuck int64)) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		if ctx := c.ctx.Load(); ctx != nil {
			stuck := c.writeBy.Load()
			if stuck != 0 {
				stuck -= int64(cs.writeStall)
			}
			look(ctx, stuck)
		}
		if by := c.readBy.Load(); by != 0 && by < now {
			c.readBy.Store(0)
			cs.late.Add(1)
			_ = c.Conn.SetReadDeadline(past) // closed: as good
		}
		if by := c.writeBy.Load(); by != 0 && by < now {
			cs.stalled.Add(1)
			_ = c.Conn.SetDeadline(past)
		}
	}
}

// closeAll closes what is open.
func (cs *clientConns) closeAll() {
	cs.mu.Lock()
	all := make([]*clientConn, 0, len(cs.open))
	for c := range cs.open {
		all = append(all, c)
	}
	cs.mu.Unlock()
	for _, c := range all {
		_ = c.end() // broken off
	}
}

// SetReadDeadline implements [net.Conn]. The sweep keeps it, to within its period.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		c.readBy.Store(0)
	} else {
		c.readBy.Store(max(int64(t.Sub(epoch)), 1))
	}
	return nil
}

// SetDeadline implements [net.Conn], of reads: writes have the stall's.
func (c *clientConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn]: each write has the stall's.
func (c *clientConn) SetWriteDeadline(time.Time) error { return nil }

// Read implements [net.Conn].
func (c *clientConn) Read(b []byte) (int, error) {
	if c.last.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

// Write implements [net.Conn]. It fails where the client took nothing for the stall
// timeout.
func (c *clientConn) Write(b []byte) (int, error) {
	if c.all.writeStall <= 0 {
		return c.Conn.Write(b)
	}
	total := 0
	for len(b) > 0 {
		// A piece at a time, so that a slow client that takes a large answer is not
		// one that takes nothing.
		piece := b[:min(len(b), 64<<10)]
		c.writeBy.Store(sinceEpoch() + int64(c.all.writeStall))
		n, err := c.Conn.Write(piece)
		total += n
		if err != nil {
			c.writeBy.Store(0)
			return total, err
		}
		b = b[n:]
	}
	c.writeBy.Store(0)
	return total, nil
}

// Close implements [net.Conn].
func (c *clientConn) Close() error {
	if c.linger.Load() && !c.closing.Swap(true) && c.drain() {
		return nil
	}
	return c.end()
}

// end closes the connection for good.
func (c *clientConn) end() error {
	c.all.mu.Lock()
	_, open := c.all.open[c]
	delete(c.all.open, c)
	c.all.mu.Unlock()
	if open && c.mark != nil {
		c.all.watcher.Forget(c.mark)
	}
	return c.Conn.Close()
}

// drain takes what the client still sends, for a while, and then closes: closing at
// once would throw away the answer with what was not read.
func (c *clientConn) drain() bool {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || c.all.lingering.Add(1) > lingerers {
		if ok {
			c.all.lingering.Add(-1)
		}
		return false
	}
	c.readBy.Store(sinceEpoch() + int64(lingerTime))
	go func() {
		defer c.all.lingering.Add(-1)
		if half.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, plainReader{c.Conn}, lingerBytes) // whatever ends it
		}
		_ = c.end()
	}()
	return true
}

// plainReader hides what else a connection can do.
type plainReader struct{ r io.Reader }

func (p plainReader) Read(b []byte) (int, error) { return p.r.Read(b) }
