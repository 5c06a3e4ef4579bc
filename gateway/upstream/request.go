// SPDX-License-Identifier: Apache-2.0

// Before: the front, with a request as it is to go out. After: a worker's socket.

package upstream

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/gateway/fleet"
)

// Request is one request to a worker.
type Request struct {
	Method string
	Path   string // with the query, as it is sent
	// Lines are further header lines, each with its CRLF, without Host,
	// Content-Length and Transfer-Encoding; without Authorization where the worker has
	// a key.
	Lines []byte
	Body  []byte

	FirstByte time.Duration // for the answer's first byte, and its body's; 0: no limit
	Stall     time.Duration // between two pieces of the answer, or of the request; 0: no limit
}

// Response is an answer under way. Its user calls Read up to [io.EOF] or not, and then
// Close.
type Response struct {
	// Header is the answer's head with Transfer-Encoding and whatever else it had.
	Header *fasthttp.ResponseHeader

	conn     *conn
	free     func() bool // ends the watch on the caller's context
	body     framing
	left     int64 // of the body or, chunked, of the chunk
	inside   bool  // a chunk has been begun: its CRLF is to come
	last     bool  // the chunk of no bytes has been read
	failed   error // of chunks, after what was handed out
	whole    bool  // the body has been read to its end
	keep     bool  // and the connection may be used again
	begun    bool  // a byte of the body has been read
	first    time.Duration
	stall    time.Duration
	canceled func() error
}

// framing is how a body's end is known.
type framing uint8

const (
	sized framing = iota
	chunked
	untilClose
)

// retryWithin is how soon an idle connection that the worker had closed shows it: the
// time of a round trip, with room. Later than that the worker had the request.
const retryWithin = int64(500 * time.Millisecond)

// Do sends q to w and returns once the answer's head is there, which it reads into
// head, what stood there is gone. The context's end aborts the exchange at once, also
// later, until the answer is closed.
//
// Errors: [*Error].
func (c *Client) Do(ctx context.Context, w *fleet.Worker, q *Request, head *fasthttp.ResponseHeader) (*Response, error) {
	p, err := c.poolOf(w)
	if err != nil {
		return nil, err
	}
	for {
		if ctx.Err() != nil {
			return nil, &Error{Kind: Canceled, URL: p.url, Err: ctx.Err()}
		}
		cn := p.take()
		if cn == nil {
			if cn, err = p.dial(ctx); err != nil {
				kind := Connect
				if ctx.Err() != nil {
					kind = Canceled
				}
				return nil, &Error{Kind: kind, URL: p.url, Err: err}
			}
		}
		used, began := cn.used, fleet.Now()
		r, err := cn.exchange(ctx, w, q, head)
		if err == nil {
			return r, nil
		}
		if err.Kind == Closed && used && fleet.Now()-began < retryWithin {
			continue // at most once for each idle connection
		}
		return nil, err
	}
}

// exchange sends q and reads the answer's head. On an error the connection is closed.
func (c *conn) exchange(ctx context.Context, w *fleet.Worker, q *Request, head *fasthttp.ResponseHeader) (*Response, *Error) {
	c.used = true
	r := &Response{Header: head, conn: c, first: q.FirstByte, stall: q.Stall, canceled: ctx.Err}
	r.free = afterFunc(ctx, c.abort)
	fail := func(kind Kind, err error) (*Response, *Error) {
		r.free()
		c.close()
		if ctx.Err() != nil {
			kind, err = Canceled, ctx.Err()
		}
		return nil, &Error{Kind: kind, URL: c.pool.url, Err: err}
	}
	sent := c.send(w, q)
	// Whether it went out whole or not: a worker may answer and close before it has
	// read all.
	if errors.Is(sent, os.ErrDeadlineExceeded) {
		return fail(Stalled, sent)
	}
	if err := c.within(fleet.Now(), q.FirstByte); err != nil {
		return fail(Closed, err)
	}
	for {
		if _, err := c.br.Peek(1); err != nil {
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				return fail(Late, err)
			case sent != nil:
				err = sent
			}
			return fail(Closed, err)
		}
		if err := head.Read(c.br); err != nil {
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, fasthttp.ErrTimeout):
				return fail(Late, err)
			case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
				return fail(Broken, err)
			}
			return fail(Malformed, err)
		}
		if code := head.StatusCode(); code >= 200 {
			break
		} else if code == fasthttp.StatusSwitchingProtocols || code < 100 {
			return fail(Malformed, errors.New("status "+strconv.Itoa(code)))
		}
	}
	r.frame(q.Method == fasthttp.MethodHead)
	r.keep = r.keep && sent == nil
	return r, nil
}

// send writes q in as few writes as its size allows.
func (c *conn) send(w *fleet.Worker, q *Request) error {
	if err := c.writeWithin(fleet.Now(), q.Stall); err != nil {
		return err
	}
	buf, _ := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	b := append((*buf)[:0], q.Method...)
	b = append(b, ' ')
	b = append(b, c.pool.prefix...)
	b = append(b, q.Path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, c.pool.host...)
	b = append(b, "\r\n"...)
	if t := w.Terms(); t != nil && t.APIKey != "" {
		b = append(b, "Authorization: Bearer "...)
		b = append(b, t.APIKey...)
		b = append(b, "\r\n"...)
	}
	b = append(b, q.Lines...)
	if len(q.Body) > 0 || q.Method == fasthttp.MethodPost {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(q.Body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	if len(b)+len(q.Body) > cap(b) && len(q.Body) > joined {
		// Two writes: a large body is not copied.
		*buf = b
		if _, err := c.Write(b); err != nil {
			return err
		}
		_, err := c.Write(q.Body)
		return err
	}
	b = append(b, q.Body...)
	*buf = b
	_, err := c.Write(b)
	return err
}

// joined is the size of a body that is still copied behind its head.
const joined = 16 << 10

// afterFunc is [context.AfterFunc], without its allocations where a context has it
// itself or never ends.
func afterFunc(ctx context.Context, f func()) func() bool {
	if a, ok := ctx.(interface{ AfterFunc(f func()) func() bool }); ok { // first: a channel may be made when it is asked for
		return a.AfterFunc(f)
	}
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, f)
}
