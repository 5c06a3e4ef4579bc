// SPDX-License-Identifier: Apache-2.0

// Before: sight.go, which has a sweep. After: its vetoes.

package health

import (
	"time"

	"kindex/gateway/fleet"
)

const (
	// muchPile is how many requests without a token are too many to be chance.
	muchPile = 4
	// longestWedge bounds how long a prefill is allowed for.
	longestWedge = int64(2 * time.Minute)
	// settling is how long after the last token prompts may still have come before
	// whatever holds the engine up.
	settling = int64(time.Second)
	// slowAnswer is how long a probe of a worker that serves may take.
	slowAnswer = int64(2 * time.Second)
	// freshReading is how old a report may be that speaks of the present.
	freshReading = int64(6 * time.Second)
	// oldReading is the least age at which a report says nothing of a worker's load
	// any more, where stale ones are not looked for.
	oldReading = int64(30 * time.Second)
)

// rank is what the rounds know of one of a worker's holders.
type rank struct {
	holder *fleet.Holder
	rate   prefillRate

	// Of the time since the newest progress.
	since   int64
	pile    int64 // streams, as it came
	pending int64 // tokens to be prefilled
	waiting int64 // requests, by the report before
	wedged  bool  // until progress, or nothing to wait for
	doubted bool  // it had been wedged, and its pile drained without progress

	pushed bool // its load was pushed at least once
}

// wedged reports whether the worker stands still.
func (s *sight) wedged(now int64) bool {
	wedge := int64(s.watch.options().WedgeAfter)
	unanswered := s.unanswered(now)
	standing, mute, came := false, false, false
	for i := range s.ranks {
		r := &s.ranks[i]
		moved := r.holder.LastToken()
		if len(s.ranks) == 1 { // else it is not known whose answer it was
			moved = max(moved, s.answered.Load())
		}
		was := r.wedged || r.doubted
		r.look(now, moved, s.reached.Load(), wedge, unanswered)
		came = came || was && !r.wedged && !r.doubted
		mute = mute || r.silent(now, moved, wedge) || unanswered && now-max(s.heard(), moved) >= r.bound(wedge)
		standing = standing || r.wedged
	}
	s.mute.Store(wedge > 0 && mute)
	if came && s.stalledOnly() {
		s.mu.Lock()
		s.restore()
		s.mu.Unlock()
	}
	return wedge > 0 && (standing || mute)
}

// unanswered reports whether a probe waits for its answer, and nothing else came from
// the worker since it began.
func (s *sight) unanswered(now int64) bool {
	asked := s.asked.Load()
	if asked != 0 && now-asked >= slowAnswer && s.heard() < asked {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last == TimedOut && s.lastAt > s.heard()
}

// look settles whether r stands still by its streams. What these missed while the worker
// could not be reached, which it can since reached, does not speak against it: they wait
// for TCP to send again what was lost.
func (r *rank) look(now, moved, reached, wedge int64, unanswered bool) {
	p, report := r.holder.Progress(), r.holder.Reading()
	pending := r.holder.PrefillInFlight()
	since := max(p.Since, moved, reached)
	switch {
	case since > r.since:
		progress, again := moved > r.since, reached > r.since
		r.since, r.pile, r.pending, r.waiting = since, p.Streams, pending, 0
		if report != nil {
			r.waiting = max(report.Waiting, 0)
			if report.At > now-freshReading {
				r.pending = max(r.pending, report.PrefillPending)
			}
		}
		if progress || again {
			r.wedged, r.doubted = false, false
		}
		if progress {
			r.rate.progress(r.holder, moved)
		}
	case now-since < settling:
		r.pending = max(r.pending, pending)
	}
	r.rate.tick(r.holder, now, pending)
	if p.Streams == 0 {
		r.doubted = r.doubted || r.wedged
		r.wedged = false
		return
	}
	if r.wedged || wedge <= 0 || now-r.since < r.bound(wedge) {
		return
	}
	told := report != nil && report.At > r.since && (report.Waiting > 0 || report.Waiting > r.waiting)
	r.wedged = p.Streams >= muchPile || p.Streams > r.pile || told || unanswered || r.doubted
}

// bound returns how long r may go without a token: as long as the prompts before it take.
func (r *rank) bound(wedge int64) int64 {
	eta := int64(float64(r.pending) / r.rate.orPrior() * float64(time.Second))
	return max(wedge, min(eta, longestWedge))
}

// silent reports whether the engine itself says that it stands still: it reports every
// step, or has been silent for twice as long as its prompts take at a rate that is known.
func (r *rank) silent(now, moved, wedge int64) bool {
	report := r.holder.Reading()
	if report == nil || report.SilenceMS < 0 || report.At < moved || report.At < now-freshReading {
		return false
	}
	silence := report.SilenceMS * int64(time.Millisecond)
	if report.ReportsSteps {
		return silence >= wedge
	}
	rate := r.rate.value()
	if rate == 0 {
		return false
	}
	eta := int64(2 * float64(max(report.PrefillPending, r.pending)) / rate * float64(time.Second))
	return silence >= max(wedge, min(eta, longestWedge))
}

// stale reports whether a rank told its load once and does no longer.
func (s *sight) stale(now int64) bool {
	stale := int64(s.watch.options().StaleAfter)
	old := false
	for i := range s.ranks {
		r := &s.ranks[i]
		report := r.holder.Reading()
		if report == nil {
			continue
		}
		r.pushed = r.pushed || report.Pushed
		old = old || r.pushed && now-report.At > stale
	}
	return stale > 0 && old
}

// overloaded reports whether the newest reports, or the worker's own answers, say that
// it is full: waiting requests of all ranks, the mean of their KV pools.
func (s *sight) overloaded(now int64) bool {
	if s.fullTill.Load() > now {
		return true
	}
	o := s.worker.Terms().Overload
	mostUsage, mostWaiting := s.watch.options().OverloadUsage, s.watch.options().OverloadWaiting
	if o.Usage != nil {
		mostUsage = *o.Usage
	}
	if o.Waiting != nil {
		mostWaiting = *o.Waiting
	}
	oldest := now - max(oldReading, int64(s.watch.options().StaleAfter))
	usage, known, waiting := 0.0, 0.0, int64(0)
	for i := range s.ranks {
		report := s.ranks[i].holder.Reading()
		if report == nil || report.At < oldest {
			continue
		}
		waiting += max(report.Waiting, 0)
		u := report.ActiveUsage
		if u < 0 {
			u = report.Usage
		}
		if u >= 0 {
			usage, known = usage+u, known+1
		}
	}
	return mostWaiting > 0 && waiting >= mostWaiting || mostUsage > 0 && known > 0 && usage >= mostUsage*known
}
