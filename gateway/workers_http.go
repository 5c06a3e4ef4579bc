// SPDX-License-Identifier: Apache-2.0

// Before: fasthttp's server. After: workers.go.

package gateway

import (
	"net/url"

	"github.com/valyala/fasthttp"
)

// Handle answers a request for /workers or below.
func (s *Workers) Handle(ctx *fasthttp.RequestCtx) {
	// The parsed path has its escapes and double slashes resolved, and a URL in it lost.
	at := ctx.Request.URI()
	query, err := url.ParseQuery(string(at.QueryString()))
	var r WorkersReply
	if err != nil {
		r = refuseWorkers(fasthttp.StatusBadRequest, "invalid_parameter", "", "the query is not escaped as a URL's is")
	} else {
		r = s.Serve(string(ctx.Method()), string(at.PathOriginal()), query, ctx.Request.Body())
	}
	ctx.SetStatusCode(r.Status)
	ctx.SetContentType("application/json")
	if r.Location != "" {
		ctx.Response.Header.Set("Location", r.Location)
	}
	if r.Allow != "" {
		ctx.Response.Header.Set("Allow", r.Allow)
	}
	ctx.Response.SetBodyRaw(r.Body)
}
