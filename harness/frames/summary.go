// SPDX-License-Identifier: Apache-2.0

package frames

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"kindex/harness/trial"
)

// Row is the trials with one number of lanes.
type Row struct {
	Lanes   int          `json:"lanes"`
	PerS    trial.Spread `json:"stored_blocks_per_wall_s"`
	CPU     trial.Spread `json:"cpu_ns_per_stored_block"`
	Costs   Costs        `json:"costs"` // medians
	Foreign []float64    `json:"foreign_cpus"`
	Runs    []*Result    `json:"runs"`
}

// medianCosts takes each cost's median.
func medianCosts(all []Costs) Costs {
	of := func(f func(Costs) float64) float64 { return trial.SpreadOf(all, f).Median }
	return Costs{
		Decode: of(func(c Costs) float64 { return c.Decode }), Hash: of(func(c Costs) float64 { return c.Hash }),
		Copies: of(func(c Costs) float64 { return c.Copies }), Apply: of(func(c Costs) float64 { return c.Apply }),
		Queue: of(func(c Costs) float64 { return c.Queue }), All: of(func(c Costs) float64 { return c.All }),
	}
}

// Summary is a row for each number of lanes. Its report is that of the first.
type Summary struct {
	trial.Report
	Machine trial.Machine `json:"machine"`
	Rows    []Row         `json:"rows"`
	// Ratio is the throughput of two lanes to that of one; Void says why it means
	// nothing here.
	Ratio float64 `json:"two_lanes_to_one,omitempty"`
	Void  string  `json:"void,omitempty"`
}

// quiet is how many CPUs others may keep busy while lanes are compared.
const quiet = 0.1

// Measure takes n trials of each number of lanes, in turn, each in a fresh process.
func Measure(ctx context.Context, o Options, numbers []int, n int, p *trial.Progress, stderr io.Writer) (*Summary, error) {
	s := &Summary{Machine: trial.ThisMachine(), Rows: make([]Row, len(numbers))}
	for range n {
		for i, lanes := range numbers {
			o.Lanes = lanes
			runs, foreign, err := trial.Fresh(ctx, 1, o.Args(), p, stderr, func(r *Result) string {
				return fmt.Sprintf("%d lanes: %.2f M blocks a second, %.0f ns of CPU a block", r.Lanes, r.PerS/1e6, r.Costs.All)
			})
			if err != nil {
				return nil, err
			}
			r := &s.Rows[i]
			r.Lanes, r.Runs, r.Foreign = lanes, append(r.Runs, runs...), append(r.Foreign, foreign...)
		}
	}
	s.summarize(runtime.NumCPU())
	return s, nil
}

func (s *Summary) summarize(cpus int) {
	for i := range s.Rows {
		r := &s.Rows[i]
		var costs []Costs
		for _, x := range r.Runs {
			costs = append(costs, x.Costs)
		}
		r.Costs = medianCosts(costs)
		r.PerS = trial.SpreadOf(r.Runs, func(x *Result) float64 { return x.PerS })
		r.CPU = trial.SpreadOf(costs, func(c Costs) float64 { return c.All })
	}
	var reports []*trial.Report
	for _, x := range s.Rows[0].Runs {
		reports = append(reports, &x.Report)
	}
	s.Report = trial.Summarize(reports)
	of := func(lanes int) *Row {
		if i := slices.IndexFunc(s.Rows, func(r Row) bool { return r.Lanes == lanes }); i >= 0 {
			return &s.Rows[i]
		}
		return nil
	}
	one, two := of(1), of(2)
	if one == nil || two == nil || one.PerS.Median == 0 {
		return
	}
	s.Ratio = two.PerS.Median / one.PerS.Median
	most := max(slices.Max(one.Foreign), slices.Max(two.Foreign))
	switch {
	case cpus < 2:
		s.Void = "this machine has one CPU"
	case float64(cpus)-most < 2-quiet:
		s.Void = fmt.Sprintf("others kept up to %.2f of %d CPUs busy: two were not free", most, cpus)
	}
}

// WriteJSON writes s as one object.
func (s *Summary) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WriteText writes s as a Markdown table.
func (s *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	one := s.Rows[0].Runs[0]
	fmt.Fprintf(&b, "%s\n", s.Machine)
	fmt.Fprintf(&b, "frame to index, %d streams, %d shards, kernels %s, seed %d: %d blocks stored, %d removed; %d trials in fresh processes: median (least to greatest)\n\n",
		one.Streams, one.Shards, one.Level, s.Seed, one.Stored, one.Removed, len(s.Rows[0].Runs))
	fmt.Fprint(&b, "| lanes | blocks stored, M/s of wall time | CPU ns a stored block | decode | hash | copies | apply | queue | foreign CPUs |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range s.Rows {
		m := r.PerS
		m.Median, m.Min, m.Max = m.Median/1e6, m.Min/1e6, m.Max/1e6
		c := r.Costs
		fmt.Fprintf(&b, "| %d | %s | %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.2f |\n", r.Lanes, m.Text(2), r.CPU.Text(1), c.Decode, c.Hash, c.Copies, c.Apply, c.Queue, trial.Median(r.Foreign))
	}
	fmt.Fprintf(&b, "\nby block operation (stored or removed): %.1f ns of CPU\n", s.CPUPerBlockOp)
	switch {
	case s.Void != "":
		fmt.Fprintf(&b, "two lanes to one: %.2f, void: %s\n", s.Ratio, s.Void)
	case s.Ratio > 0:
		fmt.Fprintf(&b, "two lanes to one: %.2f\n", s.Ratio)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
