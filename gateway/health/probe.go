// SPDX-License-Identifier: Apache-2.0

// Before: watch.go, which has a round. After: check.go, which asks a worker; the
// worker's state.

package health

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"kindex/gateway/fleet"
)

// Result is what became of a probe.
type Result uint8

// The results.
const (
	None     Result = iota // there was none yet
	Passed                 // it serves
	Unwell                 // it answered that it does not
	Refused                // no connection
	TimedOut               // no answer in time
	Neutral                // counts neither way: it is full, answers moved meanwhile, or the fault is ours
	numResults
)

var resultNames = [numResults]string{"none", "passed", "unwell", "refused", "timed_out", "neutral"}

// String returns the result's name in metrics.
func (r Result) String() string { return resultNames[r] }

const (
	// overdue is how long a probe may wait for its answer before another is tried
	// beside it, and how long that one gets.
	overdue = int64(500 * time.Millisecond)
	// atOnce is how long a probe counts among those at once: it then only waits.
	atOnce = int64(100 * time.Millisecond)
	// manyTries is how many of the short probes are followed by one with the whole
	// time for a connection: a worker may be far away.
	manyTries = 8
	// failedLong is after how long a worker that is not well is asked half as often.
	failedLong = int64(time.Minute)
	// pendingFailures is how many probes fail in a row until a worker that was never
	// ready counts as failed.
	pendingFailures = 30

	againPending = int64(5 * time.Millisecond)  // from one passed probe to the next
	againBack    = int64(50 * time.Millisecond) // the same of a worker that comes back
	soonPending  = int64(100 * time.Millisecond)
)

// starved is what round returns for a probe that is due and was one too many.
const starved = math.MaxInt64 - 1

// round begins the probes that are due, and returns when it wants the next round. Only
// the rounds call it.
func (s *sight) round(now int64) int64 {
	if s.unprobed() {
		for _, was := range [...]fleet.State{fleet.Pending, fleet.NotReady, fleet.Failed} {
			s.move(was, fleet.Ready)
		}
		return math.MaxInt64
	}
	asked := s.asked.Load()
	if asked == 0 {
		due := s.due.Load()
		if now < due {
			return due
		}
		if s.watch.slots.Add(-1) < 0 { // whoever frees one brings a round
			s.watch.slots.Add(1)
			return starved
		}
		s.slot.Store(true)
		s.asked.Store(now)
		s.watch.ended.Go(func() { s.probe(now) })
		return now + atOnce
	}
	if now < asked+atOnce {
		return asked + atOnce
	}
	s.freeSlot() // those that hang must not keep others from being asked
	if now < asked+overdue {
		return asked + overdue
	}
	next := s.triedAt + overdue
	if unwell := asked - s.heard(); unwell > failedLong {
		next += overdue
	}
	if now < next {
		return next
	}
	if !s.beside.Swap(true) {
		s.triedAt = now
		s.watch.counts.beside.Add(1)
		s.watch.ended.Go(func() { s.probeBeside(now) })
	}
	return now + overdue
}

func (s *sight) freeSlot() {
	if s.slot.Swap(false) {
		s.watch.slots.Add(1)
		s.watch.wake()
	}
}

// soon has the worker probed at once, unless that was just done.
func (s *sight) soon(now int64) {
	if s.asked.Load() != 0 {
		return
	}
	s.mu.Lock()
	at := max(now, s.lastAt+int64(s.watch.options().ProbeFast))
	s.mu.Unlock()
	if s.due.Load() > at {
		s.due.Store(at)
		s.watch.wake()
	}
}

// probe asks the worker.
func (s *sight) probe(began int64) {
	o := s.watch.options()
	connect := o.ProbeConnect
	s.mu.Lock()
	unwell := s.unwell != 0 || s.worker.State() != fleet.Ready
	if unwell {
		if s.tries++; s.tries%manyTries != 0 {
			connect = min(connect, time.Duration(overdue))
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, span(s.worker.Terms().Health.Timeout, o.ProbeTimeout))
	defer cancel()
	s.giveUp = cancel
	s.mu.Unlock()

	err := s.target.check(ctx, s.worker, connect, unwell)
	s.mu.Lock()
	if s.ctx.Err() == nil {
		r := s.resultOf(ctx, err, began)
		s.watch.counts.probes[r].Add(1)
		s.last, s.lastAt = r, fleet.Now()
		s.judge(r, began)
	}
	s.giveUp = nil
	s.asked.Store(0)
	s.mu.Unlock()
	s.freeSlot()
	s.watch.wake()
}

// probeBeside asks the worker while a probe is overdue. Only if that passes it counts:
// then the other one is given up.
func (s *sight) probeBeside(began int64) {
	defer s.beside.Store(false)
	ctx, cancel := context.WithTimeout(s.ctx, time.Duration(overdue))
	defer cancel()
	if s.target.check(ctx, s.worker, time.Duration(overdue), true) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.asked.Load() == 0 {
		return
	}
	s.watch.counts.probes[Passed].Add(1)
	s.last, s.lastAt = Passed, fleet.Now()
	s.judge(Passed, began)
	if s.giveUp != nil {
		s.giveUp()
	}
}

// resultOf says what an error of a probe means. The caller holds mu.
func (s *sight) resultOf(ctx context.Context, err error, began int64) Result {
	moved := s.heard() > began
	switch {
	case err == nil:
		return Passed
	case errors.Is(err, errOurs), errors.Is(err, errFull):
		return Neutral
	case errors.Is(ctx.Err(), context.Canceled): // another one passed
		return Neutral
	case errors.Is(err, errConnect):
		return Refused
	case ctx.Err() == nil:
		return Unwell
	case moved: // whose answers move is busy
		return Neutral
	}
	return TimedOut
}

// judge takes a probe's result in. The caller holds mu.
func (s *sight) judge(r Result, began int64) {
	now := fleet.Now()
	switch r {
	case Passed:
		s.passed(now)
	case Neutral:
	case Refused, TimedOut, Unwell:
		if r == Refused {
			s.newer(&s.failed, began)
			s.reach(now)
		}
		s.gone = s.gone || r != Unwell
		s.failedProbe(now)
	case None, numResults:
	}
	s.schedule(r, began, now)
}

// passed counts a probe that passed. It lifts what only probes and connections told of,
// and promotes the worker with enough of them in a row. The caller holds mu.
func (s *sight) passed(now int64) {
	s.newer(&s.direct, now)
	s.worker.Contact(now)
	s.passes++
	s.fails, s.unwell, s.tries = 0, 0, 0
	s.reach(now)
	if s.passes < count(s.worker.Terms().Health.Successes, s.watch.options().ProbeSuccesses) {
		return
	}
	switch state := s.worker.State(); state {
	case fleet.NotReady, fleet.Failed:
		s.restore() // what comes back is not what failed
		s.move(state, fleet.Ready)
	case fleet.Pending:
		s.move(state, fleet.Ready)
	case fleet.Ready:
		if s.gone {
			s.restore()
			s.gone = false
		}
	case fleet.Draining, fleet.Removed:
	}
}

// failedProbe counts a probe that failed. The caller holds mu.
func (s *sight) failedProbe(now int64) {
	s.passes = 0
	s.fails++
	if s.unwell == 0 {
		s.unwell = now
	}
	switch state := s.worker.State(); state {
	case fleet.Ready:
		if s.fails >= count(s.worker.Terms().Health.Failures, s.watch.options().ProbeFailures) {
			s.move(state, fleet.NotReady)
		}
	case fleet.NotReady:
		if s.fails >= s.watch.options().ProbeLost {
			s.move(state, fleet.Failed)
		}
	case fleet.Pending:
		if s.fails >= pendingFailures {
			s.move(state, fleet.Failed)
		}
	case fleet.Failed, fleet.Draining, fleet.Removed:
	}
}

// schedule says when the next probe is, after one that began at began. The caller holds mu.
func (s *sight) schedule(r Result, began, now int64) {
	o, state := s.watch.options(), s.worker.State()
	fast := int64(o.ProbeFast)
	var after int64
	switch {
	case r == Passed && state == fleet.Pending:
		after = againPending
	case r == Passed && state < fleet.Draining && (state != fleet.Ready || s.gone):
		after = min(againBack, fast)
	case s.unwell != 0 && now-s.unwell > failedLong:
		after = 2 * fast
	case state == fleet.Pending && s.fails < manyTries:
		after = min(soonPending, fast)
	case s.unwell != 0 || state == fleet.NotReady || state == fleet.Failed || s.failed.Load() > s.heard():
		after = fast
	default:
		after = int64(span(s.worker.Terms().Health.Interval, o.ProbeInterval))
		after += int64((rand.Float64() - 0.5) / 5 * float64(after)) // that many workers are not asked at once
	}
	due := now + after
	if r == Refused { // the time that it took to fail counts: what is unreachable is tried without a pause
		due = max(began+after, now+grain)
	}
	s.due.Store(due)
}
