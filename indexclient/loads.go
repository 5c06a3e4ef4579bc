// SPDX-License-Identifier: Apache-2.0

// Before: a caller who wants to know of loads. After: the hosts, one of each part.

package indexclient

import (
	"context"
	"errors"
	"sync"

	"kindex/internal/lookup"
)

// Loads implements [Client]. Where a replica breaks off another one tells all anew.
func (s *replicas) Loads(ctx context.Context, f lookup.Filter, fn func(*lookup.LoadUpdate) error) error {
	return s.follow(ctx, func(ctx context.Context, r *replica, told func(whole bool, say func() error) error) error {
		some := false
		err := r.Loads(ctx, f, func(u *lookup.LoadUpdate) error {
			some = true
			return told(u.Whole, func() error { return fn(u) })
		})
		if some && ctx.Err() == nil && err != nil {
			if own := told(false, func() error { return fn(&lookup.LoadUpdate{Lost: true}) }); own != nil {
				return own
			}
		}
		return err
	})
}

// unionLoads makes one stream of loads of the parts'.
type unionLoads struct {
	fn func(*lookup.LoadUpdate) error

	mu    sync.Mutex
	told  bool
	known []map[lookup.LoadName]bool // by part
	err   error                      // fn's
}

// Loads implements [Client]. The first step that is told has one part's ranks; those of
// the others come as changes. The ranks of a part that is lost are gone. A part that ends for good ends all, but where partial
// answers are allowed and there is another.
func (u *union) Loads(ctx context.Context, f lookup.Filter, fn func(*lookup.LoadUpdate) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &unionLoads{fn: fn, known: make([]map[lookup.LoadName]bool, len(u.parts))}
	errs := make([]error, len(u.parts))
	u.each(func(i int, p *replicas) {
		errs[i] = p.Loads(ctx, f, func(up *lookup.LoadUpdate) error { return w.update(i, up) })
		if !u.o.Partial || w.failed() != nil {
			cancel(errs[i]) // the others end, too
		}
	})
	if err := w.failed(); err != nil {
		return err
	}
	for _, err := range errs {
		if err != nil && !canceled(err) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return context.Cause(ctx)
}

func (w *unionLoads) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// update takes in a step of part i.
func (w *unionLoads) update(i int, up *lookup.LoadUpdate) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.known[i]
	if up.Lost {
		up = &lookup.LoadUpdate{}
		for n := range old {
			up.Gone = append(up.Gone, n)
		}
		w.known[i] = nil
		w.err = w.fn(up)
		return w.err
	}
	if up.Whole || old == nil {
		w.known[i] = make(map[lookup.LoadName]bool, len(up.Loads))
	}
	for k := range up.Loads {
		w.known[i][up.Loads[k].LoadName] = true
	}
	for _, n := range up.Gone {
		delete(w.known[i], n)
	}
	if up.Whole {
		for n := range old {
			if !w.known[i][n] {
				up.Gone = append(up.Gone, n)
			}
		}
		up.Whole = !w.told
	}
	w.told = true
	w.err = w.fn(up)
	return w.err
}
