// SPDX-License-Identifier: Apache-2.0

// Before: a gateway, or the client itself. After: nobody.

package gatewaybench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// tokenBytes is how many bytes of a prompt make a token of the worker's.
const tokenBytes = 4

// ServeWorker answers at addr as an engine that knows its answers, until ctx ends.
func ServeWorker(ctx context.Context, addr string) error {
	completion, chat := []byte(answer(Small)), []byte(answer(Chat))
	models := []byte(`{"object":"list","data":[{"id":"` + model + `","object":"model","created":0,"owned_by":"vllm","root":"` + model + `","max_model_len":32768}]}`)
	metrics := []byte("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"" + model + "\"} 0.0\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"" +
		model + "\"} 0.0\n# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"" + model + "\"} 0.0\n")
	return serve(ctx, addr, func(rc *fasthttp.RequestCtx) {
		rc.SetContentType("application/json")
		switch string(rc.Path()) {
		case "/v1/completions", "/v1/chat/completions":
			switch {
			case bytes.Contains(rc.PostBody(), []byte(`"stream":true`)):
				rc.SetContentType("text/event-stream; charset=utf-8")
				rc.SetBodyStreamWriter(streamed)
			case len(rc.Path()) == len("/v1/completions"):
				rc.SetBody(completion)
			default:
				rc.SetBody(chat)
			}
		case "/tokenize":
			tokenize(rc)
		case "/v1/models":
			rc.SetBody(models)
		case "/version":
			rc.SetBodyString(`{"version":"0.32.0"}`)
		case "/metrics":
			rc.SetContentType("text/plain")
			rc.SetBody(metrics)
		case "/health":
		default:
			rc.SetStatusCode(fasthttp.StatusNotFound)
		}
	})
}

func streamed(w *bufio.Writer) {
	for range answerTokens {
		_, _ = w.WriteString(chunk)
		if w.Flush() != nil {
			return
		}
	}
	_, _ = w.WriteString(lastChunk)
	_ = w.Flush()
}

// tokenize answers with a token for every few bytes, which is enough for prompts to be
// told apart and to share their heads.
func tokenize(rc *fasthttp.RequestCtx) {
	var q struct {
		Prompt   string `json:"prompt"`
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(rc.PostBody(), &q); err != nil {
		rc.Error(err.Error(), fasthttp.StatusBadRequest)
		return
	}
	var all strings.Builder
	all.WriteString(q.Prompt)
	for _, m := range q.Messages {
		all.WriteString("<" + m.Role + ">" + m.Content)
	}
	said := all.String()
	var tokens []byte
	n := 0
	for ; n*tokenBytes < len(said); n++ {
		id := uint32(0)
		for _, c := range []byte(said[n*tokenBytes : min(len(said), (n+1)*tokenBytes)]) {
			id = id*31 + uint32(c)
		}
		if n > 0 {
			tokens = append(tokens, ',')
		}
		tokens = strconv.AppendUint(tokens, uint64(id%150_000), 10)
	}
	rc.SetBodyString(`{"count":` + strconv.Itoa(n) + `,"max_model_len":32768,"tokens":[` + string(tokens) + `]}`)
}

// ServeBare passes requests on to the workers in turn, until ctx ends: what a gateway of
// this HTTP library cannot go below.
func ServeBare(ctx context.Context, addr string, workers []string) error {
	clients := make([]*fasthttp.HostClient, len(workers))
	for i, w := range workers {
		clients[i] = &fasthttp.HostClient{Addr: w, MaxConns: maxConns, MaxIdleConnDuration: time.Minute, StreamResponseBody: true, NoDefaultUserAgentHeader: true}
	}
	var next atomic.Uint64
	return serve(ctx, addr, func(rc *fasthttp.RequestCtx) {
		if string(rc.Path()) == "/readyz" {
			return
		}
		rc.Request.Header.Del("Connection")
		if err := clients[next.Add(1)%uint64(len(clients))].Do(&rc.Request, &rc.Response); err != nil {
			rc.Error(err.Error(), fasthttp.StatusBadGateway)
			return
		}
		rc.Response.Header.Del("Connection")
	})
}

func serve(ctx context.Context, addr string, handle fasthttp.RequestHandler) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := fasthttp.Server{Handler: handle, Name: "mock", NoDefaultDate: true, CloseOnShutdown: true, Logger: silent{}}
	ended := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer ended()
	if err := s.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

type silent struct{}

// Printf implements [fasthttp.Logger]: the client counts what goes wrong.
func (silent) Printf(string, ...any) {}
