// SPDX-License-Identifier: Apache-2.0

// Before: a caller who wants to know of changes. After: the hosts, one of each part.

package indexclient

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"kindex/internal/lookup"
)

// Watch implements [Client]. It goes on with another replica, or with the same one
// later, where one breaks off; fn gets a whole table then.
//
// Errors: what fn returns, the context's end, and what a host says of the request.
func (s *replicas) Watch(ctx context.Context, f lookup.Filter, fn func(*lookup.Update) error) error {
	return s.follow(ctx, func(ctx context.Context, r *replica, told func(whole bool, say func() error) error) error {
		return r.Watch(ctx, f, func(u *lookup.Update) error { return told(u.Whole, func() error { return fn(u) }) })
	})
}

// follow has call follow one replica after the other. call has told hand on each step.
func (s *replicas) follow(ctx context.Context, call func(ctx context.Context, r *replica, told func(whole bool, say func() error) error) error) error {
	for tries := 0; ; tries++ {
		var own error // who is told
		k := s.order(make([]int, 0, 8))[0]
		err := s.try(ctx, s.hosts[k], k, func(ctx context.Context, r *replica) error {
			return call(ctx, r, func(whole bool, say func() error) error {
				if whole {
					tries = 0
					r.ended(s.o, false) // it serves
				}
				own = say()
				return own
			})
		})
		switch {
		case own != nil:
			return own
		case ctx.Err() != nil:
			return lookup.OfContext(ctx)
		case err == nil || ofRequest(err) || errors.Is(err, ErrDenied):
			return err
		}
		if !wait(ctx, s.o.delay(tries)) {
			return lookup.OfContext(ctx)
		}
	}
}

// wait waits for d, and reports whether ctx lasted.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// unionWatch makes one watch of the parts'.
type unionWatch struct {
	fn func(*lookup.Update) error

	mu      sync.Mutex
	epoch   uint64
	version uint64
	tables  []map[lookup.WorkerName]lookup.Worker // by part; nil: not told yet
	orders  [][]lookup.WorkerName                 // of tables
	started bool
	partial bool
	err     error // fn's
}

// Watch implements [Client]. The table is told when all parts have told theirs, or,
// where partial answers are allowed, those that have within the options' timeout; a
// part that comes then, or comes again, makes it told anew.
func (u *union) Watch(ctx context.Context, f lookup.Filter, fn func(*lookup.Update) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &unionWatch{
		fn: fn, epoch: rand.Uint64(),
		tables: make([]map[lookup.WorkerName]lookup.Worker, len(u.parts)), orders: make([][]lookup.WorkerName, len(u.parts)),
	}
	if u.o.Partial {
		late := time.AfterFunc(u.o.Timeout, func() {
			if err := w.settle(); err != nil {
				cancel(err)
			}
		})
		defer late.Stop()
	}
	errs := make([]error, len(u.parts))
	u.each(func(i int, p *replicas) {
		errs[i] = p.Watch(ctx, f, func(up *lookup.Update) error { return w.update(i, up) })
		if errs[i] != nil {
			cancel(errs[i]) // the others end, too
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	for _, err := range errs {
		if err != nil && !canceled(err) {
			return err
		}
	}
	return context.Cause(ctx)
}

// settle begins with the parts that are there.
func (w *unionWatch) settle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partial = true
	if w.started || !slices.ContainsFunc(w.tables, func(t map[lookup.WorkerName]lookup.Worker) bool { return t != nil }) {
		return nil
	}
	return w.tell(w.whole())
}

// update takes in a step of part i.
func (w *unionWatch) update(i int, up *lookup.Update) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if up.Whole {
		w.tables[i], w.orders[i] = map[lookup.WorkerName]lookup.Worker{}, nil
	}
	for _, name := range up.Gone {
		delete(w.tables[i], name)
		w.orders[i] = slices.DeleteFunc(w.orders[i], func(n lookup.WorkerName) bool { return n == name })
	}
	for _, worker := range up.Workers {
		name := worker.Name()
		if _, ok := w.tables[i][name]; !ok {
			w.orders[i] = append(w.orders[i], name)
		}
		w.tables[i][name] = worker
	}
	switch {
	case !w.started && !w.partial && slices.ContainsFunc(w.tables, func(t map[lookup.WorkerName]lookup.Worker) bool { return t == nil }):
		return nil
	case !w.started || up.Whole:
		return w.tell(w.whole())
	}
	return w.tell(&lookup.Update{Workers: up.Workers, Gone: up.Gone})
}

// whole returns the table of all parts.
func (w *unionWatch) whole() *lookup.Update {
	u := &lookup.Update{Whole: true}
	for i, order := range w.orders {
		for _, name := range order {
			u.Workers = append(u.Workers, w.tables[i][name])
		}
	}
	return u
}

func (w *unionWatch) tell(u *lookup.Update) error {
	w.started = true
	w.version++
	u.Epoch, u.Version = w.epoch, w.version
	w.err = w.fn(u)
	return w.err
}
