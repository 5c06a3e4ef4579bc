// SPDX-License-Identifier: Apache-2.0

// Before: run.go. After: output.go, report.go.

package openloop

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"kindex/harness/trial"
)

// Times are quantiles in milliseconds.
type Times struct {
	N    int     `json:"n"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

// Summary is summary.json. Times are in the units that their names end in; shares are
// from 0 to 1; a share that nobody can tell is left out.
type Summary struct {
	Valid   bool     `json:"valid"`             // the replay itself kept up
	Invalid []string `json:"invalid,omitempty"` // why not
	Notes   []string `json:"notes,omitempty"`

	URL         string        `json:"url"`
	Model       string        `json:"model"`
	Prompt      string        `json:"prompt"`
	Trace       string        `json:"trace"`
	FirstRow    int           `json:"first_row"` // least and greatest number of a row
	LastRow     int           `json:"last_row"`
	Speedup     float64       `json:"speedup"`
	OneByOne    bool          `json:"one_by_one,omitempty"` // not an open loop: the speedup is not used
	Seed        uint64        `json:"seed"`
	WallS       float64       `json:"wall_s"`
	SpanS       float64       `json:"span_s"` // when the last request was due
	Interrupted bool          `json:"interrupted"`
	Machine     trial.Machine `json:"machine"`

	Requests Requests       `json:"requests"`
	Errors   map[string]int `json:"errors"` // by kind
	Finish   map[string]int `json:"finish"` // by reason
	Tokens   Tokens         `json:"tokens"`

	TTFT     Times `json:"ttft_ms"`
	ITL      Times `json:"itl_ms"`      // every gap
	MeanITL  Times `json:"mean_itl_ms"` // each answer's mean gap
	Latency  Times `json:"latency_ms"`  // whole answers
	Lateness Times `json:"lateness_ms"` // of sending
	Queue    Times `json:"queue_ms"`    // in the engine, as the fleet says

	Goodput   Goodput        `json:"goodput"`
	Cache     Cache          `json:"cache"`
	Oracle    *Oracle        `json:"oracle,omitempty"` // absent: nobody says the fleet's shape
	Reuse     PrefixReuse    `json:"prefix_reuse"`
	Best      *BestAtArrival `json:"best_at_arrival,omitempty"`
	Balance   *Balance       `json:"balance,omitempty"`
	Predicted *Predicted     `json:"predicted,omitempty"`
	Client    Client         `json:"client"`
}

// Requests counts them.
type Requests struct {
	Rows    int `json:"rows"`
	Sent    int `json:"sent"`
	OK      int `json:"ok"` // answered whole
	Failed  int `json:"failed"`
	Dropped int `json:"dropped"`  // too many in flight
	Cut     int `json:"cut"`      // on the way when the replay was ended
	NotSent int `json:"not_sent"` // not due when the replay was ended
}

// Tokens counts them; of answered requests but for Asked.
type Tokens struct {
	Asked        int     `json:"asked"`  // of prompts sent, as the trace counts
	Prompt       int     `json:"prompt"` // as engines count
	Output       int     `json:"output"`
	PromptPerS   float64 `json:"prompt_per_s"` // asked, over the time in which requests were sent
	OutputPerS   float64 `json:"output_per_s"`
	OutputPieces int     `json:"output_pieces"` // events with text
}

// Goodput is what was answered within the SLO: TTFT, and the mean ITL.
type Goodput struct {
	TTFTMs float64 `json:"slo_ttft_ms"`
	ITLMs  float64 `json:"slo_itl_ms"`
	Within int     `json:"within"`
	Share  float64 `json:"share"`    // of those that were due
	PerS   float64 `json:"per_s"`    // over the time to the last answer
	TTFT   int     `json:"ttft_met"` // answered whole, with TTFT within
	ITL    int     `json:"itl_met"`
}

// Cache is what engines did not compute again, of answered requests.
type Cache struct {
	Told    int      `json:"told"` // requests of which it is known
	Prompt  int      `json:"prompt_tokens"`
	Cached  int      `json:"cached_tokens"`
	Hit     *float64 `json:"hit,omitempty"`               // cached of prompt tokens
	Differs int      `json:"usage_differs"`               // requests of which the answer and the fleet say another number
	Source  string   `json:"source"`                      // usage, fleet or none
	Any     *float64 `json:"requests_with_hit,omitempty"` // share of requests with any cached token
	Mean    *float64 `json:"mean_request_hit,omitempty"`  // mean of the requests' own shares

	// Cached tokens over those that could have been, of the same requests. Absent where
	// nobody can tell.
	OverOracle *float64 `json:"hit_over_oracle,omitempty"`
	OverReuse  *float64 `json:"hit_over_prefix_reuse,omitempty"`
	OverBest   *float64 `json:"hit_over_best_at_arrival,omitempty"`
}

// Oracle is what the fleet would have reused of all rows behind an ideal router, by a
// run of the engine model in virtual time, whatever really happened. It depends on the
// rows and when they are due, answers' lengths, the seed and the fleet's shape alone, and
// so is equal in every replay of the same.
type Oracle struct {
	Workers   int     `json:"workers"`
	Places    int     `json:"places"`     // ranks of all workers
	Blocks    int     `json:"blocks"`     // of all places
	BlockSize int     `json:"block_size"` // tokens
	Router    string  `json:"router"`     // the ideal one that reused most
	Rows      int     `json:"rows"`
	Prompt    int     `json:"prompt_tokens"` // of all rows, as the trace counts
	Tokens    int     `json:"tokens"`
	Reuse     float64 `json:"reuse"` // of prompt tokens
}

// PrefixReuse is what one cache without bounds would have reused of all rows: of the
// trace and the block size alone.
type PrefixReuse struct {
	BlockSize int     `json:"block_size"` // tokens
	Rows      int     `json:"rows"`
	Prompt    int     `json:"prompt_tokens"` // of all rows, as the trace counts
	Tokens    int     `json:"tokens"`
	Reuse     float64 `json:"reuse"` // of prompt tokens
}

// BestAtArrival is what the best worker held of each answered request when that arrived,
// as the fleet says. It depends on what the router did before and on timing: another run
// has another.
type BestAtArrival struct {
	Requests int     `json:"requests"` // that the fleet says something of
	Prompt   int     `json:"prompt_tokens"`
	Tokens   int     `json:"tokens"`
	Reuse    float64 `json:"reuse"` // of prompt tokens
	ThisRun  bool    `json:"of_this_run_alone"`
}

// Balance is how evenly workers were used: the greatest over the mean, of all workers
// of the fleet.
type Balance struct {
	Requests float64       `json:"requests_max_over_mean"`
	Tokens   float64       `json:"prompt_tokens_max_over_mean"`
	Computed float64       `json:"computed_tokens_max_over_mean"` // prompt tokens that were not cached
	Workers  []WorkerShare `json:"workers"`
}

// WorkerShare is one worker's part.
type WorkerShare struct {
	Name     string `json:"name"`
	Requests int    `json:"requests"`
	Prompt   int    `json:"prompt_tokens"`
	Cached   int    `json:"cached_tokens"`
}

// Predicted is how well a gateway foretold cached tokens.
type Predicted struct {
	N         int     `json:"n"` // requests with both
	Predicted int     `json:"predicted_tokens"`
	Actual    int     `json:"actual_tokens"`
	Equal     int     `json:"equal"`
	Over      int     `json:"over"`  // foretold more
	Under     int     `json:"under"` // foretold less
	MeanError float64 `json:"mean_error_tokens"`
	MeanAbs   float64 `json:"mean_absolute_error_tokens"`
}

// Client is what the replay itself cost.
type Client struct {
	CPUS    float64 `json:"cpu_s"`
	Share   float64 `json:"cpu_share"` // of one core, while requests were being sent
	PerM    float64 `json:"cpu_s_per_million_prompt_tokens"`
	LateMs  float64 `json:"late_bound_ms"`
	Flying  int     `json:"max_in_flight_seen"`
	Limited int     `json:"max_in_flight"`
}

// alike is how far apart two counts may be that should be equal but for a template's
// tokens.
const alike = 0.05

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// times sorts its argument.
func times(d []time.Duration) Times {
	if len(d) == 0 {
		return Times{}
	}
	slices.Sort(d)
	sum := 0.0
	for _, x := range d {
		sum += ms(x)
	}
	return Times{len(d), ms(trial.Quantile(d, 0.5)), ms(trial.Quantile(d, 0.9)), ms(trial.Quantile(d, 0.99)), sum / float64(len(d)), ms(d[len(d)-1])}
}

func (h *histogram) times() Times {
	return Times{int(h.n.Load()), ms(h.quantile(0.5)), ms(h.quantile(0.9)), ms(h.quantile(0.99)), ms(h.mean()), ms(time.Duration(h.most.Load()))}
}

// ratio returns nil where there is nothing to divide by.
func ratio(a, b int) *float64 {
	if b == 0 {
		return nil
	}
	return new(float64(a) / float64(b))
}

func share(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (r *replay) summary() *Summary {
	s := &Summary{
		URL: r.o.URL, Model: r.model, Prompt: r.o.Prompt, Trace: r.trace.Name, Speedup: r.o.Speedup, OneByOne: r.o.OneByOne, Seed: r.o.Seed,
		WallS: r.wall.Seconds(), Interrupted: r.interrupted, Machine: r.machine, Errors: map[string]int{}, Finish: map[string]int{},
		ITL: r.client.gaps.times(), Notes: slices.Concat(r.trace.Notes, r.notes),
	}
	s.FirstRow, s.LastRow = math.MaxInt, 0
	for i := range r.recs {
		s.FirstRow, s.LastRow = min(s.FirstRow, r.recs[i].Row), max(s.LastRow, r.recs[i].Row)
	}
	if n := len(r.due); n > 0 {
		s.SpanS = r.due[n-1].Seconds()
	}
	s.count(r)
	for _, kind := range slices.Sorted(maps.Keys(s.Errors)) {
		if text := r.client.examples[kind]; text != "" {
			s.Notes = append(s.Notes, kind+", for example: "+text)
		}
	}
	s.timed(r)
	s.caches(r)
	s.foretold(r.recs)
	s.Balance = r.balance()
	s.doubt()
	s.judge(r)
	return s
}

// count counts requests and tokens.
func (s *Summary) count(r *replay) {
	q := &s.Requests
	q.Rows = len(r.recs)
	lastSent := time.Duration(0)
	for i := range r.recs {
		rec := &r.recs[i]
		if rec.sent() {
			q.Sent++
			s.Tokens.Asked += max(rec.Input, 1)
			lastSent = max(lastSent, rec.Sent)
		}
		switch rec.Error {
		case "":
			q.OK++
			s.Tokens.Prompt += rec.prompt()
			s.Tokens.Output += max(rec.Completion, 0)
			s.Tokens.OutputPieces += rec.Pieces
			s.Finish[orNone(rec.Finish)]++
		case errDropped:
			q.Dropped++
		case errNotSent:
			q.NotSent++
		case errInterrupted:
			q.Cut++
		default:
			q.Failed++
		}
		if rec.Error != "" && rec.Error != errNotSent && rec.Error != errInterrupted {
			s.Errors[rec.Error]++
		}
	}
	// A rate is of arrivals: what the last ones took to be answered is no part of it.
	if lastSent > 0 && q.Sent > 1 {
		s.Tokens.PromptPerS = float64(s.Tokens.Asked) / lastSent.Seconds()
	}
	if s.WallS > 0 {
		s.Tokens.OutputPerS = float64(s.Tokens.Output) / s.WallS
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// timed takes quantiles, and goodput.
func (s *Summary) timed(r *replay) {
	var first, mean, whole, late, queue []time.Duration
	g := &s.Goodput
	g.TTFTMs, g.ITLMs = ms(r.o.TTFT), ms(r.o.ITL)
	due := 0
	for i := range r.recs {
		rec := &r.recs[i]
		if rec.Error != errNotSent && rec.Error != errInterrupted {
			due++
		}
		if rec.sent() {
			late = append(late, rec.Sent-rec.Due)
		}
		ttft, answered := rec.ttft()
		if answered {
			first = append(first, ttft)
		}
		if !rec.ok() {
			continue
		}
		if rec.Pieces > 1 {
			mean = append(mean, rec.itl())
		}
		if rec.Queue >= 0 {
			queue = append(queue, time.Duration(rec.Queue*float64(time.Second)))
		}
		whole = append(whole, rec.End-rec.Sent)
		inTime, steady := answered && ttft <= r.o.TTFT, rec.itl() <= r.o.ITL
		if inTime {
			g.TTFT++
		}
		if steady {
			g.ITL++
		}
		if inTime && steady {
			g.Within++
		}
	}
	g.Share = share(g.Within, due)
	if s.WallS > 0 {
		g.PerS = float64(g.Within) / s.WallS
	}
	s.TTFT, s.MeanITL, s.Latency, s.Lateness, s.Queue = times(first), times(mean), times(whole), times(late), times(queue)
}

// caches sums up hits and what could have been hit.
func (s *Summary) caches(r *replay) {
	c := &s.Cache
	c.Source = "none"
	s.foreseen(r)
	var hitBest, ofReuse, ofOracle, anyHit int
	var best BestAtArrival
	shares := 0.0
	for i := range r.recs {
		rec := &r.recs[i]
		if rec.Cached != unknown {
			c.Source = "usage"
		} else if rec.FleetCached != unknown && c.Source == "none" {
			c.Source = "fleet"
		}
		if !rec.ok() || rec.cached() == unknown {
			continue
		}
		cached := rec.cached()
		c.Told++
		c.Prompt += rec.prompt()
		c.Cached += cached
		shares += share(cached, rec.prompt())
		ofReuse += rec.PrefixReuse
		ofOracle += max(rec.Oracle, 0)
		if cached > 0 {
			anyHit++
		}
		if rec.Cached != unknown && rec.FleetCached != unknown && rec.Cached != rec.FleetCached {
			c.Differs++
		}
		if rec.BestAtArrival != unknown {
			best.Requests++
			best.Prompt += rec.prompt()
			best.Tokens += rec.BestAtArrival
			hitBest += cached
		}
	}
	c.Hit, c.Any = ratio(c.Cached, c.Prompt), ratio(anyHit, c.Told)
	if c.Told > 0 {
		c.Mean = new(shares / float64(c.Told))
	}
	c.OverReuse = ratio(c.Cached, ofReuse)
	if r.oracle != nil {
		c.OverOracle = ratio(c.Cached, ofOracle)
	}
	if best.Requests > 0 {
		best.Reuse, best.ThisRun = share(best.Tokens, best.Prompt), true
		c.OverBest, s.Best = ratio(hitBest, best.Tokens), &best
	}
}

// foreseen sums up what was known before the first request.
func (s *Summary) foreseen(r *replay) {
	p := &s.Reuse
	p.BlockSize, p.Rows = r.block, len(r.recs)
	for i := range r.recs {
		p.Prompt += max(r.recs[i].Input, 1)
		p.Tokens += r.recs[i].PrefixReuse
	}
	p.Reuse = share(p.Tokens, p.Prompt)
	if r.oracle == nil {
		return
	}
	o := &Oracle{
		Workers: len(r.shapes), Blocks: size(r.shapes), BlockSize: r.shapes[0].BlockSize, Router: r.oracle.router,
		Rows: p.Rows, Prompt: p.Prompt, Tokens: r.oracle.total, Reuse: share(r.oracle.total, p.Prompt),
	}
	for i := range r.shapes {
		o.Places += max(r.shapes[i].Ranks, 1)
	}
	s.Oracle = o
}

// foretold compares predictions.
func (s *Summary) foretold(recs []Record) {
	var p Predicted
	sum, abs := 0, 0
	for i := range recs {
		rec := &recs[i]
		actual := rec.cached()
		if !rec.ok() || rec.Predicted == unknown || actual == unknown {
			continue
		}
		p.N++
		p.Predicted += rec.Predicted
		p.Actual += actual
		switch d := rec.Predicted - actual; {
		case d == 0:
			p.Equal++
		case d > 0:
			p.Over++
			sum, abs = sum+d, abs+d
		default:
			p.Under++
			sum, abs = sum+d, abs-d
		}
	}
	if p.N > 0 {
		p.MeanError, p.MeanAbs = float64(sum)/float64(p.N), float64(abs)/float64(p.N)
		s.Predicted = &p
	}
}

// balance counts by worker; nil where nobody names any.
func (r *replay) balance() *Balance {
	at := make(map[string]int)
	var b Balance
	add := func(name string) *WorkerShare {
		i, ok := at[name]
		if !ok {
			i = len(b.Workers)
			at[name] = i
			b.Workers = append(b.Workers, WorkerShare{Name: name})
		}
		return &b.Workers[i]
	}
	for i := range r.workers {
		add(r.workers[i].Name)
	}
	for i := range r.recs {
		if rec := &r.recs[i]; rec.sent() && rec.Worker != "" {
			w := add(rec.Worker)
			w.Requests++
			w.Prompt += rec.prompt()
			w.Cached += max(rec.cached(), 0)
		}
	}
	if len(b.Workers) == 0 {
		return nil
	}
	slices.SortStableFunc(b.Workers, func(x, y WorkerShare) int { return natural(x.Name, y.Name) })
	b.Requests = evenness(b.Workers, func(w *WorkerShare) int { return w.Requests })
	b.Tokens = evenness(b.Workers, func(w *WorkerShare) int { return w.Prompt })
	b.Computed = evenness(b.Workers, func(w *WorkerShare) int { return w.Prompt - w.Cached })
	return &b
}

// natural compares names so that w2 is before w10.
func natural(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func evenness(all []WorkerShare, of func(*WorkerShare) int) float64 {
	sum, most := 0, 0
	for i := range all {
		n := of(&all[i])
		sum, most = sum+n, max(most, n)
	}
	if sum == 0 {
		return 0
	}
	return float64(most) * float64(len(all)) / float64(sum)
}

// doubt notes what hints at prompts that the engine reads as others.
func (s *Summary) doubt() {
	t := &s.Tokens
	if s.Requests.OK == s.Requests.Sent && math.Abs(float64(t.Prompt-t.Asked)) > alike*float64(t.Asked) {
		s.Notes = append(s.Notes, fmt.Sprintf("engines count %d prompt tokens, the trace %d: a word is not a token (--words FILE, or --prompt tokens)", t.Prompt, t.Asked))
	}
	if most := s.Cache.OverReuse; most != nil && *most > 1+alike {
		s.Notes = append(s.Notes, fmt.Sprintf("%.2f times as many tokens were cached as prefix reuse allows: caches were not empty (--reset), or prompts are alike to the engine (--words FILE)", *most))
	}
}

// judge says whether the replay was an open loop, and what it cost.
func (s *Summary) judge(r *replay) {
	c := &s.Client
	c.CPUS, c.LateMs, c.Limited, c.Flying = r.cpu.Seconds(), ms(r.o.Late), r.o.InFlight, r.most
	if r.sending > 0 {
		c.Share = float64(r.sendingCPU) / float64(r.sending)
	}
	if s.Tokens.Asked > 0 {
		c.PerM = c.CPUS / (float64(s.Tokens.Asked) / 1e6)
	}
	if s.Lateness.P99 > c.LateMs {
		s.Invalid = append(s.Invalid, fmt.Sprintf("1 of 100 requests was sent over %.1f ms late (bound %.1f ms): this client or its machine was too busy", s.Lateness.P99, c.LateMs))
	}
	if n := s.Requests.Dropped; n > 0 {
		s.Invalid = append(s.Invalid, fmt.Sprintf("%d requests were not sent: %d were in flight", n, r.o.InFlight))
	}
	s.Valid = len(s.Invalid) == 0
}
