// SPDX-License-Identifier: Apache-2.0

package mooncake

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"kindex/harness/trial"
)

// Summary is several trials of one kind: the median of each figure, and all of them.
type Summary struct {
	Result                // a field that is a number is the median; the others are the first trial's
	Machine trial.Machine `json:"machine"`
	Foreign []float64     `json:"foreign_cpus"` // of each trial
	Runs    []*Result     `json:"runs"`
}

// Runs measures n times, each in a fresh process.
func Runs(ctx context.Context, o Options, n int, p *trial.Progress, stderr io.Writer) (*Summary, error) {
	runs, foreign, err := trial.Fresh(ctx, n, o.Args(), p, stderr, func(r *Result) string {
		return fmt.Sprintf("%.2f ns of CPU a block operation", r.CPUPerBlockOp)
	})
	if err != nil {
		return nil, err
	}
	s := &Summary{Result: *runs[0], Machine: trial.ThisMachine(), Foreign: foreign, Runs: runs}
	var reports []*trial.Report
	for _, r := range runs {
		reports = append(reports, &r.Report)
	}
	s.Report = trial.Summarize(reports)
	// Of single trials: the runs have them.
	s.InOrder, s.Wrote, s.BareEvents, s.BareMix, s.Half, s.Full, s.Contended = nil, nil, nil, nil, nil, nil, nil
	return s, nil
}

// WriteJSON writes s as one object.
func (s *Summary) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WriteText writes s for people.
func (s *Summary) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s\n", s.Machine)
	fmt.Fprintf(w, "%s: %s, %d operations, index %s, %d shards, %d lanes, kernels %s, %d trials in fresh processes (medians)\n",
		s.Corpus, s.Mode, s.Ops, s.Index, s.Shards, s.Lanes, s.Level, len(s.Runs))
	fmt.Fprintf(w, "  %.2f ns of CPU a block operation, %.1f M block operations a CPU second, %d block operations in %.3f s\n", s.CPUPerBlockOp, s.BlockOpsPerS/1e6, s.BlockOps, s.Wall)
	if r := s.Runs[0]; r.BareMix != nil {
		fmt.Fprintf(w, "  bare: %.2f ns a block of events, %.2f ns with lookups inline\n", r.BareEvents.PerBlock(), r.BareMix.PerBlock())
	}
	if s.Lookup != nil {
		fmt.Fprintf(w, "  lookup: p50 %d ns, p99 %d ns, p99.9 %d ns; %.0f ns of CPU\n", s.Lookup.P50, s.Lookup.P99, s.Lookup.P999, s.CPUPerLookup)
	}
	if r := s.Runs[0]; r.Full != nil {
		fmt.Fprintf(w, "  once all is applied: %.0f ns of CPU a lookup, %.0f by sets of holders, %.0f in batches of 32 (first trial)\n", r.Full.CPU, r.Full.Grouped, r.Full.Batched)
	}
	if r := s.Runs[0]; r.Half != nil && r.Half.Latency != nil {
		fmt.Fprintf(w, "  half loaded: p50 %d ns, p99 %d ns, p99.9 %d ns; %.0f ns of CPU\n", r.Half.Latency.P50, r.Half.Latency.P99, r.Half.Latency.P999, r.Half.CPU)
	}
	if s.Memory != nil {
		fmt.Fprintf(w, "  %d memberships of %d blocks: %.1f bytes a membership, %.1f a distinct block\n", s.Memory.Memberships, s.Memory.Blocks, s.PerMembership, s.PerBlock)
	}
	if s.KeptUp != nil {
		fmt.Fprintf(w, "  offered %.2f M block operations a second, achieved %.2f M, kept up: %v\n", s.Offered/1e6, s.Achieved/1e6, *s.KeptUp)
	}
	if s.Exact != nil {
		fmt.Fprintf(w, "  compared with the reference: %d lookups, %d wrong\n", s.Exact.Lookups, s.Exact.Wrong)
	}
	_, err := fmt.Fprintf(w, "  foreign CPUs during trials: %.2f\n", trial.Median(s.Foreign))
	return err
}
