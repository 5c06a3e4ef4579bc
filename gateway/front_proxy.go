// SPDX-License-Identifier: Apache-2.0

// Before: front.go, with a whole request. After: a worker by package upstream, and the
// client, by front_stream.go where the answer comes in pieces.

package gateway

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/route"
	"kindex/gateway/upstream"
)

// frontStats are a front's counts since it began.
type frontStats struct {
	requests  atomic.Uint64 // that an engine was to answer
	own       atomic.Uint64 // answered without one
	unknown   atomic.Uint64 // paths and methods that nobody serves
	malformed atomic.Uint64
	retries   [route.Outcomes]atomic.Uint64 // by how the try before ended
	refused   atomic.Uint64                 // answered with an error of the gateway's own
	gone      atomic.Uint64                 // clients that hung up
	rescued   atomic.Uint64                 // tries given up because their worker would not answer
	cut       atomic.Uint64                 // answers broken off by the worker after their first byte
	active    atomic.Int64
}

// answered is what became of a request. Times are by fleet.Now; 0: it did not come to
// that.
type answered struct {
	ID, Path, Model string
	Worker          string // that answered, or was tried last
	Rank            int
	Stream          bool
	Status          int    // the client's; 499: it had gone
	Code            string // of the gateway's own refusal
	Outcome         route.OutcomeKind
	Tries           int
	Usage           openai.Usage
	Marks           route.Marks

	Start, Placed, FirstByte, FirstToken, End int64
}

// An exchange is one request of a client and its answer. It is used again and again,
// by one goroutine at a time: the connection's. The hang-up of the client comes from
// another one, and touches only ctx.
type exchange struct {
	f     *front
	conn  *clientConn
	ctx   *requestContext
	head  requestHead
	call  openai.Call
	req   *route.Request
	told  answered
	spans *traced

	leave func() // of the gate
	place *route.Placement
	resp  *upstream.Response
	send  upstream.Request
	body  []byte // with a rank of its own

	stream  stream
	passing bool // the answer is passed on by reads of the HTTP server

	hangUp func() // bound once
}

var exchanges = sync.Pool{New: func() any {
	x := &exchange{req: route.NewRequest()}
	x.hangUp = func() { x.ctx.end() }
	return x
}}

// maxKept bounds the buffers that an exchange keeps for the next one.
const maxKept = 64 << 10

// proxy has an engine answer a request.
func (f *front) proxy(rc *fasthttp.RequestCtx, r *engineRoute) {
	f.stats.requests.Add(1)
	f.stats.active.Add(1)
	x, _ := exchanges.Get().(*exchange)
	x.f, x.conn = f, connOf(rc)
	x.head.read(&rc.Request.Header)
	if x.head.id == "" {
		x.head.id = newRequestID()
	}
	x.told = answered{ID: x.head.id, Path: r.path, Start: fleet.Now()}
	x.spans = f.o.Tracing.begin(&rc.Request.Header, r.path, x.head.id, x.told.Start)
	x.open()
	if err := x.run(rc, r); err != nil {
		x.refuse(rc, err)
	}
	if !x.passing {
		x.finish()
	}
}

// open gives the exchange a context, in place of one that has ended.
func (x *exchange) open() {
	if x.conn == nil {
		x.ctx = &requestContext{}
		return
	}
	x.conn.mark.Tell(nil) // a hang-up reads x.ctx
	x.ctx = &requestContext{}
	x.conn.ctx.Store(x.ctx)
	x.conn.mark.Tell(x.hangUp)
}

// refuse answers with an error.
func (x *exchange) refuse(rc *fasthttp.RequestCtx, err error) {
	e := asRefusal(err)
	rc.Response.Reset()
	if gone(x.ctx) {
		e = errClientGone
		x.f.stats.gone.Add(1)
		rc.SetConnectionClose()
	} else {
		x.f.stats.refused.Add(1)
	}
	rc.Response.Header.Set(headerRequestID, x.head.id)
	if x.told.Worker != "" {
		rc.Response.Header.Set(headerWorker, x.told.Worker)
	}
	x.f.refuse(rc, e)
	x.told.Status, x.told.Code = e.Status, e.Code
}

// finish ends the exchange: everything it held is given back.
func (x *exchange) finish() {
	f := x.f
	if x.conn != nil {
		x.conn.mark.Tell(nil)
		x.conn.ctx.Store(nil)
	}
	if x.resp != nil { // not read to its end
		x.resp.Close()
		x.resp = nil
	}
	if x.place != nil {
		f.stats.gone.Add(1)
		x.done(route.Outcome{Kind: route.ClientGone, Status: x.told.Status, SentToClient: x.stream.sent})
	}
	x.ctx.end() // whoever still works for it need not
	if x.leave != nil {
		x.leave()
		x.leave = nil
	}
	x.told.End, x.told.Marks = fleet.Now(), x.req.Marks
	x.spans.end(x.told.Status, x.told.Code)
	x.spans = nil
	if f.o.Answered != nil {
		f.o.Answered(&x.told)
	}
	f.stats.active.Add(-1)
	x.req.Reset()
	x.stream.reset()
	x.passing = false
	x.conn, x.ctx, x.f = nil, nil, nil
	x.send = upstream.Request{}
	if cap(x.body) > maxKept {
		x.body = nil
	}
	if cap(x.call.Tokens) > maxKept {
		x.call.Tokens = nil
	}
	x.call = openai.Call{Tokens: x.call.Tokens}
	exchanges.Put(x)
}

// done tells the try's outcome.
func (x *exchange) done(o route.Outcome) {
	p := x.place
	x.place = nil
	x.ctx.leave()
	x.told.Outcome, x.told.Usage = o.Kind, o.Usage
	x.told.FirstByte, x.told.FirstToken = p.FirstByteAt, p.FirstTokenAt
	x.spans.firstByte(p.FirstByteAt)
	x.spans.answered(&o)
	p.Done(o)
}

// run takes a request to its answer's first byte, or to its end.
//
// Errors: for the client.
func (x *exchange) run(rc *fasthttp.RequestCtx, r *engineRoute) error {
	f := x.f
	if err := x.read(rc, r); err != nil {
		return err
	}
	if f.o.Enter != nil {
		leave, err := f.o.Enter(x.ctx)
		if err != nil {
			return err
		}
		x.leave = leave
	}
	var last *fault
	for try := 0; ; try++ {
		p, err := f.o.Router.Place(x.ctx, x.req)
		if err != nil && last != nil && last.rescued && !gone(x.ctx) {
			// Nobody else is left after all: it waits where it did. A veto refuses nobody.
			x.req.Exclude = x.req.Exclude[:0]
			p, err = f.o.Router.Place(x.ctx, x.req)
		}
		if err != nil {
			if last != nil && !gone(x.ctx) {
				return last.deliver(rc, x)
			}
			return err
		}
		x.place = p
		x.told.Worker, x.told.Rank, x.told.Tries = p.Holder.Worker.ID, p.Holder.Rank, try+1
		if try == 0 {
			x.told.Placed = fleet.Now()
			x.spans.placed(x.req, p)
		}
		x.ctx.wait(waiting{
			worker: p.Holder.Worker, pool: p.Pool, lease: p.Lease, tried: x.req.Exclude, since: fleet.Now(),
			once: x.req.TargetWorker != "" || !new(fault).again(x, p.Holder.Worker, try), stream: x.call.Stream,
		})
		fault := x.try(rc, r)
		if fault == nil {
			return nil
		}
		last = fault
		x.req.Failed(p.Holder.Worker)
		if gone(x.ctx) || !fault.again(x, p.Holder.Worker, try) {
			return last.deliver(rc, x)
		}
		f.stats.retries[fault.kind].Add(1)
	}
}

// read makes the call out of what the client sent.
func (x *exchange) read(rc *fasthttp.RequestCtx, r *engineRoute) error {
	bad := func(code, param, message string) error {
		return &openai.Error{Status: 400, Type: openai.InvalidRequest, Code: code, Param: param, Message: message}
	}
	query := rc.URI().QueryString()
	switch {
	case x.head.badRank:
		return bad("invalid_value", "", "The header X-data-parallel-rank must be a number, 0 or more.")
	case x.head.encodedBody:
		return &openai.Error{
			Status: 415, Type: openai.InvalidRequest, Code: "unsupported_encoding",
			Message: "The request's body has a Content-Encoding: it must be sent as it is.",
		}
	case bytes.ContainsFunc(query, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return bad("malformed_request", "", "The URL's query has characters that must be escaped.")
	}
	if err := openai.Parse(r.kind, rc.PostBody(), &x.call); err != nil {
		return err
	}
	x.told.Model, x.told.Stream = x.call.Model, x.call.Stream
	q := x.req
	q.Call, q.ID = &x.call, x.head.id
	q.RoutingKey, q.TargetWorker, q.Rank, q.Explain = x.head.routingKey, x.head.target, x.head.rank, x.head.explain
	path := r.path
	if len(query) > 0 {
		path += "?" + string(query)
	}
	x.send = upstream.Request{
		Method: fasthttp.MethodPost, Path: path, Body: rc.PostBody(), FirstByte: x.f.o.FirstByte, Stall: x.f.o.Stall,
	}
	x.head.lines = appendLineString(x.head.lines, headerRequestID, x.head.id)
	return nil
}

// try sends the request to the worker that was chosen. Without a fault the answer, or
// its beginning, is ready for the client.
func (x *exchange) try(rc *fasthttp.RequestCtx, r *engineRoute) *fault {
	p := x.place
	w := p.Holder.Worker
	keep := len(x.head.lines)
	x.spans.send(&rc.Request.Header, w, x.told.Tries)
	if x.spans != nil {
		x.head.parent = string(rc.Request.Header.Peek("Traceparent"))
	}
	x.head.lines = x.head.perTry(x.head.lines, p.Holder, !x.f.o.OwnsAuthorization)
	x.send.Lines, x.send.Body = x.head.lines, rc.PostBody()
	x.head.lines = x.head.lines[:keep]
	if w.Spec.Engine == fleet.SGLang && len(w.Holders) > 1 {
		x.body = withRank(x.body[:0], rc.PostBody(), p.Holder.Rank)
		x.send.Body = x.body
	}
	p.Sent()
	resp, err := x.f.o.Upstream.Do(x.ctx, w, &x.send, &rc.Response.Header)
	if err != nil {
		return x.failed(err)
	}
	x.resp = resp
	status := rc.Response.StatusCode()
	x.told.Status = status
	if again, kind := retryable(status); again {
		return x.held(rc, status, kind)
	}
	return x.begin(rc, r, status)
}

// answerLimit is the bytes of an answer that is passed on whole, and so is tried again
// where the worker cuts it.
const answerLimit = 256 << 10

// begin takes the answer's beginning, before anything goes to the client.
func (x *exchange) begin(rc *fasthttp.RequestCtx, r *engineRoute, status int) *fault {
	sse := bytes.HasPrefix(rc.Response.Header.ContentType(), []byte("text/event-stream"))
	size := x.resp.Size()
	if size <= answerLimit && (size >= 0 || !sse && !x.call.Stream) {
		body, err := x.resp.AppendAll(rc.Response.SwapBody(nil)[:0], answerLimit)
		rc.Response.SwapBody(body)
		if err == nil {
			x.whole(rc, r, status, body)
			return nil
		}
		if e, ok := errors.AsType[*upstream.Error](err); !ok || e.Kind != upstream.TooLarge {
			rc.Response.ResetBody()
			return x.failed(err)
		}
		// Longer than what is kept, which goes before the rest.
		x.stream.begin(x, false)
		x.stream.buf = append(x.stream.buf, body...)
		x.stream.ready = len(body)
		rc.Response.ResetBody()
	} else {
		x.stream.begin(x, sse && len(rc.Response.Header.ContentEncoding()) == 0)
		if err := x.stream.fill(); err != nil {
			return x.failed(err)
		}
	}
	if !x.ctx.begin() {
		return x.failed(&upstream.Error{Kind: upstream.Canceled, Err: x.ctx.Err()})
	}
	x.place.FirstByte()
	x.prepare(rc)
	if !rc.Request.Header.IsHTTP11() {
		return x.collect(rc)
	}
	x.passing = true
	rc.Response.SetBodyStream(x, int(size))
	return nil
}

// collectLimit is the bytes of an answer to a client of HTTP/1.0, which has no way to
// be sent one whose length is not known.
const collectLimit = 16 << 20

// collect passes an answer on as a whole.
func (x *exchange) collect(rc *fasthttp.RequestCtx) *fault {
	body, err := io.ReadAll(io.LimitReader(x, collectLimit))
	if err != nil {
		rc.SetConnectionClose()
	}
	rc.Response.SetBodyRaw(body)
	return nil
}

// whole ends a try whose answer is there.
func (x *exchange) whole(rc *fasthttp.RequestCtx, r *engineRoute, status int, body []byte) {
	x.place.FirstByte()
	x.resp.Close()
	x.resp = nil
	x.prepare(rc)
	o := route.Outcome{Kind: route.OK, Status: status, SentToClient: true}
	if status >= 400 {
		o.Kind = route.ClientError
	} else if r.kind != openai.Tokenize && r.kind != openai.Detokenize && len(rc.Response.Header.ContentEncoding()) == 0 {
		openai.ScanUsage(body, &o.Usage)
	}
	x.done(o)
}

// prepare makes the worker's head the client's.
func (x *exchange) prepare(rc *fasthttp.RequestCtx) {
	h := &rc.Response.Header
	cleanAnswer(h)
	h.Set(headerRequestID, x.head.id)
	h.Set(headerWorker, x.told.Worker)
	if rec := x.place.Decision.Record; rec != nil {
		h.SetBytesV(headerExplain, rec.AppendJSON(nil))
	}
	if !rc.Request.Header.IsHTTP11() {
		rc.SetConnectionClose()
	}
}

// A fault is why a try failed before a byte reached the client.
type fault struct {
	kind   route.OutcomeKind
	err    error
	answer []byte // of a worker that answered with an error, which the client gets if no other does better
	status int

	rescued bool // the worker was given up while it was waited for
}

// failed ends a try with a fault of the connection.
func (x *exchange) failed(err error) *fault {
	ft := &fault{kind: route.Broken, err: err}
	if e, ok := errors.AsType[*upstream.Error](err); ok {
		switch e.Kind {
		case upstream.Connect:
			ft.kind = route.ConnectFailed
		case upstream.Late, upstream.Stalled:
			ft.kind = route.Stalled
		case upstream.Canceled:
			ft.kind = route.ClientGone
		case upstream.Closed, upstream.Malformed, upstream.Broken, upstream.TooLarge:
		}
	}
	x.over(ft)
	return ft
}

// retryable reports whether an answer's status says that another worker may do better.
func retryable(status int) (bool, route.OutcomeKind) {
	switch status {
	case 429, 503:
		return true, route.BackPressure
	case 500, 502, 504:
		return true, route.WorkerError
	}
	if status > 500 {
		return false, route.WorkerError
	}
	return false, route.OK
}

// held keeps a worker's answer of an error while others are tried.
func (x *exchange) held(rc *fasthttp.RequestCtx, status int, kind route.OutcomeKind) *fault {
	body, err := x.resp.ReadAll(answerLimit)
	if err != nil {
		return x.failed(err)
	}
	x.prepare(rc)
	ft := &fault{kind: kind, status: status, answer: body}
	x.over(ft)
	return ft
}

// over ends a try that failed.
func (x *exchange) over(ft *fault) {
	if x.resp != nil {
		x.resp.Close()
		x.resp = nil
	}
	x.stream.reset()
	ft.rescued = x.ctx.rescued()
	switch {
	case ft.rescued:
		ft.kind = route.Stalled
	case gone(x.ctx):
		ft.kind = route.ClientGone
	}
	x.done(route.Outcome{Kind: ft.kind, Status: ft.status})
	if ft.rescued {
		x.open()
		x.f.stats.rescued.Add(1)
	}
}

// again reports whether another worker is to be asked.
func (ft *fault) again(x *exchange, w *fleet.Worker, try int) bool {
	own := &w.Terms().Resilience
	switch {
	case ft.rescued:
		return true // or it would not have been
	case own.NoRetry != nil && *own.NoRetry, own.MaxRetries != nil && try+1 >= *own.MaxRetries:
		return false
	case try >= int(x.f.retries.Load()):
		return false
	case ft.status == 500 && try > 0:
		return false // what two engines fail at is the request
	case x.f.o.FirstByte > 0 && fleet.Now()-x.told.Start > int64(x.f.o.FirstByte):
		return false // the client has waited for as long as it may have to
	}
	return true
}

// deliver tells the client of the last fault.
func (ft *fault) deliver(rc *fasthttp.RequestCtx, x *exchange) error {
	switch {
	case gone(x.ctx):
		return errClientGone
	case ft.status != 0:
		rc.Response.SetBodyRaw(ft.answer) // the head is still the worker's
		return nil
	}
	x.told.Status = 0
	e := &openai.Error{Status: 502, Type: openai.ServerError, Code: "upstream_broken", Message: "The worker broke off its answer."}
	switch ft.kind {
	case route.ConnectFailed:
		e.Status, e.Code, e.Message = 503, "upstream_unreachable", "No worker of the model can be reached."
	case route.Stalled:
		e.Status, e.Code, e.Message = 504, "upstream_timeout", "The worker did not answer in time."
	case route.OK, route.ClientError, route.ClientGone, route.BackPressure, route.WorkerError, route.Broken:
	}
	e.Message += " Tries: " + strconv.Itoa(x.told.Tries) + ", in " + time.Duration(fleet.Now()-x.told.Start).Round(time.Millisecond).String() + "."
	return e
}
