// SPDX-License-Identifier: Apache-2.0

// Before: watch.go, which is told something or has a round. After: the worker's state
// and vetoes.

package health

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"kindex/gateway/fleet"
)

// sight is what a watch knows of one worker. Times are by [fleet.Now].
//
// Concurrency: any goroutine, but for what is said to be the rounds' alone.
type sight struct {
	watch  *Watch
	worker *fleet.Worker
	ctx    context.Context // of its probes
	end    context.CancelFunc
	target target
	joined int64

	failed   atomic.Int64 // the newest connection that could not be made
	reached  atomic.Int64 // when it could last be reached again
	direct   atomic.Int64 // the newest answer of its own, to a request or a probe
	answered atomic.Int64 // the newest whole answer to a request
	fullTill atomic.Int64 // it answered that it is full

	due    atomic.Int64 // when the next probe is
	asked  atomic.Int64 // when the one under way began; 0: none is
	slot   atomic.Bool  // that one counts among those at once
	beside atomic.Bool  // another one is tried beside it

	mu      sync.Mutex
	last    Result // guarded by mu
	lastAt  int64  // guarded by mu
	passes  int    // in a row; guarded by mu
	fails   int    // in a row; guarded by mu
	unwell  int64  // when fails began; 0: it is well; guarded by mu
	tries   uint   // probes begun while it was not well; guarded by mu
	gone    bool   // it could not be connected to, or let a probe wait, since its faults began; guarded by mu
	giveUp  context.CancelFunc
	breaker *gobreaker.CircuitBreaker[struct{}] // nil: closed, and no fault in a row; guarded by mu
	faults  atomic.Uint32                       // kinds of the faults in a row, a bit each; written under mu
	mute    atomic.Bool                         // it stands still by more than its streams' silence

	// The rounds' alone.
	triedAt int64 // when a probe beside began last
	ranks   []rank
}

func newSight(w *Watch, worker *fleet.Worker) *sight {
	s := &sight{watch: w, worker: worker, target: targetOf(worker, w.options()), joined: fleet.Now(), ranks: make([]rank, len(worker.Holders))}
	for i, h := range worker.Holders {
		s.ranks[i].holder = h
	}
	s.ctx, s.end = context.WithCancel(w.ctx)
	return s
}

func (s *sight) newer(at *atomic.Int64, now int64) {
	for {
		old := at.Load()
		if old >= now || at.CompareAndSwap(old, now) {
			return
		}
	}
}

// heard returns the newest sign of life. What a relay forwards is not the engine's own:
// the relay may live on without it.
func (s *sight) heard() int64 {
	at := max(s.joined, s.direct.Load(), s.worker.LastToken())
	if s.worker.Spec.Events.Relay == "" {
		at = max(at, s.worker.LastContact())
	}
	return at
}

// unconnected notes that no connection could be made.
func (s *sight) unconnected(now int64) {
	s.newer(&s.failed, now)
	s.reach(now)
	s.soon(now)
}

// reach sets or lifts the veto on who cannot be connected to and is silent.
func (s *sight) reach(now int64) {
	o, failed, heard := s.watch.options(), s.failed.Load(), s.heard()
	stall := int64(o.StallAfter)
	out := stall > 0 && failed > heard && now-heard >= stall
	if out && s.unprobed() && now-failed >= int64(o.BreakerOpen) {
		out = false // nobody but a request finds out whether it is back
	}
	if !out && heard >= failed && s.worker.Vetoes()&fleet.Unreachable != 0 {
		s.newer(&s.reached, now)
	}
	s.steer(fleet.Unreachable, out)
}

// unprobed reports whether the worker's registration says that nobody probes it.
func (s *sight) unprobed() bool {
	off := s.worker.Terms().Health.Off
	return off != nil && *off
}

// full notes that the worker answered that it is.
func (s *sight) full(now int64) {
	if back := s.watch.options().BackOff; back > 0 {
		s.newer(&s.fullTill, now+int64(back))
		s.steer(fleet.Overloaded, true)
	}
}

// steer sets or lifts a veto, and tells of it where it was otherwise.
func (s *sight) steer(v fleet.Veto, on bool) {
	if (s.worker.Vetoes()&v != 0) == on || s.worker.Steer(v, on) == 0 {
		return
	}
	s.watch.counts.veto(v, on)
	if v == fleet.Overloaded { // comes and goes with load
		return
	}
	level, what := slog.LevelInfo, "veto lifted"
	if on {
		level, what = slog.LevelWarn, "worker vetoed"
	}
	s.watch.log.Log(s.ctx, level, what, "worker", s.worker.Spec.URL, "veto", vetoName(v))
}

// move takes the worker from one state to another, unless it drains or has gone.
func (s *sight) move(from, to fleet.State) {
	if !s.worker.MoveState(from, to) {
		return
	}
	s.watch.counts.states[to].Add(1)
	level := slog.LevelInfo
	if to != fleet.Ready {
		level = slog.LevelWarn
	}
	s.watch.log.Log(s.ctx, level, "worker moved", "worker", s.worker.Spec.URL, "from", from.String(), "to", to.String())
}

// sweep looks at all vetoes.
func (s *sight) sweep(now int64) {
	s.reach(now)
	s.steer(fleet.Wedged, s.wedged(now))
	s.steer(fleet.Stale, s.stale(now))
	s.steer(fleet.Overloaded, s.overloaded(now))
	s.trial()
}

// span returns a worker's own setting, or the watch's.
func span(own *time.Duration, otherwise time.Duration) time.Duration {
	if own != nil && *own > 0 {
		return *own
	}
	return otherwise
}

// count is span of a number.
func count(own *int, otherwise int) int {
	if own != nil && *own > 0 {
		return *own
	}
	return otherwise
}
