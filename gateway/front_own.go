// SPDX-License-Identifier: Apache-2.0

// Before: front.go. After: the client: these answers ask no worker.

package gateway

import (
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"kindex/gateway/openai"
	"kindex/internal/lookup"
)

// answerJSON answers 200 with a body.
func (f *front) answerJSON(rc *fasthttp.RequestCtx, body []byte) {
	f.stats.own.Add(1)
	rc.SetContentType("application/json")
	rc.Response.SetBodyRaw(body)
}

// alive answers that the process is. It takes no lock and asks nobody.
func (f *front) alive(rc *fasthttp.RequestCtx) { f.answerJSON(rc, []byte(`{"status":"ok"}`)) }

// ready answers whether requests should be sent here.
func (f *front) ready(rc *fasthttp.RequestCtx) {
	var why []string
	if f.o.Ready != nil {
		why = f.o.Ready()
	}
	if len(why) == 0 {
		f.answerJSON(rc, []byte(`{"status":"ready"}`))
		return
	}
	b := []byte(`{"status":"not_ready","reasons":[`)
	for i, w := range why {
		if i > 0 {
			b = append(b, ',')
		}
		b = lookup.AppendJSONString(b, w)
	}
	f.answerJSON(rc, append(b, "]}"...))
	rc.SetStatusCode(fasthttp.StatusServiceUnavailable)
}

// models answers with all models that somebody serves.
func (f *front) models(rc *fasthttp.RequestCtx) {
	names := slices.Clone(f.o.Models())
	slices.Sort(names)
	b := []byte(`{"object":"list","data":[`)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendModel(b, name)
	}
	f.answerJSON(rc, append(b, "]}"...))
}

// model answers with one of them.
func (f *front) model(rc *fasthttp.RequestCtx, id string) {
	if slices.Contains(f.o.Models(), id) {
		f.answerJSON(rc, appendModel(nil, id))
		return
	}
	f.refuse(rc, &openai.Error{
		Status: 404, Type: openai.InvalidRequest, Code: "model_not_found", Param: "model",
		Message: "The model `" + plainLine(strings.ToValidUTF8(id[:min(len(id), 200)], "?")) + "` does not exist.",
	})
}

func appendModel(b []byte, name string) []byte {
	b = append(b, `{"id":`...)
	b = lookup.AppendJSONString(b, name)
	return append(b, `,"object":"model","created":0,"owned_by":"kindex"}`...)
}
