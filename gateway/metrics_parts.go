// SPDX-License-Identifier: Apache-2.0

// Before: metrics.go. After: the parts' own counts.

package gateway

import (
	"maps"
	"slices"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/health"
	"kindex/gateway/index"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
	"kindex/gateway/route"
)

func branchName(b int) string { return policy.Branch(b).String() } //nolint:gosec // of an array of them

func (g *Gateway) writeIndex(e *exposition) {
	if g.index == nil {
		return
	}
	s := g.index.Stats()
	e.counter("index_answered_total", "Lookups that the index answered.", s.Answered)
	e.family("index_fail_open_total", "counter", "Lookups without an answer, by reason: the request is placed by load alone.")
	for i, r := range index.Reasons() {
		e.count(s.Failed[i], "reason", r.String())
	}
	e.family("index_partial_total", "counter", "Answers without the part of a host.")
	for _, host := range slices.Sorted(maps.Keys(s.Partial)) { // of the configured ones
		e.count(s.Partial[host], "host", host)
	}
	e.counter("index_twice_total", "Matches that two hosts named: workers are registered at both.", s.Twice)
	e.counter("index_pauses_total", "Times that the index was not asked for a while, since it had just failed several lookups.", s.Pauses)
	e.one("index_paused", "gauge", "1: it is not asked now.", oneIf(s.Paused))
	e.one("index_lost_seconds_total", "counter", "Time that failed lookups took.", s.Lost.Seconds())
	e.counter("index_loads_total", "Loads that came by the index's streams.", s.Readings)
	e.one("index_blocks", "gauge", "Blocks held by all workers, as told last.", float64(s.Blocks))
	e.one("index_waiting_workers", "gauge", "Workers, or hosts, that keep the index from being exact.", float64(len(g.index.Unready())))
}

func (g *Gateway) writeLoads(e *exposition) {
	s := g.loads.Stats()
	e.counter("load_questions_total", "Times that a worker was asked for its load since nobody had pushed it.", s.Asked)
	e.counter("load_question_failures_total", "Of them, those without a usable answer.", s.Failed)
	e.counter("load_questions_spared_total", "Times that a worker was not asked since its load had been pushed.", s.Spared)
	e.counter("load_answers_total", "Readings that became a holder's newest.", s.Readings)
}

func (g *Gateway) writeCache(e *exposition) {
	s := g.overlay.Stats()
	e.family("cache_tokens_total", "counter", "Tokens of prompts whose answers told what came out of a cache: prompt, available anywhere, with the worker that was chosen, delivered.")
	e.count(s.Prompt, "kind", "prompt")
	e.count(s.Available, "kind", "available")
	e.count(s.Chosen, "kind", "chosen")
	e.count(s.Delivered, "kind", "delivered")
	e.counter("cache_answers_total", "Answers compared with what was expected.", s.Answers)
	e.counter("cache_answers_exact_total", "Of them, those that delivered what was expected, to the token.", s.Exact)
	e.family("cache_difference_total", "counter", "Those answers by tokens delivered less tokens expected, in blocks, part of one being one.")
	for i, n := range s.Differences {
		e.count(n, "blocks", overlay.DifferenceName(i))
	}
	e.family("cache_entries", "gauge", "Entries beside the index: predicted of requests under way, confirmed by answers.")
	e.value(float64(s.PredictedEntries), "kind", "predicted")
	e.value(float64(s.ConfirmedEntries), "kind", "confirmed")
	e.family("cache_entries_bytes", "gauge", "Memory of them.")
	e.value(float64(s.PredictedBytes), "kind", "predicted")
	e.value(float64(s.ConfirmedBytes), "kind", "confirmed")
	e.family("cache_entries_total", "counter", "What became of them.")
	for _, c := range []struct {
		what string
		n    uint64
	}{
		{"predicted", s.Predicted},
		{"predicted_used", s.PredictedUsed},
		{"predicted_conflict", s.Conflicts},
		{"predicted_withdrawn", s.Withdrawn},
		{"predicted_indexed", s.Indexed},
		{"confirmed", s.Confirmed},
		{"confirmed_used", s.ConfirmedUsed},
		{"contradicted", s.Contradicted},
		{"emptied", s.Emptied},
		{"overtaken", s.Overtook},
		{"evicted", s.Evicted},
	} {
		e.count(c.n, "what", c.what)
	}
}

func (g *Gateway) writeHealth(e *exposition) {
	s := g.watch.Stats()
	e.family("vetoes_total", "counter", "Vetoes set on workers, by reason.")
	for i, n := range s.Set {
		e.count(n, "reason", fleet.VetoNames[i])
	}
	e.family("vetoed_workers", "gauge", "Workers that are passed over, by reason.")
	for i, n := range s.Vetoed {
		e.value(float64(n), "reason", fleet.VetoNames[i])
	}
	e.family("workers", "gauge", "Workers by state.")
	for i, n := range s.States {
		e.value(float64(n), "state", fleet.State(i).String()) //nolint:gosec // of an array of them
	}
	e.family("breaker_changes_total", "counter", "Changes of workers' breakers, by the state they went to.")
	for i, n := range s.Breakers {
		e.count(n, "to", health.BreakerNames[i])
	}
	e.family("probes_total", "counter", "Probes of workers, by result.")
	for i, n := range s.Probes {
		e.count(n, "result", health.Result(i).String()) //nolint:gosec // of an array of them
	}
	e.counter("shed_total", "Requests refused because all workers are overloaded.", s.Shed)
}

// workerGauge is what a scrape tells of each worker.
type workerGauge struct {
	name, kind, help string
	of               func(w *fleet.Worker, now int64) (v float64, known bool)
}

// sumOf adds up what the newest readings of a worker's ranks say.
func sumOf(f func(*fleet.Reading) int64) func(*fleet.Worker, int64) (float64, bool) {
	return func(w *fleet.Worker, _ int64) (float64, bool) {
		sum, known := int64(0), false
		for _, h := range w.Holders {
			if r := h.Reading(); r != nil {
				if n := f(r); n >= 0 {
					sum, known = sum+n, true
				}
			}
		}
		return float64(sum), known
	}
}

// always is a figure that is always known.
func always(f func(w *fleet.Worker) float64) func(*fleet.Worker, int64) (float64, bool) {
	return func(w *fleet.Worker, _ int64) (float64, bool) { return f(w), true }
}

func perRank(f func(*fleet.Holder) int64) func(*fleet.Worker, int64) (float64, bool) {
	return always(func(w *fleet.Worker) float64 {
		sum := int64(0)
		for _, h := range w.Holders {
			sum += f(h)
		}
		return float64(sum)
	})
}

var workerGauges = []workerGauge{
	{"worker_usable", "gauge", "1: ready, and nothing is held against it.", always(func(w *fleet.Worker) float64 { return oneIf(w.Usable()) })},
	{"worker_ready", "gauge", "1: ready.", always(func(w *fleet.Worker) float64 { return oneIf(w.State() == fleet.Ready) })},
	{"worker_in_flight", "gauge", "Requests that it carries for this gateway.", perRank((*fleet.Holder).InFlight)},
	{"worker_prefill_in_flight_tokens", "gauge", "Tokens that these are yet to prefill.", perRank((*fleet.Holder).PrefillInFlight)},
	{"worker_running", "gauge", "Requests that it runs, by its own word.", sumOf(func(r *fleet.Reading) int64 { return r.Running })},
	{"worker_waiting", "gauge", "Requests that wait there, by its own word.", sumOf(func(r *fleet.Reading) int64 { return r.Waiting })},
	{"worker_kv_usage", "gauge", "Share of its KV pool in use, of its fullest rank.", func(w *fleet.Worker, _ int64) (float64, bool) {
		most := -1.0
		for _, h := range w.Holders {
			if r := h.Reading(); r != nil {
				most = max(most, r.Usage)
			}
		}
		return most, most >= 0
	}},
	{"worker_load_age_seconds", "gauge", "Age of what it says of its load, of the rank whose is oldest.", func(w *fleet.Worker, now int64) (float64, bool) {
		oldest, known := int64(0), false
		for _, h := range w.Holders {
			if r := h.Reading(); r != nil {
				oldest, known = max(oldest, now-r.At), true
			}
		}
		return time.Duration(oldest).Seconds(), known
	}},
	{"worker_blocks", "gauge", "Cached blocks that it holds, as the index has it.", func(w *fleet.Worker, _ int64) (float64, bool) {
		sum, known := int64(0), false
		for _, h := range w.Holders {
			if n, ok := h.Held(); ok {
				sum, known = sum+n, true
			}
		}
		return float64(sum), known
	}},
	{"worker_silent_seconds", "gauge", "Time since its newest sign of life.", func(w *fleet.Worker, now int64) (float64, bool) {
		at := w.LastContact()
		return time.Duration(now - at).Seconds(), at != 0
	}},
}

// writeWorkers writes what there is of each worker, up to a bound.
func (g *Gateway) writeWorkers(e *exposition) {
	all := g.fleet.Workers()
	all = all[:min(len(all), maxWorkerSeries)]
	now := fleet.Now()
	for i := range workerGauges {
		d := &workerGauges[i]
		e.family(d.name, d.kind, d.help)
		for _, w := range all {
			if v, known := d.of(w, now); known {
				e.value(v, "worker", w.Spec.URL)
			}
		}
	}
	e.family("worker_cache_answers_total", "counter", "Answers by how they meet what the worker's events told: below half of it, above twice of it, all.")
	for _, w := range all {
		c := g.overlay.Worker(w)
		e.count(c.Answers, "worker", w.Spec.URL, "are", "all")
		e.count(c.Below, "worker", w.Spec.URL, "are", "below")
		e.count(c.Above, "worker", w.Spec.URL, "are", "above")
	}
	e.family("worker_cache_at_odds", "gauge", "1: its answers often tell less than its events (faulty, a veto), or more (hiding, none).")
	for _, w := range all {
		c := g.overlay.Worker(w)
		e.value(oneIf(c.Faulty), "worker", w.Spec.URL, "as", "faulty")
		e.value(oneIf(c.Hiding), "worker", w.Spec.URL, "as", "hiding")
	}
	m := g.met
	e.family("worker_tries_total", "counter", "Tries on a worker by how they ended.")
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, w := range all {
		if s := m.workers[w.ID]; s != nil {
			s.write(e, w.Spec.URL)
		}
	}
	m.shared.write(e, "other")
}

func (s *workerMetrics) write(e *exposition, worker string) {
	for k := range s.outcomes {
		if n := s.outcomes[k].Load(); n > 0 {
			e.count(n, "worker", worker, "outcome", route.OutcomeKind(k).String()) //nolint:gosec // of an array of them
		}
	}
}

func (g *Gateway) writeProgram(e *exposition) {
	e.family("refusals_total", "counter", "Callers turned away, by reason.")
	for i, r := range refusalReasons {
		e.count(g.gate.audit.refusals[i].Load(), "reason", r)
	}
	e.family("log_lines_dropped_total", "counter", "Log lines dropped because their sink was slow.")
	for _, s := range g.sinks {
		e.count(s.sink.Dropped(), "sink", s.name)
	}
	e.counter("config_reloads_total", "Times that the configuration was read again.", g.reloads.done.Load())
	e.counter("config_reloads_failed_total", "Times that it could not be: what was in force stayed.", g.reloads.failed.Load())
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
