// SPDX-License-Identifier: Apache-2.0

// Before: clients. After: front_proxy.go for what an engine answers, the parts that
// answer the rest.

package gateway

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/route"
	"kindex/gateway/upstream"
	"kindex/internal/hangup"
)

// placer names a worker for each try of a request; [route.Router] is one.
type placer interface {
	Place(ctx context.Context, q *route.Request) (*route.Placement, error)
}

// frontOptions are what a front needs. What is nil is done without, but for Upstream,
// Router and Models.
type frontOptions struct {
	Upstream *upstream.Client
	Router   placer
	Models   func() []string // that somebody serves

	// Enter admits a request, and returns what is to be called at its end. Its error
	// goes to the client.
	Enter func(ctx context.Context) (leave func(), err error)
	// Ready returns why no requests should be sent here; nil: they should.
	Ready func() []string
	// Authorize reports whether a client may send what it sent to a path; where not, it
	// has answered.
	Authorize func(rc *fasthttp.RequestCtx, path string) bool
	// OwnsAuthorization keeps clients' Authorization from engines.
	OwnsAuthorization bool
	Tracing           *tracing
	// Answered hears of each request at its end; it keeps nothing of a.
	Answered func(a *answered)
	// Mounts serve what is at these paths and below.
	Mounts map[string]fasthttp.RequestHandler

	Retries int // tries after the first one
	// Pool returns who serves a model now. nil: who did when a request was placed.
	Pool func(model string) *fleet.Pool
	// StandsStill reports whether a worker that is taken for wedged is so by more than
	// the silence of its streams. nil: that is not known.
	StandsStill func(w *fleet.Worker) bool

	FirstByte time.Duration // of an answer; 0: no limit
	Stall     time.Duration // between two pieces of an answer; 0: no limit

	WriteStall  time.Duration // a client that takes nothing; 0: no limit
	ReadTimeout time.Duration // a whole request
	IdleTimeout time.Duration // between requests
	MaxBody     int           // bytes of a request
	MaxHead     int
}

// front is the gateway's HTTP server.
//
// Concurrency: any goroutine.
type front struct {
	o      frontOptions
	server *fasthttp.Server
	conns  clientConns
	stats  frontStats

	retries atomic.Int64 // as of the options, or a reload

	ending sync.Once
	stop   chan struct{}
	swept  chan struct{}
}

// newFront returns a front that serves nothing yet. It has goroutines until shutdown.
func newFront(o frontOptions) *front {
	f := &front{o: o, stop: make(chan struct{}), swept: make(chan struct{})}
	f.conns.open = make(map[*clientConn]struct{})
	f.conns.writeStall = o.WriteStall
	f.retries.Store(int64(o.Retries))
	f.conns.watcher, _ = hangup.New() // nil where the system has none: the next write sees it
	f.server = &fasthttp.Server{
		Handler:               f.serveHTTP,
		ErrorHandler:          f.refuseMalformed,
		ExpectHandler:         f.expect,
		NoDefaultServerHeader: true,
		NoDefaultDate:         true,
		NoDefaultContentType:  true,
		ReadTimeout:           o.ReadTimeout,
		IdleTimeout:           o.IdleTimeout,
		MaxRequestBodySize:    o.MaxBody,
		ReadBufferSize:        o.MaxHead,
		CloseOnShutdown:       true,
		SecureErrorLogMessage: true,
		Logger:                noLog{},
		// A multipart body would be parsed into files.
		DisablePreParseMultipartForm: true,
	}
	go f.sweep()
	return f
}

// noLog drops what the HTTP server logs: of each client that breaks off, a line.
type noLog struct{}

// Printf implements fasthttp.Logger.
func (noLog) Printf(string, ...any) {}

func (f *front) sweep() {
	defer close(f.swept)
	period := 250 * time.Millisecond
	for _, d := range []time.Duration{f.o.WriteStall, f.o.ReadTimeout, f.o.IdleTimeout} {
		if d > 0 {
			period = max(min(period, d/4), time.Millisecond)
		}
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
			f.conns.sweep(sinceEpoch(), f.look)
		}
	}
}

// serve serves ln until shutdown. What secures its connections comes over them: over
// is given a listener of plain ones; nil: they stay plain. It may be called for several
// listeners.
func (f *front) serve(ln net.Listener, over func(net.Listener) net.Listener) error {
	ln = &clientListener{Listener: ln, all: &f.conns}
	if over != nil {
		ln = over(ln)
	}
	return f.server.Serve(ln)
}

// shutdown takes no more connections, waits for the requests under way until ctx ends,
// and then breaks off what is left.
func (f *front) shutdown(ctx context.Context) error {
	err := f.server.ShutdownWithContext(ctx)
	f.conns.closeAll()
	f.ending.Do(func() { close(f.stop) })
	<-f.swept
	if f.conns.watcher != nil {
		err = errors.Join(err, f.conns.watcher.Close())
	}
	return err
}

// An engineRoute is a path that engines serve.
type engineRoute struct {
	kind openai.Kind
	path string
}

// engineRoutes are those paths.
var engineRoutes = map[string]*engineRoute{
	"/v1/chat/completions": {openai.Chat, "/v1/chat/completions"},
	"/v1/completions":      {openai.Completion, "/v1/completions"},
	"/v1/embeddings":       {openai.Embedding, "/v1/embeddings"},
	"/generate":            {openai.Generate, "/generate"},
	"/tokenize":            {openai.Tokenize, "/tokenize"},
	"/detokenize":          {openai.Detokenize, "/detokenize"},
}

// serveHTTP serves one request.
func (f *front) serveHTTP(rc *fasthttp.RequestCtx) {
	path := rc.Path()
	if r := engineRoutes[string(path)]; r != nil {
		switch {
		case !rc.IsPost():
			f.wrongMethod(rc, "POST")
		case f.o.Authorize == nil || f.o.Authorize(rc, r.path):
			f.proxy(rc, r)
		}
		return
	}
	switch string(path) {
	case "/health", "/livez":
		f.get(rc, f.alive)
	case "/readyz":
		f.get(rc, f.ready)
	case "/v1/models":
		if f.o.Authorize == nil || f.o.Authorize(rc, "/v1/models") {
			f.get(rc, f.models)
		}
	default:
		if id, ok := strings.CutPrefix(string(path), "/v1/models/"); ok && id != "" {
			if f.o.Authorize == nil || f.o.Authorize(rc, "/v1/models") {
				f.get(rc, func(rc *fasthttp.RequestCtx) { f.model(rc, id) })
			}
			return
		}
		if h := f.mounted(string(path)); h != nil {
			h(rc)
			return
		}
		f.stats.unknown.Add(1)
		f.refuse(rc, &openai.Error{
			Status: 404, Type: openai.InvalidRequest, Code: "unknown_url",
			Message: "Unknown request URL: " + printable(rc.Method()) + " " + printable(path) + ".",
		})
	}
}

// mounted returns who serves a path; nil: nobody.
func (f *front) mounted(path string) fasthttp.RequestHandler {
	for len(path) > 1 {
		if h := f.o.Mounts[path]; h != nil {
			return h
		}
		path = path[:strings.LastIndexByte(path, '/')]
	}
	return nil
}

// get serves GET and HEAD by h.
func (f *front) get(rc *fasthttp.RequestCtx, h fasthttp.RequestHandler) {
	if !rc.IsGet() && !rc.IsHead() {
		f.wrongMethod(rc, "GET, HEAD")
		return
	}
	h(rc)
}

func (f *front) wrongMethod(rc *fasthttp.RequestCtx, allowed string) {
	f.stats.unknown.Add(1)
	rc.Response.Header.Set(fasthttp.HeaderAllow, allowed)
	f.refuse(rc, &openai.Error{
		Status: 405, Type: openai.InvalidRequest, Code: "method_not_allowed",
		Message: printable(rc.Path()) + " takes " + allowed + ", not " + printable(rc.Method()) + ".",
	})
}
