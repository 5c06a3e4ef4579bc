// SPDX-License-Identifier: Apache-2.0

// Before: soak.go. After: one line of windows.jsonl.

package drill

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kindex/harness/proc"
	"kindex/harness/trial"
)

// Window is what one window of a soak saw. Figures without a host are of the steady one.
type Window struct {
	Number     int                `json:"window"` // from 1
	Segment    int                `json:"segment"`
	Began      float64            `json:"began"` // unix seconds
	Seconds    float64            `json:"seconds"`
	Batches    uint64             `json:"batches"` // published
	HitTokens  int                `json:"hit_tokens"`
	Oracle     int                `json:"oracle_tokens"`
	HitRatio   float64            `json:"hit_oracle"`  // depth answered / depth true, of sampled prompts
	OverTokens int                `json:"over_tokens"` // answered beyond the truth of the moment of asking
	Lookups    int                `json:"lookups"`
	Degraded   int                `json:"degraded_answers"`
	P50        float64            `json:"lookup_p50_ms"`
	P99        float64            `json:"lookup_p99_ms"`
	RSS        map[string]uint64  `json:"rss_bytes"`        // by program
	Bytes      map[string]float64 `json:"index_bytes"`      // live, by host
	Held       map[string]float64 `json:"index_membership"` // the same
	Looks      int                `json:"looks"`            // at content under load
	Overclaims int                `json:"overclaims"`       // of these, active and not the truth
	QuietMS    float64            `json:"quiet_ms"`         // from silence until all are exact
	Partial    int                `json:"partly_known"`     // engines that a restarted host cannot know all of
	Wrong      []string           `json:"wrong,omitempty"`
	Faults     []Injected         `json:"faults"`
}

// line says a window in words.
func (w *Window) line() string {
	said := fmt.Sprintf("hit/oracle %.4f, lookups p50 %.2f ms, p99 %.2f ms, RSS %.1f MB, live %.0f KB, exact %.0f ms after silence, %d faults",
		w.HitRatio, w.P50, w.P99, float64(w.RSS[steadyIndex])/1e6, w.Bytes[steadyName]/1e3, w.QuietMS, len(w.Faults))
	if n := len(w.Wrong); n > 0 {
		said += fmt.Sprintf(", WRONG: %s", w.Wrong[0])
	}
	return said
}

// What a window's end is for, and how many prompts are asked there of each host.
const (
	quietShare   = 0.2 // of the window, at its end
	quietLookups = 50
	maxWindowSay = 5
)

// looker asks hosts under load. One goroutine's.
type looker struct {
	w    *world
	rng  *rand.Rand
	out  *Window
	took []float64 // ms, of lookups
}

// window runs one window: faults under load, then silence and the truth.
func (w *world) window(ctx context.Context, number, segment int, d time.Duration) (*Window, error) {
	began := time.Now()
	out := &Window{Number: number, Segment: segment, Began: float64(began.UnixMilli()) / 1e3, RSS: map[string]uint64{}, Bytes: map[string]float64{}, Held: map[string]float64{}}
	before := w.published()
	out.Faults = w.unknown()
	drawn := plan(w.e.o.Seed, number, w.workers, seconds(d.Seconds()*(1-quietShare)-1))
	out.Faults = append(out.Faults, slices.DeleteFunc(drawn, func(in Injected) bool {
		return slices.ContainsFunc(out.Faults, func(have Injected) bool { return in.worker != nil && have.worker == in.worker })
	})...)
	l := &looker{w: w, out: out, rng: rand.New(rand.NewPCG(w.e.o.Seed, uint64(number)+1<<32))} //nolint:gosec // seeded on purpose
	lctx, stop := context.WithCancel(ctx)
	defer stop()
	var looking sync.WaitGroup
	looking.Go(func() { l.run(lctx) })
	for _, k := range w.workers {
		k.pub.SetRate(w.rate)
	}
	err := w.breakAll(ctx, out.Faults)
	if err == nil {
		err = pause(ctx, time.Until(began.Add(seconds(d.Seconds()*(1-quietShare)))))
	}
	stop()
	looking.Wait()
	if err != nil {
		return nil, err
	}
	for _, k := range w.workers {
		k.pub.SetRate(0)
	}
	if err := pause(ctx, 50*time.Millisecond); err != nil {
		return nil, err
	}
	took, wrongs, err := w.quiet(ctx)
	if err != nil {
		return nil, err
	}
	out.QuietMS = float64(took.Microseconds()) / 1e3
	out.Batches = w.published() - before
	for _, what := range wrongs {
		out.say(what)
	}
	l.settled(ctx)
	l.finish()
	if err := w.ended(); err != nil {
		return nil, err
	}
	if err := w.weigh(ctx, out); err != nil {
		return nil, err
	}
	err = pause(ctx, time.Until(began.Add(d)))
	out.Seconds = time.Since(began).Seconds()
	return out, err
}

// unknown are the restarts that make engines knowable again to the host that lost them.
func (w *world) unknown() []Injected {
	var out []Injected
	for _, k := range w.workers {
		for _, h := range w.hosts {
			if !h.knows(k) {
				out = append(out, Injected{Kind: "engine-restarted", Worker: k.name, worker: k})
				break
			}
		}
	}
	return out
}

// published counts the batches of all lives.
func (w *world) published() uint64 {
	var n uint64
	for _, k := range w.workers {
		n += k.pub.Published()
	}
	return n
}

func (w *Window) say(what string) {
	if len(w.Wrong) < maxWindowSay {
		w.Wrong = append(w.Wrong, what)
	}
}

// run asks the steady host for prompts, and looks at a host's content at times.
func (l *looker) run(ctx context.Context) {
	for turn := 0; ctx.Err() == nil; turn++ {
		l.ask(ctx)
		if turn%10 == 0 {
			h := l.w.hosts[l.rng.IntN(len(l.w.hosts))]
			l.look(ctx, h, l.w.workers[l.rng.IntN(len(l.w.workers))])
		}
		_ = pause(ctx, watchEvery)
	}
}

// look holds one host's view of one engine against the truth, under load.
func (l *looker) look(ctx context.Context, h *soakHost, k *soakWorker) {
	index := h.index.Load()
	before, err := index.listenersOf(ctx, k.name)
	if err != nil {
		return // killed, or counted by what settles
	}
	seen, err := index.observeOf(ctx, k.name)
	if err != nil {
		return
	}
	after, err := index.listenersOf(ctx, k.name)
	if err != nil {
		return
	}
	if h.lives[k] == nil {
		h.lives[k] = map[int]int{}
	}
	l.out.Looks++
	if what := overclaims(before, seen, after, k.pub, h.lives[k]); what != "" {
		l.out.Overclaims++
		l.out.say(fmt.Sprintf("%s of %s, under load: %s", h.name, k.name, what))
	}
}

// ask looks one prompt up at the steady host.
func (l *looker) ask(ctx context.Context) {
	k := l.w.workers[l.rng.IntN(len(l.w.workers))]
	p, ok := k.pub.Sample(l.rng)
	if !ok {
		return
	}
	index := l.w.hosts[0].index.Load()
	began := time.Now()
	depth, degraded, err := index.lookupOf(ctx, k.name, &p)
	took := time.Since(began)
	if err != nil {
		if ctx.Err() == nil {
			l.out.say("a lookup was not answered: " + err.Error())
		}
		return
	}
	l.took = append(l.took, float64(took.Microseconds())/1e3)
	l.out.Lookups++
	if degraded {
		l.out.Degraded++
	}
	for rank, want := range p.Depth {
		l.out.Oracle += want
		l.out.HitTokens += min(depth[rank], want)
		l.out.OverTokens += max(depth[rank]-want, 0)
	}
}

// settled holds answers of every host against the truth, all being silent.
func (l *looker) settled(ctx context.Context) {
	for _, h := range l.w.hosts {
		for range quietLookups {
			k := l.w.workers[l.rng.IntN(len(l.w.workers))]
			p, ok := k.pub.Sample(l.rng)
			if !ok || !h.knows(k) {
				continue
			}
			depth, degraded, err := h.index.Load().lookupOf(ctx, k.name, &p)
			if err != nil {
				l.out.say(h.name + ": " + err.Error())
				return
			}
			if degraded || !slices.Equal(depth, p.Depth) {
				l.out.say(fmt.Sprintf("%s of %s: a prompt of %d tokens is held to %v by the ranks, the index says %v (degraded: %v)", h.name, k.name, len(p.Tokens), p.Depth, depth, degraded))
			}
		}
	}
}

func (l *looker) finish() {
	slices.Sort(l.took)
	l.out.P50, l.out.P99 = trial.Quantile(l.took, 0.5), trial.Quantile(l.took, 0.99)
	if l.out.Oracle > 0 {
		l.out.HitRatio = float64(l.out.HitTokens) / float64(l.out.Oracle)
	}
	for _, h := range l.w.hosts {
		for _, k := range l.w.workers {
			if !h.knows(k) {
				l.out.Partial++
			}
		}
	}
}

// weigh reads what all programs hold.
func (w *world) weigh(ctx context.Context, out *Window) error {
	pids := map[string]int{"harness": os.Getpid()}
	for _, k := range w.workers {
		if k.relay != nil {
			pids["relay "+k.name] = k.relay.PID()
		}
	}
	for _, h := range w.hosts {
		index := h.index.Load()
		pids["index "+h.name] = index.proc.PID()
		err := index.call(ctx, http.MethodGet, "/metrics", nil, func(r io.Reader) error {
			bytes, held, err := readMetrics(r)
			out.Bytes[h.name], out.Held[h.name] = bytes, held
			return err
		})
		if err != nil {
			return err
		}
	}
	for name, pid := range pids {
		c, err := proc.CostOf(pid)
		if err != nil {
			return err
		}
		out.RSS[name] = c.RSS
	}
	return nil
}

// readMetrics sums an index host's bytes and memberships.
func readMetrics(r io.Reader) (bytes, held float64, err error) {
	in := bufio.NewScanner(r)
	for in.Scan() {
		name, value, ok := strings.Cut(in.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		into := &bytes
		switch name {
		case "kindex_index_bytes":
		case "kindex_index_memberships":
			into = &held
		default:
			continue
		}
		if i := strings.LastIndexByte(value, ' '); i >= 0 {
			value = value[i+1:]
		}
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return 0, 0, fmt.Errorf("metrics: %q", in.Text())
		}
		*into += v
	}
	return bytes, held, in.Err()
}
