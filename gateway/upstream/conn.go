// SPDX-License-Identifier: Apache-2.0

// Before: requests. After: a socket.

package upstream

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// headLimit is the bytes of an answer's head, and of what is read from a socket at
// once.
const headLimit = 16 << 10

// conn is one connection to a worker. It belongs to one exchange at a time, or to its
// pool.
type conn struct {
	net.Conn // plain or secured; reads and writes go here
	pool     *pool
	raw      net.Conn // the socket below
	br       *bufio.Reader
	since    int64 // when it became idle
	used     bool  // has carried an exchange
	readBy   int64 // the read deadline that is set; 0: none
	writeBy  int64

	gone atomic.Bool // aborted or closed
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, headLimit) }}

func newConn(p *pool, raw, over net.Conn) *conn {
	br, _ := readers.Get().(*bufio.Reader)
	c := &conn{Conn: over, pool: p, raw: raw, br: br}
	c.br.Reset(c)
	return c
}

// close ends a connection that nobody uses, or that its only user gives up.
func (c *conn) close() {
	c.abort()
	if br := c.br; br != nil {
		c.br = nil
		br.Reset(nil)
		readers.Put(br)
	}
}

// abort ends the connection at once, whoever reads or writes it. Any goroutine.
func (c *conn) abort() {
	if !c.gone.Swap(true) {
		_ = c.raw.Close() // nothing is to be saved
	}
}

// within sees to it that reads fail when nothing came for between three quarters of d
// and d. Setting a deadline costs more than a small request's parsing, so one that
// still reaches far enough stays.
func (c *conn) within(now int64, d time.Duration) error {
	if !due(&c.readBy, now, d) {
		return nil
	}
	return c.raw.SetReadDeadline(deadline(d))
}

// writeWithin is the same for writes.
func (c *conn) writeWithin(now int64, d time.Duration) error {
	if !due(&c.writeBy, now, d) {
		return nil
	}
	return c.raw.SetWriteDeadline(deadline(d))
}

// due reports whether a deadline is to be set anew, and notes which.
func due(by *int64, now int64, d time.Duration) bool {
	if d <= 0 {
		was := *by
		*by = 0
		return was != 0
	}
	at := now + int64(d)
	if *by <= at && *by >= at-int64(d)/4 && *by != 0 {
		return false
	}
	*by = at
	return true
}

func deadline(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}
