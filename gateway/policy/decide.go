// SPDX-License-Identifier: Apache-2.0

// Before: the router's question. After: collect.go and the choosers.

package policy

import (
	"math"
	"sync"
	"sync/atomic"

	"kindex/gateway/fleet"
)

// The policies, in the order of names.
const (
	cacheAware = iota
	leastLoad
	inTurn
	atRandom
	powerOfTwo
	byKey
)

// policy is every policy: they differ in how they choose.
type policy struct {
	kind int
	o    Options
	host uint64 // the options' HostWeight, in thousandths

	asked  atomic.Uint64 // decisions, where a seed makes them repeatable
	last   atomic.Pointer[state]
	states atomic.Pointer[map[string]*state] // by model; replaced as a whole
	making sync.Mutex                        // one at a time keeps what it makes for a pool
}

func newPolicy(kind int, o Options) *policy {
	p := &policy{kind: kind, o: o, host: uint64(o.HostWeight * 1000)}
	p.states.Store(&map[string]*state{})
	return p
}

// Name implements [Policy].
func (p *policy) Name() string { return names[p.kind] }

// NeedsMatches implements [Policy].
func (p *policy) NeedsMatches() bool { return p.kind == cacheAware }

// Decide implements [Policy].
func (p *policy) Decide(q *Question, d *Decision) error {
	d.Holder, d.Cached, d.Branch, d.Tried, d.Guess = nil, 0, Plain, false, false
	s := p.begin(q)
	defer s.end()
	var c *candidate
	var err error
	if q.Worker != "" {
		c, err = s.pinned(d)
	} else if c = s.choose(d); c == nil {
		c, err = s.anyReady(d)
	}
	if err != nil {
		return err
	}
	if len(q.Matches) > 0 && (c.is(unmatched) || c.blocks == 0) {
		d.Guess = !s.lookUp(c) && q.More
	}
	d.Holder, d.Cached = c.h, c.cached
	if d.Record != nil {
		s.record(c, d)
	}
	return nil
}

// choose asks the policy; nil: nobody is usable.
func (s *set) choose(d *Decision) *candidate {
	switch s.p.kind {
	case leastLoad:
		return s.leastLoad()
	case inTurn:
		return s.inTurn()
	case atRandom:
		return s.atRandom()
	case powerOfTwo:
		return s.powerOfTwo()
	case byKey:
		return s.byKey()
	default:
		return s.cacheAware(d)
	}
}

// lookUp notes what c has of the prompt, and reports whether it is among the matches.
func (s *set) lookUp(c *candidate) bool {
	for i := range s.q.Matches {
		if s.q.Matches[i].Holder == c.h {
			s.match(c, &s.q.Matches[i])
			s.p.sum(c, s.q.Prompt)
			return true
		}
	}
	return false
}

// price reads all of the set.
func (s *set) price() {
	all := s.cands()
	for _, h := range s.who[:s.n] {
		h.Fetch()
	}
	for i := range all {
		s.p.read(&all[i], s.q.Now)
	}
	s.p.price(all, s.q.Prompt)
	s.mean = mean(all)
	s.limit = s.p.limit(s.mean)
}

// pinned takes the worker that the caller named, whatever its vetoes; of its ranks the
// one asked for or the one with the least expected time.
func (s *set) pinned(d *Decision) (*candidate, error) {
	w := find(s.q.Pool, s.q.Worker)
	switch {
	case w == nil:
		return nil, ErrPinned
	case w.State() != fleet.Ready:
		return nil, ErrNotReady
	}
	for _, h := range w.Holders {
		if s.n < len(s.list) && (s.q.Rank < 0 || h.Rank == s.q.Rank) {
			s.add(h, ofFleet)
		}
	}
	if s.n == 0 {
		return nil, ErrRank
	}
	s.matchAll()
	s.price()
	d.Branch, d.Tried = Pinned, s.tried(w)
	return s.least(0, 0), nil
}

// find returns the worker that a caller calls so.
func find(pool *fleet.Pool, name string) *fleet.Worker {
	for _, w := range pool.Workers {
		if w.ID == name || w.Spec != nil && (w.Spec.URL == name || w.Spec.Instance == name) {
			return w
		}
	}
	return nil
}

// anyReady is for when nobody is usable: of those that are ready, the least loaded with
// the lightest vetoes; who was tried comes last.
func (s *set) anyReady(d *Decision) (*candidate, error) {
	for _, r := range [...]relax{ready, all} {
		s.relax, s.n = r, 0
		s.gather(false)
		if s.n == 0 {
			continue
		}
		s.matchAll()
		s.price()
		d.Branch, d.Tried = Vetoed, false
		if r == all {
			d.Branch, d.Tried = Again, true
		}
		return s.lightest(), nil
	}
	if s.q.Rank >= 0 {
		for _, w := range s.q.Pool.Workers {
			if w.State() == fleet.Ready {
				return nil, ErrRank
			}
		}
	}
	return nil, ErrNoWorker
}

// weight orders vetoes: a worker that is full or silent may still answer soonest.
func weight(v fleet.Veto) int {
	switch {
	case v&(fleet.Unreachable|fleet.Wedged|fleet.BreakerOpen) != 0:
		return 2
	case v&(fleet.Stale|fleet.Overloaded) != 0:
		return 1
	}
	return 0
}

// lightest returns the least loaded of those with the lightest vetoes.
func (s *set) lightest() *candidate {
	light, least := 3, math.Inf(1)
	for i := range s.cands() {
		c := &s.list[i]
		if w := weight(c.h.Worker.Vetoes()); w < light || w == light && c.load < least {
			light, least = w, c.load
		}
	}
	for i := range s.cands() {
		c := &s.list[i]
		c.flags &^= runs
		if weight(c.h.Worker.Vetoes()) == light && c.load <= least {
			c.flags |= runs
		}
	}
	if c := s.least(runs, 0); c != nil {
		return c
	}
	return &s.list[0] // a veto fell meanwhile
}

// least returns a candidate with all flags of with and none of without and the least
// expected time: of those within [tie] of it one with the highest priority, drawn.
// nil: there is none.
func (s *set) least(with, without flags) *candidate {
	least := math.Inf(1)
	for i := range s.cands() {
		if c := &s.list[i]; c.flags&with == with && c.flags&without == 0 && c.total < least {
			least = c.total
		}
	}
	var best *candidate
	var high, n int
	for i := range s.cands() {
		c := &s.list[i]
		if c.flags&with != with || c.flags&without != 0 || c.total > least+tie {
			continue
		}
		priority := c.h.Standing().Priority()
		switch {
		case best == nil || priority > high:
			best, high, n = c, priority, 1
		case priority == high:
			n++
			if s.rng.below(n) == 0 {
				best = c
			}
		}
	}
	return best
}
