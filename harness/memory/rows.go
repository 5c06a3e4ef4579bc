// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"kindex/harness/trial"
	"kindex/shard"
)

// Bars are the most bytes a membership may take by holders of a chain, everything
// counted.
var Bars = map[int]float64{1: 45, 4: 14, 16: 7, 128: 2}

// Row is the trials with one number of holders a chain.
type Row struct {
	Holders       int                     `json:"holders_per_chain"`
	Private       bool                    `json:"private_names"`
	PerMembership trial.Spread            `json:"bytes_per_membership"`
	PerBlock      trial.Spread            `json:"bytes_per_distinct_block"`
	Purpose       map[string]trial.Spread `json:"bytes_per_membership_by_purpose"`
	Heap          trial.Spread            `json:"go_heap_bytes_per_membership"`
	Placed        trial.Spread            `json:"placed_bytes_per_membership"`
	Resident      trial.Spread            `json:"resident_bytes_per_membership"`
	Bar           float64                 `json:"bar,omitempty"` // of shared names
	Within        *bool                   `json:"within,omitempty"`
	Foreign       []float64               `json:"foreign_cpus"`
	Runs          []*Result               `json:"runs"`
}

// last is the account after the turnover, where there was one.
func (r *Result) last() *Account {
	if r.Turned != nil {
		return r.Turned
	}
	return &r.Filled
}

// Table is a whole measurement. Its report is that of the row with the fewest holders.
type Table struct {
	trial.Report
	Machine trial.Machine `json:"machine"`
	Rows    []Row         `json:"rows"`
}

// Measure takes n trials in fresh processes for each of holders, then for those of
// private with names of each worker's own.
func Measure(ctx context.Context, o Options, holders, private []int, n int, p *trial.Progress, stderr io.Writer) (*Table, error) {
	t := &Table{Machine: trial.ThisMachine()}
	for i, h := range append(append([]int{}, holders...), private...) {
		o := o
		o.Holders, o.Private = h, i >= len(holders)
		runs, foreign, err := trial.Fresh(ctx, n, o.Args(), p, stderr, func(r *Result) string {
			return fmt.Sprintf("%d holders a chain: %.1f bytes a membership", r.Holders, r.PerMembership)
		})
		if err != nil {
			return nil, err
		}
		t.Rows = append(t.Rows, row(runs, foreign))
	}
	first := t.Rows[0].Runs[0]
	t.Report = trial.Report{Command: "memory", Corpus: first.Corpus, Seed: o.Seed, Exact: &trial.Exact{}, PerMembership: t.Rows[0].PerMembership.Median, PerBlock: t.Rows[0].PerBlock.Median}
	for _, r := range t.Rows {
		for _, run := range r.Runs {
			t.Ops, t.BlockOps = t.Ops+run.Ops, t.BlockOps+run.BlockOps
			t.Exact.Lookups, t.Exact.Wrong = t.Exact.Lookups+run.Exact.Lookups, t.Exact.Wrong+run.Exact.Wrong
		}
	}
	return t, nil
}

func row(runs []*Result, foreign []float64) Row {
	per := func(f func(*Account) float64) func(*Result) float64 {
		return func(r *Result) float64 { return f(r.last()) }
	}
	r := Row{
		Holders: runs[0].Holders, Private: runs[0].Private, Foreign: foreign, Runs: runs,
		PerMembership: trial.SpreadOf(runs, func(r *Result) float64 { return r.PerMembership }),
		PerBlock:      trial.SpreadOf(runs, func(r *Result) float64 { return r.PerBlock }),
		Heap:          trial.SpreadOf(runs, per(func(a *Account) float64 { return float64(a.Seen.Heap) / float64(a.Memberships) })),
		Placed:        trial.SpreadOf(runs, per(func(a *Account) float64 { return float64(a.Seen.Placed) / float64(a.Memberships) })),
		Resident:      trial.SpreadOf(runs, per(func(a *Account) float64 { return float64(a.Seen.Resident) / float64(a.Memberships) })),
		Purpose:       map[string]trial.Spread{},
	}
	for p := range shard.NumPurposes {
		name := p.String()
		r.Purpose[name] = trial.SpreadOf(runs, per(func(a *Account) float64 { return a.Purpose[name] }))
	}
	if bar := Bars[r.Holders]; bar > 0 && !r.Private {
		within := r.PerMembership.Max <= bar
		r.Bar, r.Within = bar, &within
	}
	return r
}

// WriteJSON writes t as one object.
func (t *Table) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(t) }

// WriteText writes t as a Markdown table.
func (t *Table) WriteText(w io.Writer) error {
	var b strings.Builder
	one := t.Rows[0].Runs[0]
	fmt.Fprintf(&b, "%s\n", t.Machine)
	fmt.Fprintf(&b, "index %s, kernels %s, %d workers, chains of %d blocks on average, seed %d, %d trials in fresh processes: median (least to greatest)\n\n",
		one.Index, one.Level, one.Workers, one.Mean, t.Seed, len(t.Rows[0].Runs))
	fmt.Fprint(&b, "| holders a chain | bytes a membership | at most | filled | turned over | bytes a block | runs | dictionary | edges | holders | streams | free | Go heap | placed | resident |\n")
	fmt.Fprint(&b, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range t.Rows {
		name, bar := fmt.Sprint(r.Holders), "-"
		if r.Private {
			name += ", names of their own"
		}
		if r.Within != nil {
			bar = fmt.Sprintf("%g", r.Bar)
			if !*r.Within {
				bar += " (over)"
			}
		}
		filled := trial.SpreadOf(r.Runs, func(r *Result) float64 { return r.Filled.PerMembership })
		turned := trial.SpreadOf(r.Runs, func(r *Result) float64 { return r.last().PerMembership })
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s", name, r.PerMembership.Text(2), bar, filled.Text(2), turned.Text(2), r.PerBlock.Text(1))
		for p := range shard.NumPurposes {
			fmt.Fprintf(&b, " | %s", r.Purpose[p.String()].Text(2))
		}
		fmt.Fprintf(&b, " | %s | %s | %s |\n", r.Heap.Text(2), r.Placed.Text(2), r.Resident.Text(2))
	}
	fmt.Fprintf(&b, "\nchains asked for: %d lookups, %d wrong\n", t.Exact.Lookups, t.Exact.Wrong)
	_, err := io.WriteString(w, b.String())
	return err
}
