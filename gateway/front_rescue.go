// SPDX-License-Identifier: Apache-2.0

// Before: the sweep over clients' connections. After: front_proxy.go, whose try ends, and
// which places the request anew.

package gateway

import (
	"slices"
	"time"

	"kindex/gateway/fleet"
)

// waiting is at whose worker a request is, for whoever looks at it from outside.
type waiting struct {
	worker *fleet.Worker // nil: at none
	pool   *fleet.Pool   // as it was then
	lease  *fleet.Lease
	tried  []*fleet.Worker // before; the request's own
	since  int64           // by fleet.Now
	once   bool            // no other worker may be tried
	stream bool            // its tokens are seen one by one
	begun  bool            // something of the answer is on its way to the client
}

const (
	// stuckAfter is how long a client takes nothing before its stream counts as its
	// own fault.
	stuckAfter = 250 * time.Millisecond
	// deadSilence is how long a stream that has begun may be silent at a worker that
	// cannot be reached. One that stands still may go on: there the stall timeout alone
	// holds.
	deadSilence = 10 * time.Second
)

// dead are the vetoes that say that an answer will not come.
const dead = fleet.Unreachable | fleet.Wedged

// wait notes that the request waits for an answer to the try at p.
func (c *requestContext) wait(w waiting) {
	c.mu.Lock()
	c.at = w
	c.mu.Unlock()
}

// begin notes that the answer is about to go to the client; false: the try was given up.
func (c *requestContext) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at.begun = true
	return !c.given
}

// leave notes that no worker is waited for.
func (c *requestContext) leave() {
	c.mu.Lock()
	c.at = waiting{}
	c.mu.Unlock()
}

// rescued reports whether the context ended because its try was given up.
func (c *requestContext) rescued() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given
}

// moved notes that the client takes its answer again.
func (c *requestContext) moved() {
	c.mu.Lock()
	c.stuck.Store(false)
	if c.at.lease != nil {
		c.at.lease.Hold(false)
	}
	c.mu.Unlock()
}

// look gives up a try whose worker will not answer: where the client has nothing yet and
// another worker may be asked, so that one is; where the client has a part, so that its
// answer ends. A stream whose client takes nothing is told apart from one that its worker
// leaves waiting.
//
// The sweep calls it, with when the client began to take nothing, by sinceEpoch; 0: it
// does. Cost: of a request whose worker is well, a lock and two loads.
func (f *front) look(c *requestContext, stuck int64) {
	c.mu.Lock()
	at := &c.at
	if at.worker == nil || c.ended.Load() {
		c.mu.Unlock()
		return
	}
	if at.begun && at.stream && !c.stuck.Load() && stuck != 0 && sinceEpoch()-stuck >= int64(stuckAfter) {
		c.stuck.Store(true)
		at.lease.Hold(true)
	}
	if !f.lost(at, c.stuck.Load()) {
		c.mu.Unlock()
		return
	}
	c.given = true
	c.endLocked()
}

// lost reports whether a try is to be given up; stuck: its client takes nothing.
func (f *front) lost(at *waiting, stuck bool) bool {
	state, vetoes := at.worker.State(), at.worker.Vetoes()
	if vetoes&dead == 0 && state != fleet.Failed && state != fleet.Removed {
		return false
	}
	if at.begun {
		// Its removal ends no answer, and who waits for the client is not silent.
		since := at.lease.LastMoved()
		if since == 0 {
			since = at.since
		}
		return (vetoes&fleet.Unreachable != 0 || state == fleet.Failed) && at.stream && !stuck && fleet.Now()-since >= int64(deadSilence)
	}
	if at.once || !f.elsewhere(at) {
		return false
	}
	if at.stream || vetoes&fleet.Unreachable != 0 || state == fleet.Failed || state == fleet.Removed {
		return true
	}
	// Of an answer that comes as a whole nothing is seen before its end: that streams
	// beside it stand still may be chance.
	return f.o.StandsStill != nil && f.o.StandsStill(at.worker)
}

// elsewhere reports whether there is another worker that answers, as far as is known:
// of the pool as it is now: others may have come since the request was placed.
func (f *front) elsewhere(at *waiting) bool {
	pool := at.pool
	if f.o.Pool != nil {
		if now := f.o.Pool(pool.Model); now != nil {
			pool = now
		}
	}
	for _, w := range pool.Workers {
		if w != at.worker && w.State() == fleet.Ready && w.Vetoes()&(dead|fleet.BreakerOpen) == 0 && !slices.Contains(at.tried, w) {
			return true
		}
	}
	return false
}
