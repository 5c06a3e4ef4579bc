// SPDX-License-Identifier: Apache-2.0

// Before: a worker's socket. After: the front, which hands each piece on at once.

package upstream

import (
	"errors"
	"io"
	"os"
	"sync"

	"kindex/gateway/fleet"
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 20<<10); return &b }}

// frame finds out how the body ends.
func (r *Response) frame(headOnly bool) {
	r.keep = !r.Header.ConnectionClose()
	code, n := r.Header.StatusCode(), r.Header.ContentLength()
	switch {
	case headOnly || code == 204 || code == 304:
		r.body, r.left = sized, 0
	case n >= 0:
		r.body, r.left = sized, int64(n)
	case n == -1:
		r.body = chunked
	default:
		r.body, r.keep = untilClose, false
	}
	r.whole = r.body == sized && r.left == 0
}

// Size returns the bytes of the body where the head tells them, else -1.
func (r *Response) Size() int64 {
	if r.body == sized && !r.begun {
		return r.left
	}
	return -1
}

// Read returns what has come of the body. It waits only where nothing has: what lies
// in several chunks is one piece, and none waits for the next.
//
// Errors: [io.EOF] at the body's end, [*Error].
func (r *Response) Read(b []byte) (int, error) {
	if r.whole {
		return 0, io.EOF
	}
	if len(b) == 0 {
		return 0, nil
	}
	wait := r.stall
	if !r.begun {
		wait = r.first
	}
	// Also where something has come: it may not be enough.
	if err := r.conn.within(fleet.Now(), wait); err != nil {
		return 0, r.fault(err)
	}
	var n int
	var err error
	switch r.body {
	case chunked:
		n, err = r.readChunks(b)
	case sized:
		n, err = r.conn.br.Read(b[:min(int64(len(b)), r.left)])
		if r.left -= int64(n); r.left == 0 {
			r.whole, err = true, nil
		}
	case untilClose:
		n, err = r.conn.br.Read(b)
		if errors.Is(err, io.EOF) {
			r.whole = true
			return n, io.EOF
		}
	}
	r.begun = r.begun || n > 0
	if err == nil || r.whole && n == 0 && errors.Is(err, io.EOF) {
		return n, err
	}
	if n > 0 {
		return n, nil // the error comes again
	}
	return 0, r.fault(err)
}

// fault says what an error of the connection means within the body.
func (r *Response) fault(err error) *Error {
	kind := Broken
	err = cut(err)
	switch {
	case r.canceled() != nil:
		kind, err = Canceled, r.canceled()
	case r.conn.gone.Load():
		kind = Canceled
	case errors.Is(err, os.ErrDeadlineExceeded) && !r.begun:
		kind = Late
	case errors.Is(err, os.ErrDeadlineExceeded):
		kind = Stalled
	case errors.Is(err, errChunk):
		kind = Malformed
	}
	r.keep = false
	return &Error{Kind: kind, URL: r.conn.pool.url, Err: err}
}

// Close ends the exchange. The worker is left to serve others with the connection where
// the body was read to its end, else it sees it closed.
func (r *Response) Close() {
	c := r.conn
	if c == nil {
		return
	}
	r.conn = nil
	live := r.free()
	if live && r.whole && r.keep && c.br.Buffered() == 0 && !c.gone.Load() {
		c.pool.give(c)
		return
	}
	c.close()
}
