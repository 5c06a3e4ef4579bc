// SPDX-License-Identifier: Apache-2.0

package gatewaybench

import (
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
	Notes   []string      `json:"notes,omitempty"`
	Trials  []*Trial      `json:"trials"`
	Starts  []*Start      `json:"starts"`
	Cells   []*Cell       `json:"cells"`
	Bars    []Bar         `json:"bars"`
}

// Cell is one target in one cell over all rounds. Ratios are of one round's trials each.
type Cell struct {
	Target  string        `json:"target"`
	Kind    string        `json:"kind"`
	Conns   int           `json:"connections"`
	CPU     trial.Spread  `json:"cpu_us_per_request"`
	P50     trial.Spread  `json:"p50_us"`
	P99     trial.Spread  `json:"p99_us"`
	First50 trial.Spread  `json:"first_byte_p50_us"`
	PerS    trial.Spread  `json:"requests_per_s"`
	Added   *trial.Spread `json:"added_p50_us,omitempty"`           // over the direct one
	OfBare  *trial.Spread `json:"added_p50_over_bare,omitempty"`    // over what the bare proxy adds
	OfOurs  *trial.Spread `json:"ours_cpu_over_this_cpu,omitempty"` // our CPU of a request over this target's
	Against *trial.Spread `json:"ours_p50_over_this_p50,omitempty"` // the same of the median
	rounds  []*Trial
}

// Bar is one thing that is to hold.
type Bar struct {
	What  string  `json:"what"`
	Got   float64 `json:"got"`
	Below float64 `json:"below"`
	Holds bool    `json:"holds"`
}

// The bars.
const (
	barCPU   = 0.5  // of the peer's CPU a request
	barAdded = 1.3  // of what the bare proxy adds to the median
	barRSS   = 25.0 // MB at idle
	barReady = 100  // ms to readiness
)

// cell returns a target's cell; nil: it was not measured.
func (r *Report) cell(target, kind string, conns int) *Cell {
	for _, c := range r.Cells {
		if c.Target == target && c.Kind == kind && c.Conns == conns {
			return c
		}
	}
	return nil
}

// sum makes cells and bars of the trials.
func (r *Report) sum() {
	r.Cells, r.Bars = nil, nil
	for _, x := range r.Trials {
		c := r.cell(x.Target, x.Kind, x.Conns)
		if c == nil {
			c = &Cell{Target: x.Target, Kind: x.Kind, Conns: x.Conns}
			r.Cells = append(r.Cells, c)
		}
		c.rounds = append(c.rounds, x)
	}
	for _, c := range r.Cells {
		c.CPU = trial.SpreadOf(c.rounds, func(t *Trial) float64 { return t.CPU })
		c.P50 = trial.SpreadOf(c.rounds, func(t *Trial) float64 { return t.P50 })
		c.P99 = trial.SpreadOf(c.rounds, func(t *Trial) float64 { return t.P99 })
		c.First50 = trial.SpreadOf(c.rounds, func(t *Trial) float64 { return t.First50 })
		c.PerS = trial.SpreadOf(c.rounds, func(t *Trial) float64 { return t.PerS })
		direct, bare, ours := r.cell(Direct, c.Kind, c.Conns), r.cell(Bare, c.Kind, c.Conns), r.cell(Ours, c.Kind, c.Conns)
		if c != direct {
			c.Added = paired(func(t ...*Trial) float64 { return t[0].P50 - t[1].P50 }, c, direct)
			c.OfBare = paired(func(t ...*Trial) float64 { return over(t[0].P50-t[1].P50, t[2].P50-t[1].P50) }, c, direct, bare)
		}
		if c != direct && c != ours {
			c.OfOurs = paired(func(t ...*Trial) float64 { return over(t[0].CPU, t[1].CPU) }, ours, c)
			c.Against = paired(func(t ...*Trial) float64 { return over(t[0].P50, t[1].P50) }, ours, c)
		}
	}
	r.bars()
}

func over(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// paired reads f of the trials of one round each; nil where a cell is missing.
func paired(f func(...*Trial) float64, cells ...*Cell) *trial.Spread {
	rounds := -1
	for _, c := range cells {
		if c == nil {
			return nil
		}
		if rounds < 0 || len(c.rounds) < rounds {
			rounds = len(c.rounds)
		}
	}
	var v []float64
	for i := range rounds {
		var of []*Trial
		for _, c := range cells {
			of = append(of, c.rounds[i])
		}
		v = append(v, f(of...))
	}
	s := trial.SpreadOf(v, func(x float64) float64 { return x })
	return &s
}

// bars holds ours against what it must come to.
func (r *Report) bars() {
	add := func(below float64, got *float64, format string, args ...any) {
		if got != nil {
			r.Bars = append(r.Bars, Bar{fmt.Sprintf(format, args...), *got, below, *got < below})
		}
	}
	for _, c := range r.Cells {
		switch {
		case c.Target == Ours && c.OfBare != nil:
			add(barAdded, &c.OfBare.Median, "%s, %d connections: added p50 over the bare proxy's", c.Kind, c.Conns)
		case peer(c.Target) && c.OfOurs != nil:
			add(barCPU, &c.OfOurs.Median, "%s, %d connections: CPU of a request over %s's", c.Kind, c.Conns, c.Target)
		}
	}
	if s := r.starts(Ours); len(s) > 0 {
		rss := trial.SpreadOf(s, func(s *Start) float64 { return float64(s.IdleRSS) / 1e6 })
		ready := trial.SpreadOf(s, func(s *Start) float64 { return s.ReadyMs })
		add(barRSS, &rss.Median, "resident at idle, MB")
		add(barReady, &ready.Median, "from start to readiness, ms")
	}
}

func (r *Report) starts(target string) (of []*Start) {
	for _, s := range r.Starts {
		if s.Target == target {
			of = append(of, s)
		}
	}
	return of
}

// WriteJSON prints r as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText prints tables of medians, with what a figure was at least and at most.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	o := &r.Options
	fmt.Fprintf(&b, "%s\n\n%d rounds, %v a trial after %v, pinned: %s; every answer equal to the worker's, no errors\n", r.Machine, o.Rounds, o.For, o.Warm, o.Pin)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "%s\n", n)
	}
	b.WriteString("\n| request, connections | target | CPU a request, us | ours / this | p50, us | added p50, us | over the bare proxy's | p99, us | requests/s |\n|" + strings.Repeat(" --- |", 9) + "\n")
	for _, kind := range o.Kinds {
		for _, conns := range o.Conns {
			for _, name := range o.Targets {
				if c := r.cell(name, kind, conns); c != nil {
					cpu := c.CPU.Text(1)
					if name == Direct {
						cpu = "-"
					}
					fmt.Fprintf(&b, "| %s, %d | %s | %s | %s | %s | %s | %s | %s | %.0f |\n",
						kind, conns, name, cpu, optional(c.OfOurs, 2), c.P50.Text(0), optional(c.Added, 0), optional(c.OfBare, 2), c.P99.Text(0), c.PerS.Median)
				}
			}
		}
	}
	b.WriteString("\n| target | ready, ms | resident at idle, MB | resident after load, MB | CPU at idle, ms/s |\n|" + strings.Repeat(" --- |", 5) + "\n")
	for _, name := range o.Targets {
		if s := r.starts(name); len(s) > 0 {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name,
				trial.SpreadOf(s, func(s *Start) float64 { return s.ReadyMs }).Text(0),
				trial.SpreadOf(s, func(s *Start) float64 { return float64(s.IdleRSS) / 1e6 }).Text(1),
				trial.SpreadOf(s, func(s *Start) float64 { return float64(s.EndRSS) / 1e6 }).Text(1),
				trial.SpreadOf(s, func(s *Start) float64 { return s.IdleCPU }).Text(1))
		}
	}
	b.WriteByte('\n')
	missed := slices.Clone(r.Bars)
	missed = slices.DeleteFunc(missed, func(x Bar) bool { return x.Holds })
	fmt.Fprintf(&b, "%d of %d bars hold\n", len(r.Bars)-len(missed), len(r.Bars))
	for _, x := range missed {
		fmt.Fprintf(&b, "missed: %s: %.2f, must be below %.4g\n", x.What, x.Got, x.Below)
	}
	foreign := trial.SpreadOf(r.Trials, func(x *Trial) float64 { return x.Foreign })
	fmt.Fprintf(&b, "others kept %s CPUs busy\n", foreign.Text(2))
	_, err := io.WriteString(w, b.String())
	return err
}

func optional(s *trial.Spread, decimals int) string {
	if s == nil {
		return "-"
	}
	return s.Text(decimals)
}
