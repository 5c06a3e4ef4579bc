// SPDX-License-Identifier: Apache-2.0

package series

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kindex/harness/trial"
)

// Cell is one figure of one arm.
type Cell struct {
	trial.Estimate
	// Ratio is the first arm's median to this one's; nil of the first itself.
	Ratio *trial.Estimate `json:"ratio,omitempty"`
}

// Row is one figure of all arms.
type Row struct {
	Mode  string           `json:"mode"`
	Name  string           `json:"figure"`
	Text  string           `json:"text"`
	Cells map[string]*Cell `json:"arms"`
}

// Report is what a series found.
type Report struct {
	Machine   trial.Machine  `json:"machine"`
	Plan      *Plan          `json:"plan"`
	Rounds    int            `json:"rounds"`
	Kept      int            `json:"trials"`
	Discarded map[string]int `json:"discarded"` // by arm
	Foreign   trial.Estimate `json:"foreign_cpus"`
	Rows      []Row          `json:"rows"`
	// Peers are the crates measured, with their versions.
	Peers map[string]string `json:"peers,omitempty"`
	Notes []string          `json:"notes,omitempty"`
}

// NewReport estimates every figure. Only kept trials of the first rounds count.
func NewReport(p *Plan, trials []Trial) *Report {
	r := &Report{Machine: trial.ThisMachine(), Plan: p, Rounds: p.Rounds, Discarded: map[string]int{}}
	samples := map[[3]string][]float64{} // mode, figure, arm
	var foreign []float64
	for i := range trials {
		t := &trials[i]
		if t.Discarded {
			r.Discarded[t.Arm]++
			continue
		}
		if t.Round > p.Rounds {
			continue
		}
		r.Kept++
		var told struct{ Versions map[string]string }
		if json.Unmarshal(t.Raw, &told) == nil && told.Versions != nil {
			r.Peers = told.Versions
		}
		foreign = append(foreign, t.Foreign)
		for name, x := range t.Figures {
			k := [3]string{t.Mode, name, t.Arm}
			samples[k] = append(samples[k], x)
		}
	}
	if len(foreign) > 0 {
		r.Foreign = trial.Bootstrap(foreign, p.Seed)
	}
	for _, f := range figures {
		row := Row{Mode: f.mode, Name: f.name, Text: f.text, Cells: map[string]*Cell{}}
		first := samples[[3]string{f.mode, f.name, p.Arms[0]}]
		for i, arm := range p.Arms {
			s := samples[[3]string{f.mode, f.name, arm}]
			if len(s) == 0 {
				continue
			}
			c := &Cell{Estimate: trial.Bootstrap(s, p.Seed)}
			if i > 0 && len(first) > 0 {
				ratio := trial.BootstrapRatio(first, s, p.Seed)
				c.Ratio = &ratio
			}
			row.Cells[arm] = c
		}
		if len(row.Cells) > 0 {
			r.Rows = append(r.Rows, row)
		}
	}
	return r
}

// WriteText writes r as Markdown.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Machine)
	fmt.Fprintf(&b, "Corpus %s, seed %d, %d rounds, %d trials in fresh processes, %.2f foreign CPUs (median)", r.Plan.Corpus, r.Plan.Seed, r.Rounds, r.Kept, r.Foreign.Median)
	for _, arm := range r.Plan.Arms {
		if n := r.Discarded[arm]; n > 0 {
			fmt.Fprintf(&b, ", %d of %s discarded", n, arm)
		}
	}
	fmt.Fprint(&b, ".\nMedian (95 % interval); in brackets the ratio of ")
	fmt.Fprintf(&b, "%s to it.\n\n| |", r.Plan.Arms[0])
	for _, arm := range r.Plan.Arms {
		fmt.Fprintf(&b, " %s |", arm)
	}
	fmt.Fprintf(&b, "\n| --- |%s\n", strings.Repeat(" --- |", len(r.Plan.Arms)))
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s |", row.Text)
		for _, arm := range r.Plan.Arms {
			c := row.Cells[arm]
			if c == nil {
				fmt.Fprint(&b, " - |")
				continue
			}
			fmt.Fprintf(&b, " %s (%s to %s)", num(c.Median), num(c.Low), num(c.High))
			if c.Ratio != nil {
				fmt.Fprintf(&b, " [%.3g, %.3g to %.3g]", c.Ratio.Median, c.Ratio.Low, c.Ratio.High)
			}
			fmt.Fprint(&b, " |")
		}
		fmt.Fprintln(&b)
	}
	if len(r.Peers) > 0 {
		fmt.Fprint(&b, "\nPeers:")
		for i, name := range slices.Sorted(maps.Keys(r.Peers)) {
			fmt.Fprintf(&b, "%s %s %s", map[bool]string{true: ","}[i > 0], name, r.Peers[name])
		}
		fmt.Fprintln(&b, ".")
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// num writes three digits that matter.
func num(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// Save writes report, table and plots into dir.
func (r *Report) Save(dir string) error {
	js, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "report.json"), append(js, '\n'), 0o644); err != nil { //nolint:gosec // to be read
		return err
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "table.md"), []byte(b.String()), 0o644); err != nil { //nolint:gosec // to be read
		return err
	}
	return nil
}
