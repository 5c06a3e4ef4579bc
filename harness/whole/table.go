// SPDX-License-Identifier: Apache-2.0

// Before: look.go, and the replay's standing. After: a person.

package whole

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"kindex/harness/openloop"
)

// show shows the table until ctx ends. A program that ends by itself is an error.
func (r *run) show(ctx context.Context) error {
	t := time.NewTicker(r.screen.Period(r.cfg.Every))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		for _, p := range r.procs {
			if err := p.Ended(); err != nil {
				return err
			}
		}
		r.draw(ctx)
	}
}

// draw shows the table once. A gateway that does not answer is said in its place.
func (r *run) draw(ctx context.Context) {
	g, err := look(ctx, r.gateway)
	if err != nil {
		if ctx.Err() == nil {
			r.screen.Draw(fmt.Appendf(nil, "%v\n", err))
		}
		return
	}
	slices.SortFunc(g.workers, func(a, b worker) int {
		return cmp.Or(cmp.Compare(len(a.label()), len(b.label())), cmp.Compare(a.label(), b.label()))
	})
	r.mu.Lock()
	s, round, failed := r.standing, r.round, r.failed
	r.mu.Unlock()
	var b bytes.Buffer
	table(&b, g, s)
	switch {
	case s != nil:
		b.WriteString(requests(s, round, failed))
	case len(r.cfg.Workers) == 0:
		b.WriteString("requests: none yet, what an ideal router would reuse is worked out first\n")
	}
	b.WriteString(caches(g))
	fmt.Fprintf(&b, "%v, Ctrl-C ends\n", time.Since(r.began).Round(time.Second))
	r.screen.Draw(b.Bytes())
}

// table is a row for each worker. REQUESTS, PROMPT and HIT are of the replay's round;
// before a real fleet REQUESTS are all that went well, and nobody tells the others.
func table(b *bytes.Buffer, g *gatewayView, s *openloop.Standing) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\nWORKER\tSTATE\tREQUESTS\tIN FLIGHT\tRUNS\tWAIT\tKV\tPROMPT\tHIT\tSHARE\tBLOCKS\tURL\n")
	for i := range g.workers {
		x := &g.workers[i]
		running, waiting, usage := x.load()
		ended, prompt, hit, part := fmt.Sprint(g.metrics[fmt.Sprintf("worker_tries_total{worker=%q,outcome=\"ok\"}", x.URL)]), "-", "-", "-"
		if s != nil {
			p := s.Workers[x.ID]
			ended, prompt, hit, part = fmt.Sprint(p.Requests), fmt.Sprint(p.Prompt), fmt.Sprint(p.Cached), share(float64(p.Cached), float64(p.Prompt))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%.0f%%\t%s\t%s\t%s\t%.0f\t%s\n",
			x.label(), x.state(), ended, x.InFlight, running, waiting, 100*usage, prompt, hit, part, g.of(x, "worker_blocks"), x.URL)
	}
	_ = w.Flush() // into memory
	if len(g.workers) == 0 {
		b.WriteString("no worker\n")
	}
}

// requests says how the replay stands. Tokens are of the answers that are there: of each
// the engine's own count, and the oracle's.
func requests(s *openloop.Standing, round, before int) string {
	oracle := "no oracle"
	if s.Foreseen {
		oracle = fmt.Sprintf("oracle %s, hit/oracle %s", share(float64(s.Oracle), float64(s.Prompt)), ratio(float64(s.Cached), float64(s.Oracle)))
	}
	return fmt.Sprintf("requests, round %d, %v of %v: %d of %d answered, %d in flight, %d errors; TTFT p50 %s, p99 %s; hit %s of %d tokens, %s\n", round,
		s.At.Round(time.Second), s.Last.Round(time.Second), s.OK, s.Rows, s.InFlight, before+s.Failed,
		first(s.TTFTs, s.TTFT50), first(s.TTFTs, s.TTFT99), share(float64(s.Cached), float64(s.Prompt)), s.Prompt, oracle)
}

// caches says what the gateway expected of caches and what came of it, since it began.
func caches(g *gatewayView) string {
	return fmt.Sprintf("gateway: %.0f answers, %.0f exactly as expected; tokens in a cache anywhere %.0f, with the chosen worker %.0f, delivered %.0f; lookups answered %.0f, not in time %.0f\n",
		g.metrics["cache_answers_total"], g.metrics["cache_answers_exact_total"], g.tokens("available"), g.tokens("chosen"), g.tokens("delivered"),
		g.metrics["index_answered_total"], g.sum("index_fail_open_total"))
}

func share(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*part/whole)
}

func ratio(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", part/whole)
}

func first(n int, d time.Duration) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}
