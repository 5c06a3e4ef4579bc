// SPDX-License-Identifier: Apache-2.0

// Before: the front, at the end of each request; the parts, which count for themselves.
// After: monitors.

package gateway

import (
	"bytes"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"kindex/gateway/fleet"
	"kindex/gateway/route"
	"kindex/internal/settings"
)

// routes are the labels of requests, by path; those of a path that is not among them
// share the last.
var routes = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/generate", "/tokenize", "/detokenize", "grpc/Generate", "grpc/Embed", "other"}

// statuses are the codes with a counter of their own; others share the last.
var statuses = []int{200, 400, 401, 403, 404, 408, 413, 415, 422, 429, 499, 500, 502, 503, 504}

// maxWorkerSeries bounds the workers that have series of their own; those that joined
// after that many share one set, so that a scrape has a bound.
const maxWorkerSeries = 1_024

// metrics are what the gateway counts itself. What its parts count is read from them at
// each scrape.
//
// Concurrency: any goroutine; nothing on a request's way takes a lock.
type metrics struct {
	process *prometheus.Registry // of Go and the process

	requests   [][]atomic.Uint64 // by routes and statuses
	firstToken *histogram
	duration   *histogram
	place      *histogram // of all that is done before a worker is known
	tokenise   *histogram
	lookup     *histogram
	decide     *histogram

	mu      sync.RWMutex
	workers map[string]*workerMetrics // by worker id
	shared  workerMetrics             // of those past the bound
}

// workerMetrics are one worker's answers by outcome.
type workerMetrics struct {
	outcomes [route.Outcomes]atomic.Uint64
}

func newMetrics() *metrics {
	m := &metrics{
		process:    prometheus.NewRegistry(),
		firstToken: newHistogram(time.Millisecond, 18),
		duration:   newHistogram(time.Millisecond, 21),
		place:      newHistogram(time.Microsecond, 22),
		tokenise:   newHistogram(time.Microsecond, 22),
		lookup:     newHistogram(500*time.Nanosecond, 22),
		decide:     newHistogram(500*time.Nanosecond, 16),
		workers:    map[string]*workerMetrics{},
	}
	m.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for range routes {
		m.requests = append(m.requests, make([]atomic.Uint64, len(statuses)+1))
	}
	return m
}

func (m *metrics) joined(w *fleet.Worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.workers) < maxWorkerSeries {
		m.workers[w.ID] = &workerMetrics{}
	}
}

func (m *metrics) left(w *fleet.Worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.workers, w.ID)
}

// of returns the series of a worker.
func (m *metrics) of(id string) *workerMetrics {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if w := m.workers[id]; w != nil {
		return w
	}
	return &m.shared
}

// request counts one that is over.
func (m *metrics) request(t *answered) {
	r := slices.Index(routes, t.Path)
	if r < 0 {
		r = len(routes) - 1
	}
	s := slices.Index(statuses, t.Status)
	if s < 0 {
		s = len(statuses)
	}
	m.requests[r][s].Add(1)
	m.duration.observe(t.End - t.Start)
	if t.Placed != 0 {
		m.place.observe(t.Placed - t.Start)
	}
	k := &t.Marks
	for _, part := range [...]struct {
		h            *histogram
		began, ended int64
	}{{m.tokenise, k.Resolve, k.Resolved}, {m.lookup, k.Lookup, k.LookedUp}, {m.decide, k.Decide, k.Decided}} {
		if part.ended != 0 {
			part.h.observe(part.ended - part.began)
		}
	}
	switch {
	case t.FirstToken != 0:
		m.firstToken.observe(t.FirstToken - t.Start)
	case t.FirstByte != 0:
		m.firstToken.observe(t.FirstByte - t.Start)
	}
	if t.Worker != "" {
		m.of(t.Worker).outcomes[t.Outcome].Add(1)
	}
}

// serveMetrics answers with all series, as Prometheus' text.
func (g *Gateway) serveMetrics(rc *fasthttp.RequestCtx) {
	var b bytes.Buffer
	families, err := g.met.process.Gather()
	if err != nil {
		g.log.Warn("metrics of the process", "error", err)
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			g.log.Warn("metrics of the process", "error", err)
		}
	}
	e := exposition{b: make([]byte, 0, 64<<10)}
	g.writeMetrics(&e)
	rc.SetContentType(string(format))
	rc.Response.SetBodyRaw(append(b.Bytes(), e.b...))
}

// writeMetrics writes what is the gateway's own.
func (g *Gateway) writeMetrics(e *exposition) {
	version, revision := settings.BuildVersion()
	e.family("build_info", "gauge", "What runs here; the value is always 1.")
	e.value(1, "version", version, "revision", revision, "go_version", runtime.Version(), "policy", g.cfg.Policy, "kv_index", g.cfg.KVIndex)
	g.writeRequests(e)
	g.writeRouting(e)
	g.writeIndex(e)
	g.writeLoads(e)
	g.writeCache(e)
	g.writePrompts(e)
	g.writeHealth(e)
	g.writeWorkers(e)
	g.writeProgram(e)
}

func (g *Gateway) writeRequests(e *exposition) {
	m := g.met
	e.family("requests_total", "counter", "Requests answered, by path and status; 499: the client hung up.")
	for r, path := range routes {
		for s := range m.requests[r] {
			if n := m.requests[r][s].Load(); n > 0 {
				code := "other"
				if s < len(statuses) {
					code = strconv.Itoa(statuses[s])
				}
				e.count(n, "route", path, "code", code)
			}
		}
	}
	for _, h := range []struct {
		name, help string
		h          *histogram
	}{
		{"time_to_first_token_seconds", "Time from a request to the first token of its answer, or its first byte where tokens are not seen.", m.firstToken},
		{"request_seconds", "Time from a request to the end of its answer.", m.duration},
		{"tokenise_seconds", "Time to find the tokens of a prompt.", m.tokenise},
		{"lookup_seconds", "Time to ask the index who holds them.", m.lookup},
		{"decide_seconds", "Time of a decision.", m.decide},
		{"place_seconds", "Time from a request to the choice of its first worker: reading, waiting for a place, tokens, lookup, decision.", m.place},
	} {
		e.family(h.name, "histogram", h.help)
		h.h.write(e, e.name, "{")
	}
	f := &g.front.stats
	e.one("requests_in_flight", "gauge", "Requests being carried.", float64(g.active()))
	e.counter("own_answers_total", "Requests answered without a worker.", f.own.Load())
	e.counter("malformed_requests_total", "Requests that are no HTTP, too large or too slow.", f.malformed.Load())
	e.counter("unknown_requests_total", "Requests for paths or methods that nobody serves.", f.unknown.Load())
	e.family("retries_total", "counter", "Tries after a first one, by how the one before ended.")
	for k := range f.retries {
		e.count(f.retries[k].Load(), "reason", route.OutcomeKind(k).String()) //nolint:gosec // of an array of them
	}
	e.counter("hang_ups_total", "Requests whose client hung up.", f.gone.Load())
	e.counter("cut_answers_total", "Answers that a worker broke off after their first byte.", f.cut.Load())
	a := g.admit.Stats()
	e.one("admitted_in_flight", "gauge", "Requests that have a place.", float64(a.Running))
	e.one("queue_length", "gauge", "Requests that wait for a place.", float64(a.Waiting))
	e.counter("queued_total", "Requests that waited for a place.", a.Queued)
	e.family("admission_refused_total", "counter", "Requests that got no place, by reason.")
	e.count(a.Full, "reason", "queue_full")
	e.count(a.Late, "reason", "queue_timeout")
	e.count(a.GaveUp, "reason", "client_gone")
}

func (g *Gateway) writeRouting(e *exposition) {
	s := g.routed()
	e.family("policy_branch_total", "counter", "Decisions by the way they came about.")
	for b, n := range s.Branches {
		e.count(n, "branch", branchName(b))
	}
	e.family("tries_total", "counter", "Tries by how they ended.")
	for k, n := range s.Outcomes {
		e.count(n, "outcome", route.OutcomeKind(k).String())
	}
	e.counter("unknown_model_total", "Requests for a model that nobody serves.", s.UnknownModel)
	e.counter("unplaced_total", "Requests that no worker could take.", s.Refused)
	e.counter("blind_total", "Requests placed without a lookup: no tokens, or no index.", s.Blind)
	e.counter("lookups_total", "Questions to the index.", s.Lookups)
	e.counter("lookups_failed_total", "Lookups that failed: placed by load alone.", s.LookupsFailed)
	e.counter("lookups_matched_total", "Lookups that named a worker of the pool.", s.Matched)
	e.counter("lookups_unknown_only_total", "Lookups that named only instances that no worker has.", s.MatchedNobody)
	e.counter("unknown_holders_total", "Instances named by the index that no worker has.", s.UnknownHolders)
	e.counter("other_block_size_total", "Lookups made again: the index counts in other blocks than a worker's registration says.", s.OtherBlocks)
	e.counter("other_prompt_total", "Answers whose prompt had other tokens than were looked up.", s.OtherTokens)
	e.counter("drained_decisions_total", "Decisions made again because the worker began to drain.", s.Drained)
}
