// SPDX-License-Identifier: Apache-2.0

// Before: decisions, which name a holder. After: the lease of a request on it.

package fleet

import "sync/atomic"

// A Holder is one rank of a worker: what a decision names, and what the index knows
// by the worker's instance and this rank.
type Holder struct {
	Worker *Worker
	Rank   int
	// Seat is the holder's place in its pool's tables. It is the same in all pools and
	// is given to another one only after the worker has gone.
	Seat int

	reading atomic.Pointer[Reading]

	// Of leases that are out; never negative.
	requests atomic.Int64
	tokens   atomic.Int64 // that are to be prefilled: of prompts, less what was cached
	streams  atomic.Int64 // of the requests, those whose tokens are seen one by one
	taken    atomic.Uint64
}

// Reading is one report of a holder's load. It is immutable.
//
// What an engine does not say is negative, which is not zero.
type Reading struct {
	At     int64 // when it was so, by [Now]
	Pushed bool  // by the engine or its relay; else asked for

	Running, Waiting int64   // requests
	WaitingUncached  int64   // tokens that wait to be prefilled and no cache holds
	Usage            float64 // share of the KV pool in use, 0 to 1
	ActiveUsage      float64 // of it what cannot be evicted
	Throughput       float64 // tokens a second
	MaxRunning       int64
	PrefillPending   int64 // tokens yet to be prefilled, running requests' too
	SilenceMS        int64 // without output while it holds requests
	ReportsSteps     bool  // counts every step, so that silence is standing still

	// Taken is how many leases had been taken on the holder when this was read: what
	// came later is not in it.
	Taken uint64
}

// Reading returns the newest report; nil: none yet.
func (h *Holder) Reading() *Reading { return h.reading.Load() }

// SetReading is called by whoever reads loads; an older one than there is is left out.
func (h *Holder) SetReading(r *Reading) bool {
	for {
		old := h.reading.Load()
		if old != nil && old.At > r.At {
			return false
		}
		if h.reading.CompareAndSwap(old, r) {
			return true
		}
	}
}

// InFlight returns the requests that have a lease on h.
func (h *Holder) InFlight() int64 { return h.requests.Load() }

// PrefillInFlight returns the tokens that these are yet to prefill, as far as it was
// known when they were placed and no first token has come.
func (h *Holder) PrefillInFlight() int64 { return h.tokens.Load() }
