// SPDX-License-Identifier: Apache-2.0

package relaybench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"kindex/harness/trial"
)

// Report is what all rounds showed.
type Report struct {
	Machine trial.Machine `json:"machine"`
	Options Options       `json:"options"`
	Runs    []*Run        `json:"runs"`
	Rows    []Row         `json:"rows"`
}

// Row is one figure of all arms over all rounds.
type Row struct {
	Figure string                  `json:"figure"`
	Unit   string                  `json:"unit"`
	Arms   map[string]trial.Spread `json:"arms"`
}

// Measure runs all arms in turn, in rounds. The first arm of a round is another one in
// the next.
func Measure(ctx context.Context, o *Options, p *trial.Progress) (*Report, error) {
	found, err := find(ctx, o.Arms)
	defer func() { _ = found.close() }()
	if err != nil {
		return nil, err
	}
	r := &Report{Machine: trial.ThisMachine(), Options: *o}
	for round := range o.Rounds {
		for i := range o.Arms {
			arm := o.Arms[(i+round)%len(o.Arms)]
			run, err := one(ctx, o, &found, arm)
			if err != nil {
				return nil, err
			}
			r.Runs = append(r.Runs, run)
			p.Sayf("round %d of %d: %s: %.1f us a batch, %.2f foreign CPUs", round+1, o.Rounds, arm, run.Rates[len(run.Rates)-1].CPU, run.Foreign)
		}
	}
	r.rows()
	return r, nil
}

func (r *Report) rows() {
	for i, rate := range r.Options.Rates {
		at := func(f func(*AtRate) float64) func(*Run) float64 {
			return func(x *Run) float64 { return f(&x.Rates[i]) }
		}
		r.row(fmt.Sprintf("CPU of a batch at %d/s", rate), "us", at(func(a *AtRate) float64 { return a.CPU }))
		r.row(fmt.Sprintf("added latency at %d/s, p50", rate), "us", at(func(a *AtRate) float64 { return a.P50 }))
		r.row(fmt.Sprintf("added latency at %d/s, p99", rate), "us", at(func(a *AtRate) float64 { return a.P99 }))
	}
	if r.Options.State == 0 {
		return
	}
	snap := func(f func(Snapshot) float64) func(*Run) float64 {
		return func(x *Run) float64 { return trial.SpreadOf(x.Snaps, f).Median }
	}
	r.row("snapshot, CPU", "ms", snap(func(s Snapshot) float64 { return s.CPUMs }))
	r.row("snapshot, wall", "ms", snap(func(s Snapshot) float64 { return s.WallMs }))
	r.row("snapshot, first chunk", "ms", snap(func(s Snapshot) float64 { return s.FirstMs }))
	r.row("snapshot, chunks", "", snap(func(s Snapshot) float64 { return float64(s.Chunks) }))
	r.row("snapshot, bytes", "MB", snap(func(s Snapshot) float64 { return float64(s.Bytes) / 1e6 }))
	r.row("resident, a live block", "B", func(x *Run) float64 { return x.PerBlock })
	r.row("resident, idle", "MB", func(x *Run) float64 { return float64(x.IdleRSS) / 1e6 })
	r.row("CPU, idle", "ms/s", func(x *Run) float64 { return x.IdleCPU })
}

func (r *Report) row(figure, unit string, f func(*Run) float64) {
	w := Row{Figure: figure, Unit: unit, Arms: map[string]trial.Spread{}}
	for _, arm := range r.Options.Arms {
		var of []*Run
		for _, x := range r.Runs {
			if x.Arm == arm {
				of = append(of, x)
			}
		}
		w.Arms[arm] = trial.SpreadOf(of, f)
	}
	r.Rows = append(r.Rows, w)
}

// WriteJSON prints r as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText prints a table of medians, with what a figure was at least and at most.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	o := &r.Options
	fmt.Fprintf(&b, "%s\n\n%d rounds, %d s of each rate, %d blocks of %d tokens a batch, one subscriber; histories of %d batches; state of %d live blocks beside histories of %d\n\n",
		r.Machine, o.Rounds, o.Seconds, o.Blocks, blockTokens, defaultHistory, o.State, smallHistory)
	b.WriteString("| figure |")
	for _, arm := range o.Arms {
		fmt.Fprintf(&b, " %s |", arm)
	}
	theirs := r.theirs()
	if theirs {
		fmt.Fprintf(&b, " %s / %s |", o.Arms[0], ArmSMG)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 1+len(o.Arms)) + map[bool]string{true: " --- |"}[theirs] + "\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s |", strings.TrimSuffix(row.Figure+", "+row.Unit, ", "))
		for _, arm := range o.Arms {
			s := row.Arms[arm]
			decimals := 1
			if s.Max >= 1_000 {
				decimals = 0
			}
			fmt.Fprintf(&b, " %s |", s.Text(decimals))
		}
		if theirs {
			ratio := "-"
			if d := row.Arms[ArmSMG].Median; d > 0 {
				ratio = fmt.Sprintf("%.2f", row.Arms[o.Arms[0]].Median/d)
			}
			fmt.Fprintf(&b, " %s |", ratio)
		}
		b.WriteByte('\n')
	}
	foreign := trial.SpreadOf(r.Runs, func(x *Run) float64 { return x.Foreign })
	fmt.Fprintf(&b, "\nothers kept %s CPUs busy\n", foreign.Text(2))
	_, err := io.WriteString(w, b.String())
	return err
}

// theirs tells whether there is something to hold the first arm against.
func (r *Report) theirs() bool {
	return r.Options.Arms[0] != ArmSMG && slices.Contains(r.Options.Arms, ArmSMG)
}
