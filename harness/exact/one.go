// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"kindex/asm"
	"kindex/harness/corpus"
	"kindex/harness/trial"
	"kindex/shard"
	"kindex/shard/compare"
)

// Part is one part of a trial.
type Part struct {
	Name        string `json:"name"`
	Questions   int64  `json:"questions"`   // asked of each index
	Memberships int64  `json:"memberships"` // compared at the end, in all indexes
	Same        bool   `json:"same_content"`
}

// Counted is one index over all parts.
type Counted struct {
	Name string `json:"name"`
	trial.Exact
}

// Result is what one trial compared.
type Result struct {
	trial.Report
	Level    string    `json:"cpu_features"`
	Parts    []Part    `json:"parts"`
	Indexes  []Counted `json:"indexes"`
	Differs  []string  `json:"differs,omitempty"` // some of what is wrong
	Unequal  int       `json:"unequal_contents"`
	question int64
}

// One compares once, in this process.
//
// Errors: of the corpus file and the indexes; ctx's. What differs is no error but in
// the result.
func One(ctx context.Context, o Options, p *trial.Progress) (*Result, error) {
	return one(ctx, o, p, nil)
}

func one(ctx context.Context, o Options, p *trial.Progress, wrap wrapper) (*Result, error) {
	if err := asm.SetLevel(o.Level); err != nil {
		return nil, err
	}
	began := time.Now()
	c, err := corpus.ReadFile(o.Corpus)
	if err != nil {
		return nil, err
	}
	if o.LimitOps > 0 && o.LimitOps < len(c.Ops) {
		c.Ops = c.Ops[:o.LimitOps]
	}
	r := &Result{Level: asm.Level()}
	r.Report = trial.Report{Command: "exact", Corpus: filepath.Base(o.Corpus), Seed: o.Seed, Ops: int64(len(c.Ops)), BlockOps: c.Counts().BlockOps, Exact: &trial.Exact{}}
	say := func(part string) func(done, of int) {
		return func(done, of int) { p.Sayf("%s kernels, %s: %d of %d", r.Level, part, done, of) }
	}
	err = r.part(&o, c.Workers, filepath.Base(o.Corpus), wrap, func(w *world) error {
		return w.corpus(ctx, c, say(w.part))
	})
	for i, name := range restores {
		if err != nil || o.Steps == 0 {
			break
		}
		err = r.part(&o, holeWorkers, "holes, "+name, wrap, func(w *world) error {
			return w.holes(ctx, &o, i, say(w.part))
		})
	}
	if err == nil && r.question < o.Lookups {
		err = r.part(&o, randomWorkers, "random", wrap, func(w *world) error {
			return w.random(ctx, &o, c, o.Lookups-r.question, say(w.part))
		})
	}
	r.Wall = time.Since(began).Seconds()
	return r, err
}

// part runs one part in a world of its own and adds what it found.
func (r *Result) part(o *Options, workers int, name string, wrap wrapper, run func(*world) error) error {
	w, err := newWorld(o, workers, wrap)
	if err != nil {
		return err
	}
	w.part = name
	if err := run(w); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	held, err := w.content()
	if err != nil && !errors.Is(err, compare.ErrDiffers) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		r.Unequal++
		w.faults = append(w.faults, name+", at the end: "+err.Error())
	}
	r.question += w.total
	r.Parts = append(r.Parts, Part{Name: name, Questions: w.total, Memberships: held, Same: err == nil})
	r.Differs = append(r.Differs, w.faults...)
	for i, s := range w.subs {
		if len(r.Indexes) <= i {
			r.Indexes = append(r.Indexes, Counted{Name: s.name})
		}
		r.Indexes[i].Lookups += s.lookups
		r.Indexes[i].Wrong += s.wrong
		r.Exact.Lookups += s.lookups
		r.Exact.Wrong += s.wrong
	}
	return nil
}

// corpus asks every lookup of c, with all events before it applied.
func (w *world) corpus(ctx context.Context, c *corpus.Corpus, progress func(done, of int)) error {
	steps := c.Steps(0, len(c.Ops), nil)
	var st shard.Store
	var rm shard.Remove
	for i := range steps {
		s := &steps[i]
		var err error
		switch s.Kind {
		case corpus.Lookup:
			w.ask(s.Contents)
		case corpus.Store:
			st.HasParent, st.Parent, st.Engines, st.Contents = s.HasParent, s.Parent, s.Engines, s.Contents
			err = w.store(int(s.Worker), &st)
		case corpus.Remove:
			rm.Engines = s.Engines
			err = w.remove(int(s.Worker), &rm)
		case corpus.Clear:
			err = w.clear(int(s.Worker))
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		progress(i, len(steps))
	}
	return nil
}
