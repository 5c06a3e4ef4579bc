// SPDX-License-Identifier: Apache-2.0

// Before: whoever cannot answer a request. After: the client.

package gateway

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/gateway/openai"
)

// The headers that a gateway answers with.
const (
	headerRequestID = "X-Request-Id"
	headerErrorCode = "X-Kindex-Error-Code"
	headerWorker    = "X-Kindex-Worker"
	headerExplain   = "X-Kindex-Explain"
)

// retryAfter is what clients are told that find the gateway or all workers full, where
// nothing better is known.
const retryAfter = time.Second

// refuse answers with e, in OpenAI's shape.
func (f *front) refuse(rc *fasthttp.RequestCtx, e *openai.Error) {
	if len(rc.Response.Header.Peek(headerRequestID)) == 0 {
		rc.Response.Header.Set(headerRequestID, requestID(rc.Request.Header.Peek(headerRequestID)))
	}
	rc.Response.Header.Set(headerErrorCode, e.Code)
	if e.Status == fasthttp.StatusServiceUnavailable || e.Status == fasthttp.StatusTooManyRequests {
		rc.Response.Header.Set(fasthttp.HeaderRetryAfter, strconv.Itoa(int(max(e.RetryAfter, retryAfter)/time.Second)))
	}
	rc.SetStatusCode(e.Status)
	rc.SetContentType("application/json")
	rc.Response.SetBodyRaw(e.AppendJSON(nil))
}

// asRefusal returns what a client is told of err.
func asRefusal(err error) *openai.Error {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e
	}
	return &openai.Error{Status: 500, Type: openai.ServerError, Code: "internal_error", Message: plainLine(err.Error())}
}

// errClientGone is what stands in the books of a request whose client has gone; nobody
// reads it.
var errClientGone = &openai.Error{Status: 499, Type: openai.InvalidRequest, Code: "client_closed_request", Message: "The client closed the request."}

// refuseMalformed answers what the HTTP server could not read.
func (f *front) refuseMalformed(rc *fasthttp.RequestCtx, err error) {
	f.stats.malformed.Add(1)
	if c := connOf(rc); c != nil {
		c.linger.Store(true)
	}
	rc.Response.Reset()
	rc.Request.Header.Del(headerRequestID) // half a head may be anything
	if _, ok := errors.AsType[*fasthttp.ErrSmallBuffer](err); ok {
		f.refuse(rc, &openai.Error{
			Status: 431, Type: openai.InvalidRequest, Code: "headers_too_large",
			Message: "The request line and headers are over " + strconv.Itoa(f.o.MaxHead) + " bytes.",
		})
		return
	}
	timeout, _ := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		f.refuse(rc, f.tooLarge())
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, fasthttp.ErrTimeout), timeout != nil && timeout.Timeout():
		f.refuse(rc, &openai.Error{
			Status: 408, Type: openai.InvalidRequest, Code: "request_timeout",
			Message: "The request did not come whole within " + f.o.ReadTimeout.String() + ".",
		})
	default:
		f.refuse(rc, &openai.Error{
			Status: 400, Type: openai.InvalidRequest, Code: "malformed_request",
			Message: "The request is not HTTP/1.1 as it should be: " + plainLine(err.Error()),
		})
	}
}

func (f *front) tooLarge() *openai.Error {
	return &openai.Error{
		Status: 413, Type: openai.InvalidRequest, Code: "request_too_large",
		Message: "The request's body is over " + strconv.Itoa(f.o.MaxBody) + " bytes.",
	}
}

// expect answers a client that asks before it sends its body.
func (f *front) expect(rc *fasthttp.RequestCtx) int {
	if rc.Request.Header.ContentLength() <= f.o.MaxBody {
		return fasthttp.StatusContinue
	}
	f.stats.malformed.Add(1)
	f.refuse(rc, f.tooLarge())
	return fasthttp.StatusRequestEntityTooLarge
}

// requestID returns the client's name for a request where it is fit to be logged and
// passed on, else a new one.
func requestID(given []byte) string {
	if len(given) == 0 || len(given) > 128 {
		return newRequestID()
	}
	for _, c := range given {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return newRequestID()
		}
	}
	return string(given)
}

func newRequestID() string {
	const digits = "0123456789abcdef"
	var id [20]byte
	copy(id[:], "req-")
	n := rand.Uint64()
	for i := 4; i < len(id); i++ {
		id[i] = digits[n&15]
		n >>= 4
	}
	return string(id[:])
}

// printable returns a client's text as it may stand in an answer.
func printable(b []byte) string { return plainLine(string(b[:min(len(b), 200)])) }

func plainLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return '?'
		}
		return r
	}, s)
}

// gone reports whether a request ended because its client had.
func gone(ctx *requestContext) bool { return ctx.ended.Load() && !ctx.rescued() }
