// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"kindex/harness/trial"
)

// Summary is all trials: n for each level of the kernels.
type Summary struct {
	trial.Report
	Machine trial.Machine `json:"machine"`
	Unequal int           `json:"unequal_contents"`
	Runs    []*Result     `json:"runs"`
}

// Compare takes n trials in fresh processes for each of levels, each with a seed of its
// own, and each with its part of o's lookups. Indexes without kernels are compared at
// the first level.
func Compare(ctx context.Context, o Options, levels []string, n int, p *trial.Progress, stderr io.Writer) (*Summary, error) {
	s := &Summary{Machine: trial.ThisMachine()}
	parts := int64(n * len(levels))
	o.Lookups = (o.Lookups + parts - 1) / parts
	first := o.Seed
	kinds := o.Kinds
	for i, level := range levels {
		// Only the chain index has kernels: the others are the same at every level.
		if o.Kinds = kinds; i > 0 && slices.Contains(kinds, Kinds[0]) {
			o.Kinds = Kinds[:1]
		}
		for range n {
			o.Level = level
			runs, _, err := trial.Fresh(ctx, 1, o.Args(), p, stderr, func(r *Result) string {
				return fmt.Sprintf("%s kernels: %d lookups, %d wrong", r.Level, r.Exact.Lookups, r.Exact.Wrong)
			})
			if err != nil {
				return nil, err
			}
			s.Runs = append(s.Runs, runs...)
			o.Seed++
		}
	}
	r := s.Runs[0]
	s.Report = trial.Report{Command: "exact", Corpus: r.Corpus, Seed: first, Exact: &trial.Exact{}}
	for _, r := range s.Runs {
		s.Ops, s.BlockOps, s.Wall, s.Unequal = s.Ops+r.Ops, s.BlockOps+r.BlockOps, s.Wall+r.Wall, s.Unequal+r.Unequal
		s.Exact.Lookups += r.Exact.Lookups
		s.Exact.Wrong += r.Exact.Wrong
	}
	return s, nil
}

// Err is an error where anything differs.
func (s *Summary) Err() error {
	if s.Exact.Wrong == 0 && s.Unequal == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d lookups wrong, %d times unequal content", s.Exact.Wrong, s.Exact.Lookups, s.Unequal)
}

// WriteJSON writes s as one object.
func (s *Summary) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WriteText writes s as Markdown tables.
func (s *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s against the reference, from seed %d, each trial in a fresh process: one by one, as sets of holders, in batches\n\n", s.Machine, s.Corpus, s.Seed)
	fmt.Fprint(&b, "| kernels | part | questions | memberships compared at the end | content |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range s.Runs {
		for _, p := range r.Parts {
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %s |\n", r.Level, p.Name, p.Questions, p.Memberships, map[bool]string{true: "equal", false: "DIFFERS"}[p.Same])
		}
	}
	fmt.Fprint(&b, "\n| kernels | index | lookups | wrong |\n| --- | --- | --- | --- |\n")
	for _, r := range s.Runs {
		for _, x := range r.Indexes {
			fmt.Fprintf(&b, "| %s | %s | %d | %d |\n", r.Level, x.Name, x.Lookups, x.Wrong)
		}
	}
	for _, r := range s.Runs {
		for _, d := range r.Differs {
			fmt.Fprintf(&b, "\n%s kernels: %s\n", r.Level, d)
		}
	}
	fmt.Fprintf(&b, "\n%d lookups, %d wrong\n", s.Exact.Lookups, s.Exact.Wrong)
	_, err := io.WriteString(w, b.String())
	return err
}
