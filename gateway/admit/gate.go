// SPDX-License-Identifier: Apache-2.0

// Before: the front, which has a parsed request. After: the router, which places it.

package admit

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// Options are a gate's.
type Options struct {
	Limit int           // requests at once; 0: no bound, nobody waits
	Queue int           // that may wait for a place; 0: nobody waits
	Wait  time.Duration // how long one may wait; 0: until its caller gives up
}

// DefaultOptions returns the defaults. They bound memory, they do not shape load: an
// idle place costs nothing, and workers say themselves when they are full.
func DefaultOptions() Options {
	return Options{Limit: 16_384, Queue: 4_096, Wait: 30 * time.Second}
}

// Validate reports the first setting that cannot be.
func (o *Options) Validate() error {
	switch {
	case o.Limit < 0:
		return fmt.Errorf("max-inflight: %d: must be 0 or more requests", o.Limit)
	case o.Queue < 0:
		return fmt.Errorf("queue: %d: must be 0 or more requests", o.Queue)
	case o.Wait < 0:
		return fmt.Errorf("queue-timeout: %v: must not be negative", o.Wait)
	}
	return nil
}

// Reason is why a gate let a request not in.
type Reason uint8

// The reasons.
const (
	Full Reason = iota // as many wait as may
	Late               // it waited for as long as it may
)

var reasonNames = [...]string{"queue_full", "queue_timeout"}

// String returns the reason's name in answers and metrics.
func (r Reason) String() string { return reasonNames[r] }

// RefusedError is the error of a request that was not let in.
type RefusedError struct {
	Reason     Reason
	Limit      int
	Waiting    int           // as it was refused
	RetryAfter time.Duration // whole seconds, 1 to 60: until the queue will have moved on
}

// Error implements error.
func (r *RefusedError) Error() string {
	if r.Reason == Late {
		return fmt.Sprintf("no place among %d requests came free in time", r.Limit)
	}
	return fmt.Sprintf("%d requests are being carried and %d wait: no more may", r.Limit, r.Waiting)
}

// Stats are a gate's counts since it began, and how it stands.
type Stats struct {
	Running, Waiting int

	Admitted uint64 // requests that got a place, at once or later
	Queued   uint64 // that had to wait
	Full     uint64 // refused: the queue was full
	Late     uint64 // refused: they waited for too long
	GaveUp   uint64 // whose caller went while they waited
}

// Gate is the one door of all requests.
//
// Concurrency: any goroutine. Cost: one lock and no allocation when nobody waits.
type Gate struct {
	leave func() // exit, bound once

	mu     sync.Mutex
	o      Options
	stats  Stats
	first  *waiter // of the queue
	last   *waiter
	freed  uint64 // places that came free while a bound held
	pace   float64
	paceAt time.Time // when pace was measured last
	paceOf uint64    // freed then
}

// waiter is one in the queue.
type waiter struct {
	next, prev *waiter
	turn       chan struct{} // has one as soon as the place is the waiter's
	granted    bool          // guarded by the gate's mu
}

// New returns a gate.
func New(o Options) *Gate {
	g := &Gate{o: o}
	g.leave = g.exit
	return g
}

// Set changes the bounds. Who has a place keeps it; who waits may get one.
func (g *Gate) Set(o Options) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.o = o
	for g.first != nil && (o.Limit == 0 || g.stats.Running < o.Limit) {
		g.grant()
	}
}

// Enter gives the caller a place, which it gives back by calling leave exactly once.
//
// Errors: *[RefusedError]; or the context's, where the caller went while it waited.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	g.mu.Lock()
	if g.first == nil && (g.o.Limit == 0 || g.stats.Running < g.o.Limit) {
		g.stats.Running++
		g.stats.Admitted++
		g.mu.Unlock()
		return g.leave, nil
	}
	if g.stats.Waiting >= g.o.Queue {
		g.stats.Full++
		err := g.refusal(Full)
		g.mu.Unlock()
		return nil, err
	}
	w := &waiter{turn: make(chan struct{}, 1), prev: g.last}
	if g.last == nil {
		g.first = w
	} else {
		g.last.next = w
	}
	g.last = w
	g.stats.Waiting++
	g.stats.Queued++
	wait := g.o.Wait
	g.mu.Unlock()
	return g.await(ctx, w, wait)
}

func (g *Gate) await(ctx context.Context, w *waiter, wait time.Duration) (leave func(), err error) {
	var late <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-w.turn:
		return g.leave, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-late:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.granted { // in the same moment
		if err == nil {
			return g.leave, nil
		}
		g.stats.GaveUp++
		g.free()
		return nil, err
	}
	g.unlink(w)
	if err != nil {
		g.stats.GaveUp++
		return nil, err
	}
	g.stats.Late++
	return nil, g.refusal(Late)
}

// exit gives a place back.
func (g *Gate) exit() {
	g.mu.Lock()
	g.free()
	g.mu.Unlock()
}

// free hands a place that came free to who waits first. The caller holds mu.
func (g *Gate) free() {
	if g.stats.Running <= 0 {
		panic("BUG: admit: a place was given back that nobody had")
	}
	g.stats.Running--
	g.freed++
	if g.first != nil && (g.o.Limit == 0 || g.stats.Running < g.o.Limit) {
		g.grant()
	}
}

// grant gives who waits first a place. The caller holds mu.
func (g *Gate) grant() {
	w := g.first
	g.unlink(w)
	w.granted = true
	g.stats.Running++
	g.stats.Admitted++
	w.turn <- struct{}{} // has room: it is the waiter's only one
}

// unlink takes w out of the queue. The caller holds mu.
func (g *Gate) unlink(w *waiter) {
	if w.prev == nil {
		g.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		g.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	g.stats.Waiting--
}

// longestRetry is the longest that a refused caller is told to stay away, in s.
const longestRetry = 60

// refusal says no, and when the queue will have moved on at the pace at which places
// came free of late. The caller holds mu.
func (g *Gate) refusal(why Reason) *RefusedError {
	now := time.Now()
	switch span := now.Sub(g.paceAt).Seconds(); {
	case g.paceAt.IsZero():
		g.paceAt, g.paceOf = now, g.freed
	case span >= 1:
		g.pace, g.paceAt, g.paceOf = float64(g.freed-g.paceOf)/span, now, g.freed
	}
	secs := 1.0
	if g.pace > 0 {
		secs = math.Ceil(float64(g.stats.Waiting) / g.pace)
	}
	secs = min(max(secs, 1), longestRetry)
	return &RefusedError{Reason: why, Limit: g.o.Limit, Waiting: g.stats.Waiting, RetryAfter: time.Duration(secs) * time.Second}
}

// Stats returns the counts.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}
