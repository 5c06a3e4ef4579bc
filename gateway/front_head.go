// SPDX-License-Identifier: Apache-2.0

// Before: a client's or a worker's headers. After: those of the other side.

package gateway

import (
	"bytes"
	"strconv"

	"github.com/valyala/fasthttp"

	"kindex/gateway/fleet"
)

// requestHead is what a front takes out of a request's headers.
type requestHead struct {
	lines []byte // for the worker: what is passed on, each line with its CRLF
	auth  []byte // the line of Authorization; it stands in the request

	id, parent         string
	routingKey, target string
	rank               int // -1: none given
	badRank, explain   bool
	connection         []byte
	encodedBody        bool
}

// read reads the headers of a request.
func (h *requestHead) read(q *fasthttp.RequestHeader) {
	*h = requestHead{lines: h.lines[:0], rank: -1}
	for k, v := range q.All() {
		if !h.take(k, v) {
			h.lines = appendLine(h.lines, k, v)
		}
	}
	if len(h.connection) > 0 && !plainConnection(h.connection) {
		named := bytes.Clone(h.connection)
		h.lines = h.lines[:0]
		for k, v := range q.All() {
			if !h.take(k, v) && !listed(named, k) {
				h.lines = appendLine(h.lines, k, v)
			}
		}
	}
}

// take reports whether a header is not passed on as it is, and keeps what it says. The
// server has brought names into their usual form.
func (h *requestHead) take(k, v []byte) bool {
	switch string(k) {
	case "Host", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Keep-Alive",
		"Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "Expect":
	case "Connection":
		h.connection = v
	case "Authorization":
		h.auth = v
	case headerRequestID:
		h.id = requestID(v)
	case "Traceparent":
		h.parent = string(v)
	case "X-Data-Parallel-Rank":
		n, err := strconv.Atoi(string(v))
		if h.rank = n; err != nil || n < 0 {
			h.rank, h.badRank = -1, true
		}
	case "X-Kindex-Routing-Key":
		h.routingKey = string(v)
	case "X-Kindex-Target-Worker":
		h.target = string(v)
	case headerExplain:
		h.explain = len(v) > 0 && string(v) != "0"
	case "Content-Encoding":
		h.encodedBody = len(v) > 0 && string(v) != "identity"
		return false
	default:
		return false
	}
	return true
}

func appendLine(b, k, v []byte) []byte {
	b = append(b, k...)
	b = append(b, ": "...)
	b = append(b, v...)
	return append(b, "\r\n"...)
}

func appendLineString(b []byte, k, v string) []byte {
	b = append(b, k...)
	b = append(b, ": "...)
	b = append(b, v...)
	return append(b, "\r\n"...)
}

// plainConnection reports whether a Connection header names no further header.
func plainConnection(v []byte) bool {
	return bytes.EqualFold(v, []byte("keep-alive")) || bytes.EqualFold(v, []byte("close"))
}

// listed reports whether a Connection header names k.
func listed(connection, k []byte) bool {
	for name := range bytes.SplitSeq(connection, []byte(",")) {
		if bytes.EqualFold(bytes.TrimSpace(name), k) {
			return true
		}
	}
	return false
}

// perTry appends the lines that depend on the holder.
func (h *requestHead) perTry(b []byte, holder *fleet.Holder, passAuth bool) []byte {
	w := holder.Worker
	if passAuth && len(h.auth) > 0 {
		if t := w.Terms(); t == nil || t.APIKey == "" {
			b = appendLine(b, []byte(fasthttp.HeaderAuthorization), h.auth)
		}
	}
	if h.parent != "" {
		b = appendLineString(b, "traceparent", h.parent)
	}
	if len(w.Holders) > 1 {
		b = append(b, "X-data-parallel-rank: "...)
		b = strconv.AppendInt(b, int64(holder.Rank), 10)
		b = append(b, "\r\n"...)
	}
	return b
}

// withRank returns a body with the rank as SGLang wants it: a field of its own. The
// client's own field, where there is one, stands behind it and so holds.
func withRank(dst, body []byte, rank int) []byte {
	open := bytes.IndexByte(body, '{')
	if open < 0 {
		return append(dst, body...)
	}
	dst = append(dst, body[:open+1]...)
	dst = append(dst, `"data_parallel_rank":`...)
	dst = strconv.AppendInt(dst, int64(rank), 10)
	if rest := bytes.TrimLeft(body[open+1:], " \t\r\n"); len(rest) > 0 && rest[0] != '}' {
		dst = append(dst, ',')
	}
	return append(dst, body[open+1:]...)
}

// hopByHop are a worker's headers that are of its connection alone.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// cleanAnswer takes from an answer's head what was between the worker and the gateway.
func cleanAnswer(h *fasthttp.ResponseHeader) {
	if c := h.Peek("Connection"); len(c) > 0 && !plainConnection(c) {
		for name := range bytes.SplitSeq(bytes.Clone(c), []byte(",")) {
			h.DelBytes(bytes.TrimSpace(name))
		}
	}
	if !h.IsHTTP11() {
		// The client's framing is not the worker's, nor is the version.
		var again fasthttp.ResponseHeader
		again.SetStatusCode(h.StatusCode())
		for k, v := range h.All() {
			again.AddBytesKV(k, v)
		}
		again.CopyTo(h)
		h.SetNoDefaultContentType(true)
	}
	h.ResetConnectionClose()
	for _, name := range hopByHop {
		h.Del(name)
	}
}
