// SPDX-License-Identifier: Apache-2.0

// Before: a worker's answer, piece by piece. After: the HTTP server, which writes each
// piece that it reads to the client at once.

package gateway

import (
	"bytes"
	"errors"
	"io"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/route"
	"kindex/gateway/upstream"
)

// Sizes of what a stream holds: usually one piece; an event that is cut into pieces is
// held until it is whole, and past the limit passed on as it comes.
const (
	pieceBytes = 8 << 10
	eventLimit = 1 << 20
)

// stream is an answer that is passed on as it comes.
//
// Of a stream of events only whole ones are passed on: a worker that dies within one
// leaves none that a client cannot read, and what happened can be said in an event of
// its own.
type stream struct {
	x     *exchange
	sse   bool
	plain bool // of sse: its events are not looked at
	buf   []byte
	from  int // what the client has not got yet is buf[from:ready]
	ready int // behind it lies what is not whole
	sent  bool
	ended bool
	err   error // that the client's connection ends with, after what is ready
	scan  openai.EventScanner
}

func (s *stream) begin(x *exchange, sse bool) {
	s.x, s.sse = x, sse
	if cap(s.buf) < pieceBytes {
		s.buf = make([]byte, 0, pieceBytes)
	}
	s.scan.Reset()
}

func (s *stream) reset() {
	buf := s.buf
	if cap(buf) > maxKept {
		buf = nil
	}
	scan := s.scan
	scan.Reset()
	*s = stream{buf: buf[:0], scan: scan}
}

// fill reads until there is something for the client, or the answer's end.
//
// Errors: [*upstream.Error].
func (s *stream) fill() error {
	rest := copy(s.buf, s.buf[s.ready:])
	s.buf, s.from, s.ready = s.buf[:rest], 0, 0
	for s.ready == 0 {
		if len(s.buf) == cap(s.buf) {
			s.buf = append(s.buf, make([]byte, len(s.buf))...)[:len(s.buf)]
		}
		had := len(s.buf)
		n, err := s.x.resp.Read(s.buf[had:cap(s.buf)])
		s.buf = s.buf[:had+n]
		if n > 0 {
			s.came(had)
		}
		if errors.Is(err, io.EOF) {
			s.ended = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// came looks at what has come behind buf[:had].
func (s *stream) came(had int) {
	if !s.sse || s.plain {
		s.ready = len(s.buf)
		return
	}
	seen := s.scan.Scan(s.buf[had:])
	if seen.Whole > 0 {
		s.ready = had + seen.Whole
	} else if len(s.buf) >= eventLimit {
		s.plain, s.ready = true, len(s.buf)
	}
	if seen.Output > 0 {
		s.x.place.Token(fleet.Now())
	}
}

// Read implements [io.Reader] for the HTTP server, which reads in the goroutine that
// served the request, after it.
func (x *exchange) Read(b []byte) (int, error) {
	s := &x.stream
	if x.ctx.stuck.Load() {
		x.ctx.moved()
	}
	for s.from == s.ready {
		switch {
		case s.err != nil:
			return 0, s.err
		case s.ended:
			s.over(nil)
		default:
			if err := s.fill(); err != nil {
				s.over(err)
			} else if s.ended && s.from == s.ready {
				s.over(nil)
			}
		}
	}
	n := copy(b, s.buf[s.from:s.ready])
	s.from += n
	s.sent = true
	if s.ended && s.from == s.ready {
		s.over(nil) // the lease and the connection are free while the client gets the last piece
	}
	return n, nil
}

// over ends the answer: err is why it did not come to its end.
func (s *stream) over(err error) {
	if s.err != nil {
		return
	}
	x := s.x
	s.err = io.EOF
	o := route.Outcome{Kind: route.OK, Status: x.told.Status, Usage: s.scan.Usage(), SentToClient: true}
	if o.Status >= 400 {
		o.Kind = route.ClientError
	}
	tail := s.buf[s.ready:]
	half := s.sse && !s.plain && len(bytes.TrimSpace(tail)) > 0
	switch {
	case err != nil && gone(x.ctx):
		o.Kind, s.err = route.ClientGone, err
		x.f.stats.gone.Add(1)
	case err == nil && !half:
		s.from, s.ready = s.ready, len(s.buf) // at most an empty line
	case s.sse && !s.plain:
		o.Kind = route.Broken
		x.f.stats.cut.Add(1)
		s.buf = appendCut(s.buf[:0], err, x.ctx.rescued())
		s.from, s.ready = 0, len(s.buf)
		if x.conn != nil {
			x.conn.last.Store(true)
		}
	default:
		o.Kind, s.err = route.Broken, err
		x.f.stats.cut.Add(1)
	}
	if o.Kind == route.Broken && err != nil && (stalled(err) || x.ctx.rescued()) {
		o.Kind = route.Stalled
	}
	x.resp.Close()
	x.resp = nil
	x.done(o)
}

// Close implements [io.Closer]: the HTTP server calls it once the answer is with the
// client, or the client has gone.
func (x *exchange) Close() error {
	x.finish()
	return nil
}

// stalled reports whether a worker was given up for its silence.
func stalled(err error) bool {
	e, ok := errors.AsType[*upstream.Error](err)
	return ok && (e.Kind == upstream.Stalled || e.Kind == upstream.Late)
}

// appendCut appends the event that ends a stream whose worker broke off.
func appendCut(b []byte, err error, rescued bool) []byte {
	e := openai.Error{Status: 502, Type: openai.ServerError, Code: "upstream_broken", Message: "The worker broke off its answer."}
	if rescued || err != nil && stalled(err) {
		e.Code, e.Message = "upstream_timeout", "The worker stopped in the middle of its answer."
	}
	b = append(b, "data: "...)
	b = e.AppendJSON(b)
	return append(b, "\n\n"...)
}
