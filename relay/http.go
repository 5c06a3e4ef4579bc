// SPDX-License-Identifier: Apache-2.0

// Before: probes, scrapers, operators. After: Host.

package relay

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"

	"kindex/internal/connlimit"
	"kindex/internal/settings"
)

// Limits of the HTTP server. Chosen, not measured: its requests have no bodies.
const (
	httpReadTime    = 10 * time.Second
	httpWriteTime   = 30 * time.Second
	httpIdleTime    = 2 * time.Minute
	httpHeaderBytes = 16 << 10
	httpConnections = 1_024
)

// httpRoute is one path. Probes are open to those who show no token.
type httpRoute struct {
	path  string
	probe bool
	serve func(*Host, http.ResponseWriter)
}

var httpRoutes = []httpRoute{
	{"/livez", true, (*Host).serveLive},
	{"/readyz", true, (*Host).serveReady},
	{"/metrics", false, (*Host).serveMetrics},
	{"/status", false, (*Host).serveStatus},
}

func (h *Host) newHTTP() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(h.serveHTTP),
		ReadTimeout:       httpReadTime,
		ReadHeaderTimeout: httpReadTime,
		WriteTimeout:      httpWriteTime,
		IdleTimeout:       httpIdleTime,
		MaxHeaderBytes:    httpHeaderBytes,
		ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelDebug), // clients' doing, mostly
	}
}

// httpListener is the HTTP server's listener, with TLS where there is any.
func (h *Host) httpListener() net.Listener {
	ln := connlimit.New(h.httpLn, httpConnections, &h.met.httpTurnedAway)
	if h.tlsHTTP != nil {
		ln = tls.NewListener(ln, h.tlsHTTP)
	}
	return ln
}

// serveHTTP answers one request.
func (h *Host) serveHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			h.met.httpPanics.Add(1)
			h.log.Error("request failed", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			refuse(w, http.StatusInternalServerError, "internal error: this relay's log has it")
		}
	}()
	i := slices.IndexFunc(httpRoutes, func(route httpRoute) bool { return route.path == r.URL.Path })
	h.met.request(i)
	switch {
	case i < 0:
		refuse(w, http.StatusNotFound, "unknown path: must be one of "+httpPaths())
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, r.URL.Path+" must be asked by GET")
	default:
		if err := h.authorize(r, httpRoutes[i].probe); err != nil {
			h.met.httpDenied.Add(1)
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, err.Error())
			return
		}
		httpRoutes[i].serve(h, w)
	}
}

// authorize returns why a request is refused. A probe needs no token, so that what
// it shows does not matter.
func (h *Host) authorize(r *http.Request, probe bool) error {
	if h.options.tokens == nil || probe {
		return nil
	}
	_, err := h.options.tokens.Check([]byte(r.Header.Get("Authorization")))
	return err
}

func httpPaths() string {
	var paths []string
	for _, r := range httpRoutes {
		paths = append(paths, r.path)
	}
	return strings.Join(paths, ", ")
}

// refuse answers {"error":"..."}.
func refuse(w http.ResponseWriter, code int, text string) {
	reply(w, code, map[string]string{"error": text})
}

// reply answers with v as JSON.
func reply(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(`{"error":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // a client that is gone
}

func (h *Host) serveLive(w http.ResponseWriter) {
	reply(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (h *Host) serveMetrics(w http.ResponseWriter) {
	families, err := h.met.registry.Gather()
	if err != nil {
		h.log.Error("metrics", "error", err)
		refuse(w, http.StatusInternalServerError, "internal error: this relay's log has it")
		return
	}
	var b bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			h.log.Error("metrics", "error", err)
		}
	}
	w.Header().Set("Content-Type", string(format))
	_, _ = w.Write(b.Bytes()) // a client that is gone
}

// readyReply is the body of /readyz.
type readyReply struct {
	Ready   bool          `json:"ready"`
	Why     string        `json:"why,omitempty"`
	Engines []readyEngine `json:"engines"`
}

type readyEngine struct {
	Name   string      `json:"name"`
	Kind   string      `json:"kind"`
	Listen string      `json:"listen"`
	Ready  bool        `json:"ready"`
	Ranks  []readyRank `json:"ranks"`
}

type readyRank struct {
	Rank     int     `json:"rank"`
	Primed   bool    `json:"primed"`
	Exact    bool    `json:"exact"`
	Why      string  `json:"why,omitempty"`
	Sequence *uint64 `json:"sequence"` // null: no batch yet
}

// ready returns the state of all engines: ready when every rank is primed.
func (h *Host) ready() readyReply {
	re := readyReply{Ready: true, Engines: []readyEngine{}}
	switch {
	case h.draining.Load():
		re.Ready, re.Why = false, "shutting down"
	case !h.serving.Load():
		return readyReply{Why: "starting", Engines: re.Engines}
	}
	for _, e := range h.engines {
		one := readyEngine{Name: e.engine.Name(), Kind: e.engine.Kind(), Listen: e.listen, Ready: true}
		for _, r := range e.engine.Ranks() {
			in := r.Info()
			rank := readyRank{Rank: in.Rank, Primed: in.Standing.Primed, Exact: in.Standing.Exact, Why: in.Standing.Why}
			if in.Has {
				rank.Sequence = &in.Sequence
			}
			one.Ready = one.Ready && rank.Primed
			one.Ranks = append(one.Ranks, rank)
		}
		if !one.Ready && re.Why == "" {
			re.Why = fmt.Sprintf("engine %s is not primed", one.Name)
		}
		re.Ready = re.Ready && one.Ready
		re.Engines = append(re.Engines, one)
	}
	return re
}

func (h *Host) serveReady(w http.ResponseWriter) {
	re := h.ready()
	code := http.StatusOK
	if !re.Ready {
		code = http.StatusServiceUnavailable
	}
	reply(w, code, re)
}

func (h *Host) serveStatus(w http.ResponseWriter) {
	version, revision := settings.BuildVersion()
	st := statusReply{
		Version: version, Revision: revision, UptimeSeconds: time.Since(h.began).Seconds(),
		HashTokens: h.cfg.HashTokens, Ready: h.ready().Ready, Engines: []statusEngine{},
	}
	if h.serving.Load() {
		for _, e := range h.engines {
			st.Engines = append(st.Engines, statusOfEngine(e, time.Now()))
		}
	}
	reply(w, http.StatusOK, &st)
}
