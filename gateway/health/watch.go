// SPDX-License-Identifier: Apache-2.0

// Before: the registry, which says who is there, and the router, which says how
// requests ended. After: sight.go, one of them for each worker.

package health

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
)

// sweepEvery is how often vetoes are looked at.
const sweepEvery = int64(250 * time.Millisecond)

// grain is the least time between two rounds, so that many workers share them.
const grain = int64(2 * time.Millisecond)

// Watch looks after the workers that it was told of.
//
// Concurrency: any goroutine.
type Watch struct {
	o   atomic.Pointer[Options] // replaced as a whole
	log *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	kick   chan struct{} // a round is due before its time; room for one
	slots  atomic.Int64  // probes that may yet begin

	sights sync.Map                 // *fleet.Worker to *sight
	all    atomic.Pointer[[]*sight] // the same, replaced as a whole
	mu     sync.Mutex               // of writers of both

	counts counts
}

// New returns a watch of nobody. It has a goroutine until Close.
//
// Errors: what [Options.Validate] says.
func New(o Options) (*Watch, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	w := &Watch{log: o.Log, kick: make(chan struct{}, 1)}
	w.o.Store(&o)
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.slots.Store(int64(o.Probes))
	w.all.Store(new([]*sight))
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.ended.Go(w.run)
	return w, nil
}

func (w *Watch) options() *Options { return w.o.Load() }

// Set changes thresholds and times from the next look on. Who asks workers, and how many
// are asked at once, stays as it was; a breaker that has counted faults keeps its
// numbers until it closes.
//
// Errors: what [Options.Validate] says; then nothing has changed.
func (w *Watch) Set(o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	is := w.options()
	o.TLS, o.Log, o.Check, o.Probes, o.ProbePath = is.TLS, is.Log, is.Check, is.Probes, is.ProbePath
	w.o.Store(&o)
	w.wake()
	return nil
}

// Close ends all probes. Workers stay as they stand.
func (w *Watch) Close() {
	w.cancel()
	w.ended.Wait()
	for _, s := range *w.all.Load() {
		s.target.close()
	}
}

// Add begins to look after a worker, and probes it at once.
func (w *Watch) Add(worker *fleet.Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of(worker) != nil || w.ctx.Err() != nil {
		return
	}
	s := newSight(w, worker)
	w.sights.Store(worker, s)
	next := append(slices.Clip(*w.all.Load()), s)
	w.all.Store(&next)
	w.wake()
}

// Remove ends it. What is told of the worker later is left out.
func (w *Watch) Remove(worker *fleet.Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.of(worker)
	if s == nil {
		return
	}
	w.sights.Delete(worker)
	next := slices.DeleteFunc(slices.Clone(*w.all.Load()), func(o *sight) bool { return o == s })
	w.all.Store(&next)
	s.end()
	s.target.close()
}

// of returns what is known of a worker, or nil.
func (w *Watch) of(worker *fleet.Worker) *sight {
	at, _ := w.sights.Load(worker)
	s, _ := at.(*sight)
	return s
}

// Outcome tells how a request to a worker ended. Cost: tens of ns unless it is a fault.
func (w *Watch) Outcome(worker *fleet.Worker, k Kind) {
	s := w.of(worker)
	if s == nil || k >= numKinds {
		return
	}
	w.counts.outcomes[k].Add(1)
	now := fleet.Now()
	switch k {
	case OK:
		s.newer(&s.answered, now)
		s.newer(&s.direct, now)
		s.sound()
	case ClientError, WorkerError:
		s.newer(&s.direct, now)
	case BackPressure:
		s.newer(&s.direct, now)
		s.full(now)
	case ConnectFailed:
		s.unconnected(now)
	case ClientGone, Broken, Stalled, numKinds:
	}
	if k.Fault() {
		s.fault(k)
	}
}

// ConnectFailed tells that no connection to a worker could be made by somebody who had
// no request for it: a stream of events, a poll. Requests are told of by Outcome.
func (w *Watch) ConnectFailed(worker *fleet.Worker) {
	if s := w.of(worker); s != nil {
		s.unconnected(fleet.Now())
	}
}

// Suspect has a worker probed at once: a connection to it ended that should not have.
func (w *Watch) Suspect(worker *fleet.Worker) {
	if s := w.of(worker); s != nil {
		s.soon(fleet.Now())
	}
}

// StandsStill reports whether a worker is taken for wedged by more than that its streams
// are silent: its engine says so, or it leaves a probe waiting, too.
func (w *Watch) StandsStill(worker *fleet.Worker) bool {
	s := w.of(worker)
	return s != nil && s.mute.Load()
}

// Shed reports whether a request for pool is to be refused, and when to come again:
// refusing was chosen, and every ready worker is full by its own word. Cost: O(1) while
// the first ones are not.
func (w *Watch) Shed(pool *fleet.Pool) (retryAfter time.Duration, shed bool) {
	if !w.options().OverloadShed {
		return 0, false
	}
	ready := false
	for _, worker := range pool.Workers {
		if worker.State() != fleet.Ready {
			continue
		}
		ready = true
		if worker.Vetoes()&fleet.Overloaded == 0 {
			return 0, false
		}
	}
	if !ready {
		return 0, false
	}
	w.counts.shed.Add(1)
	return max(w.options().BackOff.Round(time.Second), time.Second), true
}

// wake has a round begin at once.
func (w *Watch) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run has the rounds.
func (w *Watch) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sweep, last := int64(math.MinInt64), int64(math.MinInt64)
	from := 0 // whose turn is first, so that where probes are too many all get one
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-timer.C:
		case <-w.kick:
		}
		now := fleet.Now()
		if rest := last + grain - now; last != math.MinInt64 && rest > 0 {
			timer.Reset(time.Duration(rest))
			continue
		}
		last = now
		due := now >= sweep
		if due {
			sweep = now + sweepEvery
		}
		next, begin, turned := sweep, from, false
		all := *w.all.Load()
		for i := range all {
			at := (begin + i) % len(all)
			s := all[at]
			if due {
				s.sweep(now)
			}
			wants := s.round(now)
			if wants == starved && !turned { // it is first the next time
				from, turned = at, true
			}
			next = min(next, wants)
		}
		timer.Reset(time.Duration(max(next-now, grain)))
	}
}
