// SPDX-License-Identifier: Apache-2.0

// Before: Dial's client. After: the parts that workers are split over.

package indexclient

import (
	"context"
	"errors"
	"slices"
	"sync"

	"kindex/internal/lookup"
)

// union answers for workers that are split over several parts. No worker is in two
// of them, so what all say together is exact.
//
// Concurrency: any goroutine.
type union struct {
	o     *Options
	parts []*replicas
	names []string  // of parts
	rests []rest    // of parts, where partial answers are allowed
	calls sync.Pool // *unionCall
}

var _ lookup.Index = (*union)(nil)

// unionCall is the memory of one lookup.
type unionCall struct {
	answers []lookup.Answer
	errs    []error
	merged  []merged
	seen    map[rankName]bool
}

// merged is one part's match.
type merged struct {
	part int
	lookup.Match
}

// rankName tells a rank from all others of a model.
type rankName struct {
	instance string
	rank     int
}

func newUnion(parts []*replicas, o *Options) *union {
	u := &union{o: o, parts: parts}
	for _, p := range parts {
		u.names = append(u.names, p.name())
	}
	if o.Partial {
		u.rests = make([]rest, len(parts))
		for i := range u.rests {
			u.rests[i].part, u.rests[i].o = parts[i], o
		}
	}
	u.calls.New = func() any {
		return &unionCall{answers: make([]lookup.Answer, len(parts)), errs: make([]error, len(parts)), seen: map[rankName]bool{}}
	}
	return u
}

// each calls fn for all parts at once and waits for all.
func (u *union) each(fn func(i int, p *replicas)) {
	var wg sync.WaitGroup
	for i, p := range u.parts[1:] {
		wg.Go(func() { fn(i+1, p) })
	}
	fn(0, u.parts[0])
	wg.Wait()
}

// Lookup implements [Client]. A part that does not know the model holds nothing of
// it, unless none does.
func (u *union) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	a.Reset()
	c, ok := u.calls.Get().(*unionCall)
	if !ok {
		panic("BUG: indexclient: the pool holds something else than calls")
	}
	defer u.calls.Put(c)
	resting := u.resting(c, q)
	u.each(func(i int, p *replicas) {
		if c.errs[i] != nil && !resting {
			return
		}
		c.errs[i] = p.Lookup(ctx, q, &c.answers[i])
		if u.rests != nil {
			u.rests[i].ended(c.errs[i])
		}
	})
	err := u.settle(c, a)
	if err == nil {
		err = u.merge(c, q.Limit, a)
	}
	if err != nil {
		a.Reset()
	}
	clear(c.errs)
	return err
}

// resting marks the parts that are left alone as failed, and reports whether all are:
// they are asked then.
func (u *union) resting(c *unionCall, q *lookup.Query) bool {
	all := len(u.rests) > 0
	for i := range u.rests {
		if u.rests[i].resting(q) {
			c.errs[i] = hostError(u.names[i], errResting)
		} else {
			all = false
		}
	}
	return all
}

// settle decides what the parts' errors are to the whole, and notes which parts
// are missing in a.
func (u *union) settle(c *unionCall, a *lookup.Answer) error {
	var unknown, faults []error
	for i, err := range c.errs {
		switch {
		case err == nil:
		case canceled(err), ofRequest(err):
			return err
		case errors.Is(err, ErrNotFound):
			unknown = append(unknown, err)
		default:
			faults = append(faults, err)
			a.Missing = append(a.Missing, u.names[i])
		}
	}
	switch {
	case len(faults) > 0 && (!u.o.Partial || len(faults) == len(u.parts)):
		return errors.Join(faults...)
	case len(unknown) == len(u.parts):
		return unknown[0]
	}
	return nil
}

// merge unites the answers of the parts that gave one.
func (u *union) merge(c *unionCall, limit int, a *lookup.Answer) error {
	c.merged = c.merged[:0]
	sized := -1 // the part that said the block size
	for i := range c.answers {
		if c.errs[i] != nil {
			continue
		}
		one := &c.answers[i]
		switch {
		case sized < 0:
			sized, a.BlockSize = i, one.BlockSize
		case a.BlockSize != one.BlockSize:
			return lookup.Refuse(ErrConflict, "block_size: %s has %d for the model and %s has %d: their depths cannot be compared",
				u.names[sized], a.BlockSize, u.names[i], one.BlockSize)
		}
		for _, m := range one.Matches {
			c.merged = append(c.merged, merged{i, m})
		}
	}
	// Within a part the order is the part's own.
	slices.SortStableFunc(c.merged, func(x, y merged) int { return x.Compare(&y.Match) })
	clear(c.seen)
	for i := range c.merged {
		m := &c.merged[i]
		name := rankName{m.Instance, m.Rank}
		if c.seen[name] {
			a.Twice++
			continue
		}
		c.seen[name] = true
		if limit == 0 || len(a.Matches) < limit {
			a.Matches = append(a.Matches, m.Match)
		}
	}
	return nil
}

// Workers implements [Client]: those of the first part, then of the next. Where a
// part fails there is no list.
func (u *union) Workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error) {
	lists, errs := make([][]lookup.Worker, len(u.parts)), make([]error, len(u.parts))
	u.each(func(i int, p *replicas) { lists[i], errs[i] = p.Workers(ctx, f) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.Concat(lists...), nil
}

// Close implements [Client].
func (u *union) Close() error {
	var errs error
	for _, p := range u.parts {
		errs = errors.Join(errs, p.Close())
	}
	for i := range u.rests {
		u.rests[i].close()
	}
	return errs
}
