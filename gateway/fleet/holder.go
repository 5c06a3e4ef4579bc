// SPDX-License-Identifier: Apache-2.0

// Before: decisions, which name a holder. After: the lease of a request on it.

package fleet

import "sync/atomic"

// A Holder is one rank of a worker: what a decision names, and what the index knows
// by the worker's instance and this rank.
type Holder struct {
	// What a decision reads of each holder that it looks at fills one line of memory, and
	// begins the next.

	Worker   *Worker
	reading  atomic.Pointer[Reading]
	standing atomic.Uint64 // Standing, of Worker
	cost     atomic.Uint64 // bits of its Terms' Cost

	// Of leases that are out; never negative.
	requests atomic.Int64
	tokens   atomic.Int64 // that are to be prefilled: of prompts, less what was cached

	// Of all leases that ever were; they only grow.
	taken   atomic.Uint64
	prefill atomic.Int64 // tokens that were to be prefilled as these began

	rate atomic.Uint64 // bits of a float64: see PrefillRate

	Rank int
	// Seat is the holder's place in its pool's tables. It is the same in all pools and
	// is given to another one only after the worker has gone.
	Seat int

	// Of leases that are out; never negative.
	streams atomic.Int64 // those whose tokens are seen one by one
	unmoved atomic.Int64 // of the streams, those without a token yet

	history history // of taken and prefill

	prefilled atomic.Int64 // tokens of leases to which a first token came

	held atomic.Int64 // blocks, and one more; 0: not known

	token atomic.Int64 // the newest token of any answer, by [Now]; 0: none yet
	rose  atomic.Int64 // when streams last became more than none, by [Now]
}

// Reading is one report of a holder's load. It is immutable once it is set, is set once,
// on one holder, and is not copied.
//
// What an engine does not say is negative, which is not zero. What a decision reads comes
// first, and all of it fills two lines of memory.
type Reading struct {
	// Of the leases taken after this was read, those that ended meanwhile.
	laterEnded atomic.Int64

	At int64 // when it was so, by [Now]

	Running, Waiting int64   // requests
	WaitingUncached  int64   // tokens that wait to be prefilled and no cache holds
	PrefillPending   int64   // tokens yet to be prefilled, running requests' too
	ActiveUsage      float64 // share of the KV pool that is in use and cannot be evicted, 0 to 1
	Throughput       float64 // tokens a second

	laterPrefill atomic.Int64 // what those of laterEnded counted

	Usage      float64 // share of the KV pool in use, 0 to 1
	MaxRunning int64

	// Taken is how many leases had been taken on the holder when this was read, and
	// TakenPrefill the tokens that these were to prefill: what came later is not in it.
	// [Holder.Stamp] and [Holder.StampAt] set both.
	Taken        uint64
	TakenPrefill int64

	SilenceMS    int64 // without output while it holds requests
	Pushed       bool  // by the engine or its relay; else asked for
	ReportsSteps bool  // counts every step, so that silence is standing still
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

// Taken returns how many leases were ever taken on h.
func (h *Holder) Taken() uint64 { return h.taken.Load() }

// Stamp notes in r what leases have been taken on h until now. Whoever asks an engine
// calls it as he asks; of a report that comes in, and has an age, it is [Holder.StampAt].
func (h *Holder) Stamp(r *Reading) {
	r.TakenPrefill = h.prefill.Load()
	r.Taken = h.taken.Load()
}

// Unread is what is in flight and the newest reading cannot count yet.
type Unread struct {
	Requests int64
	Prefill  int64 // tokens that these are yet to prefill, as [Holder.PrefillInFlight]
}

// Unread returns what is in flight and not in r, which is h's newest reading; r nil: all
// that is in flight. It is exact while nothing else happens; a lease that ends while a
// reading is replaced may count until the next one. It is never negative and never more
// than is in flight.
func (h *Holder) Unread(r *Reading) Unread {
	requests, prefill := h.requests.Load(), h.tokens.Load()
	if r == nil {
		return Unread{max(requests, 0), max(prefill, 0)}
	}
	later := int64(h.taken.Load()-r.Taken) - r.laterEnded.Load()
	tokens := h.prefill.Load() - r.TakenPrefill - r.laterPrefill.Load()
	return Unread{max(min(later, requests), 0), max(min(tokens, prefill), 0)}
}

// Progress is how the streams that a holder has come on.
type Progress struct {
	Streams int64 // in flight
	Unmoved int64 // of them, those without a token yet
	// Since is when h last moved as far as streams tell: its newest token, or when it
	// came to have a stream after it had none. An end without a token is no progress:
	// clients that give up on a standing engine do not make it look alive. By [Now];
	// 0: it never had one.
	Since int64
}

// Progress returns how h's streams come on. Its parts are read one after another.
func (h *Holder) Progress() Progress {
	p := Progress{Since: max(h.rose.Load(), h.token.Load())}
	p.Unmoved, p.Streams = h.unmoved.Load(), h.streams.Load()
	return p
}

// LastToken returns when any answer of h last moved, by [Now]; 0: never.
func (h *Holder) LastToken() int64 { return h.token.Load() }
