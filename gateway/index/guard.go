// SPDX-License-Identifier: Apache-2.0

// Before: the router's lookups. After: one index, asked only while it answers.

package index

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
	"kindex/internal/lookup"
)

// Reason is why a lookup brought nothing.
type Reason uint8

// The reasons.
const (
	Skipped     Reason = iota // not asked: it has just failed several
	Deadline                  // no answer in time
	Unavailable               // not reached, or it says so
	Denied                    // it refuses the gateway
	NoModel                   // it has no worker of the model: an answer, no fault
	Refused                   // it says that the question is wrong
	Fault                     // anything else
	numReasons
)

var reasonNames = [numReasons]string{"skipped", "deadline", "unavailable", "denied", "no_model", "refused", "fault"}

// String returns the reason as a metric's label has it.
func (r Reason) String() string { return reasonNames[r] }

// Reasons returns all reasons.
func Reasons() []Reason {
	rs := make([]Reason, numReasons)
	for i := range rs {
		rs[i] = Reason(i)
	}
	return rs
}

// reasonOf returns why a lookup failed, and whether that speaks against the index.
func reasonOf(err error) (r Reason, fault bool) {
	switch lookup.KindOf(err) {
	case lookup.ErrDeadline:
		return Deadline, true
	case lookup.ErrUnavailable:
		return Unavailable, true
	case lookup.ErrDenied:
		return Denied, true
	case lookup.ErrNotFound:
		return NoModel, false
	case lookup.ErrInvalid, lookup.ErrConflict:
		return Refused, false
	}
	return Fault, true
}

// The pace of a guard. A failure weighs failWeight, an answer takes one off: at
// failTrip lookups are skipped, after three failures in a row or at more than one in
// five. Chosen, not measured.
const (
	failWeight = 4
	failTrip   = 12
	pauseFirst = 100 * time.Millisecond
	pauseMost  = 5 * time.Second
	// trialTime is how long a trial may take: a trial costs nobody's time, but an index
	// that is slower than the deadline is of no use.
	trialTime = time.Second
)

// guard counts how lookups end, and decides whether the index is asked.
//
// Concurrency: any goroutine.
type guard struct {
	trial func(ctx context.Context) error // asks the index something small
	limit time.Duration                   // of a trial that passes: the lookups' deadline

	weight atomic.Int64 // of failures of late
	until  atomic.Int64 // no lookup before, by fleet.Now; 0: they are made
	trying atomic.Bool  // a trial is under way
	closed atomic.Bool

	mu    sync.Mutex
	pause time.Duration // the last one

	answered atomic.Uint64
	failed   [numReasons]atomic.Uint64
	pauses   atomic.Uint64
	lost     atomic.Int64 // ns that failed lookups took
	trials   sync.WaitGroup
}

// open reports whether the index is to be asked now. Where a pause is over it has a
// trial made.
func (g *guard) open() bool {
	until := g.until.Load()
	if until == 0 {
		return true
	}
	if fleet.Now() >= until && !g.closed.Load() && !g.trying.Swap(true) {
		g.try()
	}
	g.failed[Skipped].Add(1)
	return false
}

// try makes a trial aside.
func (g *guard) try() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Load() {
		return
	}
	g.trials.Go(func() {
		defer g.trying.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), trialTime)
		defer cancel()
		began := fleet.Now()
		err := g.trial(ctx)
		took := time.Duration(fleet.Now() - began)
		_, fault := reasonOf(err)
		g.mu.Lock()
		defer g.mu.Unlock()
		if err != nil && fault || took > g.limit {
			g.trip()
			return
		}
		g.weight.Store(failTrip - failWeight) // the next failure ends it again
		g.until.Store(0)
	})
}

// trip begins a pause, longer than the one before. The caller holds mu.
func (g *guard) trip() {
	g.pause = min(max(2*g.pause, pauseFirst), pauseMost)
	g.pauses.Add(1)
	g.until.Store(fleet.Now() + int64(g.pause))
}

// ended takes how a lookup of ctx that began at began, by fleet.Now, ended.
func (g *guard) ended(ctx context.Context, began int64, err error) {
	if err == nil {
		g.answered.Add(1)
		g.good()
		return
	}
	if errors.Is(err, context.Canceled) && lookup.KindOf(err) == nil || ctx.Err() != nil {
		return // the request's end says nothing of the index
	}
	r, fault := reasonOf(err)
	g.failed[r].Add(1)
	if !fault {
		g.good()
		return
	}
	g.lost.Add(fleet.Now() - began)
	if g.weight.Add(failWeight) < failTrip {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.until.Load() == 0 { // the first of those who fail together
		g.trip()
	}
}

// good takes an answer.
func (g *guard) good() {
	for {
		w := g.weight.Load()
		if w <= 0 {
			return
		}
		if g.weight.CompareAndSwap(w, w-1) {
			if w == 1 {
				g.mu.Lock()
				g.pause = 0
				g.mu.Unlock()
			}
			return
		}
	}
}

// paused reports whether lookups are skipped.
func (g *guard) paused() bool { return g.until.Load() != 0 }

// close ends trials.
func (g *guard) close() {
	g.mu.Lock()
	g.closed.Store(true)
	g.mu.Unlock()
	g.trials.Wait()
}

// stats returns what g has counted.
func (g *guard) stats() Stats {
	s := Stats{Answered: g.answered.Load(), Pauses: g.pauses.Load(), Paused: g.paused(), Lost: time.Duration(g.lost.Load())}
	for i := range s.Failed {
		s.Failed[i] = g.failed[i].Load()
	}
	return s
}
