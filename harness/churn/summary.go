// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"kindex/harness/trial"
)

// Flat is the most by which the last segment may exceed the second, in percent.
const Flat = 10

// Summary is several trials: medians, what was slow in all of them, and each one.
type Summary struct {
	trial.Report
	Machine trial.Machine           `json:"machine"`
	Drift   map[string]trial.Spread `json:"drift_percent"` // last segment against second
	// FlatMemory and FlatLookup: the medians' drift of bytes per membership, and of the
	// lookups' p50, is at most Flat.
	FlatMemory bool `json:"flat_memory"`
	FlatLookup bool `json:"flat_lookup"`
	Slow       Slow `json:"operations"`
	Control    Slow `json:"control"`
	// Again are the events over 1 ms in more than one trial: the index's own doing, and
	// not the machine's.
	Again   []int64   `json:"over_1ms_again"`
	Foreign []float64 `json:"foreign_cpus"`
	Runs    []*Result `json:"runs"`
}

// Measure takes n trials in fresh processes.
func Measure(ctx context.Context, o Options, n int, p *trial.Progress, stderr io.Writer) (*Summary, error) {
	runs, foreign, err := trial.Fresh(ctx, n, o.Args(), p, stderr, func(r *Result) string {
		return fmt.Sprintf("%.0f ns of CPU an event, lookup p50 drifts by %+.1f %%", r.CPUPerBlockOp, r.Drift.P50)
	})
	if err != nil {
		return nil, err
	}
	return summarize(runs, foreign), nil
}

func summarize(runs []*Result, foreign []float64) *Summary {
	s := &Summary{Machine: trial.ThisMachine(), Foreign: foreign, Runs: runs, Drift: map[string]trial.Spread{}}
	var reports []*trial.Report
	for _, r := range runs {
		reports = append(reports, &r.Report)
		s.Slow.add(r.Slow)
		s.Control.add(r.Control)
	}
	s.Report = trial.Summarize(reports)
	s.Again = again(runs)
	for name, f := range drifts {
		s.Drift[name] = trial.SpreadOf(runs, func(r *Result) float64 { return f(&r.Drift) })
	}
	s.FlatMemory, s.FlatLookup = s.Drift["bytes_per_membership"].Median <= Flat, s.Drift["lookup_p50"].Median <= Flat
	return s
}

// again returns the events that were over 1 ms in more than one trial.
func again(runs []*Result) []int64 {
	times := map[int64]int{}
	for _, r := range runs {
		for _, x := range r.Slowest {
			times[x.Event]++
		}
	}
	out := []int64{}
	for event, n := range times {
		if n > 1 {
			out = append(out, event)
		}
	}
	slices.Sort(out)
	return out
}

var drifts = map[string]func(*Drift) float64{
	"cpu_per_event":        func(d *Drift) float64 { return d.CPU },
	"lookup_p50":           func(d *Drift) float64 { return d.P50 },
	"lookup_p99":           func(d *Drift) float64 { return d.P99 },
	"bytes_per_membership": func(d *Drift) float64 { return d.Bytes },
	"resident":             func(d *Drift) float64 { return d.Resident },
}

// WriteJSON writes s as one object.
func (s *Summary) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WriteText writes the segments as a Markdown table, medians over the trials.
func (s *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	one := s.Runs[0]
	fmt.Fprintf(&b, "%s\n", s.Machine)
	fmt.Fprintf(&b, "index %s, kernels %s, %d workers, seed %d, %d trials in fresh processes (medians); events of one block; a clock read, %.0f ns, is taken off each\n\n",
		one.Index, one.Level, one.Workers, s.Seed, len(s.Runs), one.Clock)
	fmt.Fprint(&b, "| segment | events | CPU ns an event | lookup p50 | p99 | bytes a membership | runs | free | resident | over 100 us | over 1 ms | longest, us | control's over 100 us, 1 ms, longest |\n")
	fmt.Fprint(&b, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	line := func(name string, of func(*Result) *Segment) {
		med := func(f func(*Segment) float64) float64 {
			return trial.SpreadOf(s.Runs, func(r *Result) float64 { return f(of(r)) }).Median
		}
		var slow, control Slow
		for _, r := range s.Runs {
			slow.add(of(r).Slow)
			control.add(of(r).Control)
		}
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.0f | %.2f | %.2f | %.2f | %.2f | %d | %d | %.0f | %d, %d, %.0f |\n", name,
			med(func(s *Segment) float64 { return float64(s.Events) }), med(func(s *Segment) float64 { return s.CPUPerEvent }),
			med(func(s *Segment) float64 { return float64(s.Lookup.P50) }), med(func(s *Segment) float64 { return float64(s.Lookup.P99) }),
			med(func(s *Segment) float64 { return s.PerMembership }), med(func(s *Segment) float64 { return s.Purpose["runs"] }),
			med(func(s *Segment) float64 { return s.Purpose["free"] }), med(func(s *Segment) float64 { return s.Resident }),
			slow.Over100us, slow.Over1ms, float64(slow.Longest)/1e3, control.Over100us, control.Over1ms, float64(control.Longest)/1e3)
	}
	line("fill", func(r *Result) *Segment { return &r.Fill })
	segments := len(one.Segments)
	for i := range segments {
		line(fmt.Sprint(i+1), func(r *Result) *Segment { return &r.Segments[i] })
	}
	yes := func(flat bool) string {
		return map[bool]string{true: "flat", false: "NOT flat"}[flat]
	}
	fmt.Fprintf(&b, "\nlast segment against second: CPU an event %s %%, lookup p50 %s %% (%s), p99 %s %%, bytes a membership %s %% (%s), resident %s %%; flat: at most %d %%\n",
		s.Drift["cpu_per_event"].Text(1), s.Drift["lookup_p50"].Text(1), yes(s.FlatLookup), s.Drift["lookup_p99"].Text(1),
		s.Drift["bytes_per_membership"].Text(1), yes(s.FlatMemory), s.Drift["resident"].Text(1), Flat)
	fmt.Fprintf(&b, "writer operations in %.1f s of CPU: %d over 100 us, %d over 1 ms, the longest %.0f us; the control in %.1f s: %d, %d, %.0f us\n",
		s.Slow.CPU, s.Slow.Over100us, s.Slow.Over1ms, float64(s.Slow.Longest)/1e3, s.Control.CPU, s.Control.Over100us, s.Control.Over1ms, float64(s.Control.Longest)/1e3)
	if len(s.Runs) > 1 {
		fmt.Fprintf(&b, "over 1 ms at the same event in more than one trial: %d\n", len(s.Again))
	}
	fmt.Fprintf(&b, "%d lookups, %d wrong; foreign CPUs during trials: %.2f\n", s.Exact.Lookups, s.Exact.Wrong, trial.Median(s.Foreign))
	_, err := io.WriteString(w, b.String())
	return err
}
