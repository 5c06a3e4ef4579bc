// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// WriteText writes what a person wants to know first.
func (s *Summary) WriteText(w io.Writer) error { return s.writeReport(w, nil) }

// writeReport writes report.md.
func (s *Summary) writeReport(w io.Writer, plots []string) error {
	var b strings.Builder
	verdict := "valid"
	if !s.Valid {
		verdict = "INVALID"
	}
	pace := fmt.Sprintf("%g times as fast", s.Speedup)
	if s.OneByOne {
		pace = "one by one"
	}
	fmt.Fprintf(&b, "# Replay of %s, rows %d to %d, %s: %s\n\n", s.Trace, s.FirstRow, s.LastRow, pace, verdict)
	for _, why := range s.Invalid {
		fmt.Fprintf(&b, "- INVALID: %s.\n", why)
	}
	for _, note := range s.Notes {
		fmt.Fprintf(&b, "- %s.\n", note)
	}
	if s.Interrupted {
		fmt.Fprintf(&b, "- Ended early: %d requests were on the way, %d not yet due.\n", s.Requests.Cut, s.Requests.NotSent)
	}
	fmt.Fprintf(&b, "\nEndpoint %s, model %s, prompts as %s, seed %d, %.1f s.\n\n", s.URL, s.Model, s.Prompt, s.Seed, s.WallS)
	s.tables(&b)
	for _, p := range plots {
		fmt.Fprintf(&b, "![%s](%s)\n\n", strings.TrimSuffix(p, ".svg"), p)
	}
	fmt.Fprintf(&b, "Machine: %s.\n", s.Machine)
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Summary) tables(b *strings.Builder) {
	q := &s.Requests
	b.WriteString("| requests | |\n| --- | ---: |\n")
	fmt.Fprintf(b, "| sent of rows | %d of %d |\n| answered whole | %d |\n| failed | %d |\n| dropped by this client | %d |\n", q.Sent, q.Rows, q.OK, q.Failed, q.Dropped)
	for _, kind := range slices.Sorted(maps.Keys(s.Errors)) {
		fmt.Fprintf(b, "| error: %s | %d |\n", kind, s.Errors[kind])
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Finish)) {
		fmt.Fprintf(b, "| finish: %s | %d |\n", kind, s.Finish[kind])
	}
	fmt.Fprintf(b, "| prompt tokens/s offered | %.0f |\n| output tokens/s | %.0f |\n\n", s.Tokens.PromptPerS, s.Tokens.OutputPerS)

	b.WriteString("| ms | p50 | p90 | p99 | mean | max | n |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, row := range []struct {
		name string
		t    *Times
	}{{"TTFT", &s.TTFT}, {"ITL, every gap", &s.ITL}, {"ITL, mean of an answer", &s.MeanITL}, {"latency", &s.Latency}, {"queue in the engine", &s.Queue}, {"sent late", &s.Lateness}} {
		if row.t.N > 0 {
			fmt.Fprintf(b, "| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %d |\n", row.name, row.t.P50, row.t.P90, row.t.P99, row.t.Mean, row.t.Max, row.t.N)
		}
	}
	g := &s.Goodput
	fmt.Fprintf(b, "\nGoodput (TTFT within %g ms and mean ITL within %g ms): %d requests, %s of those due, %.2f a second.\n\n", g.TTFTMs, g.ITLMs, g.Within, percent(&g.Share), g.PerS)

	c := &s.Cache
	b.WriteString("| prefix cache | tokens | of prompt tokens | cached of it |\n| --- | ---: | ---: | ---: |\n")
	if c.Told > 0 {
		fmt.Fprintf(b, "| cached (%s) | %d | %s | |\n", c.Source, c.Cached, percent(c.Hit))
	}
	if o := s.Oracle; o != nil {
		fmt.Fprintf(b, "| oracle: the engine model of %d workers, %d blocks of %d tokens, behind an ideal router (%s) | %d | %s | %s |\n",
			o.Workers, o.Blocks, o.BlockSize, o.Router, o.Tokens, percent(&o.Reuse), percent(c.OverOracle))
	}
	fmt.Fprintf(b, "| prefix reuse: one cache without bounds | %d | %s | %s |\n", s.Reuse.Tokens, percent(&s.Reuse.Reuse), percent(c.OverReuse))
	if f := s.Best; f != nil {
		fmt.Fprintf(b, "| best worker at arrival, of this run alone | %d | %s | %s |\n", f.Tokens, percent(&f.Reuse), percent(c.OverBest))
	}
	b.WriteString("\n")

	if p := s.Predicted; p != nil {
		fmt.Fprintf(b, "Foretold cached tokens of %d requests: %d equal, %d over, %d under; mean error %.1f tokens, mean absolute error %.1f.\n\n", p.N, p.Equal, p.Over, p.Under, p.MeanError, p.MeanAbs)
	}
	if w := s.Balance; w != nil {
		fmt.Fprintf(b, "Balance over %d workers, greatest over mean: requests %.3f, prompt tokens %.3f, computed tokens %.3f.\n\n", len(w.Workers), w.Requests, w.Tokens, w.Computed)
	}
	fmt.Fprintf(b, "This client: %.1f s of CPU, %s of one core, %.3f s for a million prompt tokens; %d requests in flight at most.\n\n", s.Client.CPUS, percent(&s.Client.Share), s.Client.PerM, s.Client.Flying)
}

func percent(x *float64) string {
	if x == nil || math.IsNaN(*x) {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", *x*100)
}
