// SPDX-License-Identifier: Apache-2.0

// Before: operators and monitors, at the admin address; at the data address by way of
// the front. After: the parts that answer.

package gateway

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/gateway/openai"
	"kindex/indexsrv"
)

// Paths beside those of engines.
const (
	metricsPath = "/metrics"
	indexPath   = "/index" // of an index in this process
	profilePath = "/debug/pprof"
)

// newAdminServer returns the server of the admin address: probes, workers, metrics,
// profiles. It asks no front, so that no load there keeps it from answering.
func (g *Gateway) newAdminServer() *fasthttp.Server {
	mounts := g.mounts(&g.admin)
	return &fasthttp.Server{
		Handler: func(rc *fasthttp.RequestCtx) {
			path := string(rc.Path())
			switch path {
			case "/health", "/livez":
				g.front.get(rc, g.front.alive)
				return
			case "/readyz":
				g.front.get(rc, g.front.ready)
				return
			}
			for at, h := range mounts {
				if path == at || strings.HasPrefix(path, at+"/") {
					h(rc)
					return
				}
			}
			g.front.refuse(rc, &openai.Error{
				Status: fasthttp.StatusNotFound, Type: openai.InvalidRequest, Code: "unknown_url",
				Message: "Unknown URL of the admin address: " + printable(rc.Path()) + ".",
			})
		},
		Name: "kindex", NoDefaultServerHeader: true, NoDefaultContentType: true, CloseOnShutdown: true, SecureErrorLogMessage: true, Logger: noLog{},
		ReadTimeout: g.cfg.ReadTimeout, IdleTimeout: g.cfg.IdleTimeout, WriteTimeout: maxProfile + g.cfg.WriteStallTimeout,
		MaxRequestBodySize: int(g.cfg.MaxBodyBytes), ReadBufferSize: int(g.cfg.MaxHeaderBytes), Concurrency: g.cfg.MaxConnections,
	}
}

// mounts are what is served at a port besides engines' routes and probes.
func (g *Gateway) mounts(p *port) map[string]fasthttp.RequestHandler {
	return map[string]fasthttp.RequestHandler{
		metricsPath: g.guarded(p, accessWatch, func(rc *fasthttp.RequestCtx, _ actor) { g.front.get(rc, g.serveMetrics) }),
		workersPath: func(rc *fasthttp.RequestCtx) {
			need := accessChange
			if rc.IsGet() || rc.IsHead() {
				need = accessWatch
			}
			g.guarded(p, need, g.serveWorkers)(rc)
		},
		indexPath:   g.guarded(p, accessWatch, func(rc *fasthttp.RequestCtx, _ actor) { g.front.get(rc, g.serveIndex) }),
		profilePath: g.guarded(p, accessProfile, func(rc *fasthttp.RequestCtx, _ actor) { g.front.get(rc, g.serveProfile) }),
	}
}

// guarded is h for those who may.
func (g *Gateway) guarded(p *port, need access, h func(*fasthttp.RequestCtx, actor)) fasthttp.RequestHandler {
	return func(rc *fasthttp.RequestCtx) {
		a, no := g.gate.admit(rc, p, string(rc.Path()), need)
		if no == nil {
			h(rc, a)
			return
		}
		g.deny(rc, no)
	}
}

// deny answers whoever may not.
func (g *Gateway) deny(rc *fasthttp.RequestCtx, no *denial) {
	g.front.refuse(rc, &no.Error)
	if no.bearer != "" {
		rc.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, no.bearer)
	}
}

// serveWorkers answers for /workers; who changes something stands in the log.
func (g *Gateway) serveWorkers(rc *fasthttp.RequestCtx, a actor) {
	g.workers.Handle(rc)
	if rc.IsGet() || rc.IsHead() {
		return
	}
	var err error
	if status := rc.Response.StatusCode(); status >= fasthttp.StatusBadRequest {
		err = fmt.Errorf("answered %d", status)
	}
	g.gate.audit.changed(g.gate.actorOf(rc, a), "workers", err,
		slog.String("method", printable(rc.Method())), slog.String("path", cut(printable(rc.Request.URI().PathOriginal()))),
		slog.String("location", cut(string(rc.Response.Header.Peek(fasthttp.HeaderLocation)))))
}

// Bounds of a profile of the CPU. Chosen, not measured.
const (
	usualProfile = 30 * time.Second
	maxProfile   = 2 * time.Minute
)

// serveIndex answers /index/workers, /index/dump and /index/digest: whom an index in
// this process follows and what it holds of them, as an index host tells it.
func (g *Gateway) serveIndex(rc *fasthttp.RequestCtx) {
	in, ok := g.index.(interface{ Host() *indexsrv.Host })
	if ok && in.Host().ServeContent(rc, strings.TrimPrefix(string(rc.Path()), indexPath)) {
		return
	}
	why := "known are " + indexPath + "/workers, /dump and /digest"
	if !ok {
		why = "there is no index in this process"
	}
	g.front.refuse(rc, &openai.Error{
		Status: fasthttp.StatusNotFound, Type: openai.InvalidRequest, Code: "unknown_url", Message: "Unknown URL " + printable(rc.Path()) + ": " + why + ".",
	})
}

// serveProfile answers /debug/pprof/NAME with a profile of the process, for go tool
// pprof, or as text with ?debug=1. profile takes its time (?seconds=30), one at once.
func (g *Gateway) serveProfile(rc *fasthttp.RequestCtx) {
	name := strings.Trim(strings.TrimPrefix(string(rc.Path()), profilePath), "/")
	var b bytes.Buffer
	switch p := pprof.Lookup(name); {
	case name == "":
		b.WriteString("profile?seconds=30\n")
		for _, p := range pprof.Profiles() {
			fmt.Fprintf(&b, "%s %d\n", p.Name(), p.Count())
		}
	case name == "profile":
		if err := g.profileCPU(&b, rc.QueryArgs()); err != nil {
			g.front.refuse(rc, err)
			return
		}
	case p == nil:
		g.front.refuse(rc, &openai.Error{
			Status: fasthttp.StatusNotFound, Type: openai.InvalidRequest, Code: "unknown_url",
			Message: fmt.Sprintf("%.100q: no such profile; %s lists them", name, profilePath),
		})
		return
	default:
		if err := p.WriteTo(&b, rc.QueryArgs().GetUintOrZero("debug")); err != nil {
			panic("BUG: gateway: a profile cannot be written: " + err.Error())
		}
	}
	rc.SetContentType("application/octet-stream")
	if name == "" || rc.QueryArgs().GetUintOrZero("debug") > 0 {
		rc.SetContentType("text/plain; charset=utf-8")
	}
	rc.SetBody(b.Bytes())
}

// profileCPU profiles for as long as the request says, or until the gateway drains.
func (g *Gateway) profileCPU(b *bytes.Buffer, args *fasthttp.Args) *openai.Error {
	d := usualProfile
	if args.Has("seconds") {
		n, err := args.GetUint("seconds")
		d = time.Duration(n) * time.Second
		if err != nil || d < time.Second || d > maxProfile {
			return &openai.Error{
				Status: fasthttp.StatusBadRequest, Type: openai.InvalidRequest, Code: "invalid_parameter", Param: "seconds",
				Message: fmt.Sprintf("seconds: must be 1 to %d", int(maxProfile.Seconds())),
			}
		}
	}
	if err := pprof.StartCPUProfile(b); err != nil {
		return &openai.Error{Status: fasthttp.StatusServiceUnavailable, Type: openai.ServerError, Code: "busy", Message: "another profile is under way, try again"}
	}
	defer pprof.StopCPUProfile()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(d)
	for now := range tick.C {
		if g.draining.Load() || !now.Before(end) {
			break
		}
	}
	return nil
}
