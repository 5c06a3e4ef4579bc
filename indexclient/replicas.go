// SPDX-License-Identifier: Apache-2.0

// Before: Dial's client, or a union of parts. After: the hosts, one at a time.

package indexclient

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/lookup"
)

// replicas are hosts any of which can answer. One is asked as long as it answers;
// one that failed is left alone for a while.
//
// Concurrency: any goroutine.
type replicas struct {
	o       *Options
	hosts   []*replica
	current atomic.Int32 // who answered last
	answers sync.Pool    // *lookup.Answer, of hedged calls
}

var _ lookup.Index = (*replicas)(nil)

type replica struct {
	lookup.Index
	name  string
	waits bool // by itself, where [Options.Wait] asks for it

	mu       sync.Mutex
	failures int
	until    time.Time // not asked before, where there is another
	trying   bool      // after that, by one call at a time
}

func (s *replicas) add(name string, h lookup.Index) {
	_, waits := h.(*shared)
	s.hosts = append(s.hosts, &replica{Index: h, name: name, waits: waits})
}

// name is how errors call all of s.
func (s *replicas) name() string {
	names := make([]string, len(s.hosts))
	for i, r := range s.hosts {
		names[i] = r.name
	}
	return strings.Join(names, "|")
}

// How willingly a replica is asked.
const (
	standingGood  = iota
	standingAgain // it failed; this call may try it
	standingBad   // only where nobody else is left
)

// standing returns how r stands.
func (r *replica) standing(now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.failures == 0:
		return standingGood
	case now.Before(r.until) || r.trying:
		return standingBad
	}
	return standingAgain
}

// begin marks that a call tries r. Whoever does must say how it went.
func (r *replica) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trying = r.failures > 0
}

// ended says how a call of r went.
func (r *replica) ended(o *Options, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trying = false
	if !failed {
		r.failures = 0
		return
	}
	r.until = time.Now().Add(o.delay(r.failures))
	r.failures++
}

// order returns whom to ask, the most willingly first.
func (s *replicas) order(buf []int) []int {
	now := time.Now()
	var by [3][]int
	first := int(s.current.Load())
	for i := range s.hosts {
		k := (first + i) % len(s.hosts)
		standing := s.hosts[k].standing(now)
		by[standing] = append(by[standing], k)
	}
	return append(append(append(buf, by[standingGood]...), by[standingAgain]...), by[standingBad]...)
}

// againPause bounds the time between two rounds.
const againPause = 50 * time.Millisecond

// again calls round until it gives another error than that nobody could be reached:
// where the options say so as long as ctx lasts, and else twice where there are
// several replicas, for one that has just come back may not be connected yet.
func (s *replicas) again(ctx context.Context, round func(context.Context) error) error {
	if len(s.hosts) == 1 && !s.o.Wait {
		return round(ctx)
	}
	ctx, cancel := s.o.bounded(ctx)
	defer cancel()
	for tries := 0; ; tries++ {
		err := round(ctx)
		if !errors.Is(err, ErrUnavailable) || errors.Is(err, errClosed) || !s.o.Wait && tries > 0 {
			return err
		}
		for _, r := range s.hosts {
			if h, ok := r.Index.(interface{ reconnect() }); ok {
				h.reconnect()
			}
		}
		if !wait(ctx, min(s.o.RetryDelay, againPause)) {
			return err
		}
	}
}

// ask calls fn with one replica after the other until one has an answer.
func (s *replicas) ask(ctx context.Context, fn func(context.Context, *replica) error) error {
	return s.again(ctx, func(ctx context.Context) error { return s.round(ctx, fn) })
}

// round asks each replica at most once. One that is silent has its share of the
// caller's time.
func (s *replicas) round(ctx context.Context, fn func(context.Context, *replica) error) error {
	if len(s.hosts) == 1 {
		r := s.hosts[0]
		return hostError(r.name, fn(ctx, r))
	}
	order := s.order(make([]int, 0, 8))
	var failed []error
	for i, k := range order {
		r := s.hosts[k]
		share, cancel := shareOf(ctx, len(order)-i)
		err := s.try(share, r, k, fn)
		cancel()
		if err == nil || ofRequest(err) || ctx.Err() != nil && !errors.Is(err, ErrDeadline) {
			return err
		}
		failed = append(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return worst(failed)
}

// try asks r, number k, and notes how it went.
func (s *replicas) try(ctx context.Context, r *replica, k int, fn func(context.Context, *replica) error) error {
	r.begin()
	err := hostError(r.name, fn(ctx, r))
	own := err == nil || ofRequest(err) || errors.Is(err, ErrNotFound)
	if !own && errors.Is(err, context.Canceled) && ctx.Err() != nil {
		r.mu.Lock()
		r.trying = false // nothing was learned of it
		r.mu.Unlock()
		return err
	}
	r.ended(s.o, !own)
	if err == nil {
		s.current.Store(int32(k))
	}
	return err
}

// worst returns what to say of replicas that all failed. Where one says that the
// model is not there and no other could be asked, that may be wrong: the others'
// errors are told, too.
func worst(failed []error) error {
	others := failed[:0:0]
	for _, err := range failed {
		if !errors.Is(err, ErrNotFound) {
			others = append(others, err)
		}
	}
	switch len(others) {
	case 0:
		return failed[0]
	case 1:
		return others[0]
	}
	return errors.Join(others...)
}

// shareOf gives one of n who are left to ask its share of ctx's time.
func shareOf(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n == 1 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// Lookup implements [Client].
func (s *replicas) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	if r := s.hosts[0]; len(s.hosts) == 1 && (!s.o.Wait || r.waits) { // the common case makes no closure
		return hostError(r.name, r.Lookup(ctx, q, a))
	}
	if s.o.HedgeAfter > 0 {
		return s.again(ctx, func(ctx context.Context) error { return s.hedged(ctx, q, a) })
	}
	return s.ask(ctx, func(ctx context.Context, r *replica) error { return r.Lookup(ctx, q, a) })
}

// Workers implements [Client].
func (s *replicas) Workers(ctx context.Context, f lookup.Filter) (ws []lookup.Worker, err error) {
	err = s.ask(ctx, func(ctx context.Context, r *replica) (err error) {
		ws, err = r.Workers(ctx, f)
		return err
	})
	return ws, err
}

// Close implements [Client].
func (s *replicas) Close() error {
	var errs error
	for _, r := range s.hosts {
		errs = errors.Join(errs, hostError(r.name, r.Close()))
	}
	return errs
}
