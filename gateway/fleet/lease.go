// SPDX-License-Identifier: Apache-2.0

// Before: a decision. After: the transports, which tell what became of the request.

package fleet

import "sync/atomic"

// Work is what a request will cost its holder, as far as it is known.
type Work struct {
	Prompt int64 // tokens of the prompt; 0: not known
	Cached int64 // of them, what the holder need not compute
	Stream bool  // its tokens are seen one by one
}

// A Lease is one request's place on a holder: it counts there from [Holder.Take] until
// [Lease.Release], whatever becomes of the worker meanwhile. It counts on the
// registration that it was taken on and on no later one of the same URL.
//
// Concurrency: any goroutine.
type Lease struct {
	Holder *Holder
	Since  int64 // by [Now]

	seq     uint64       // the first lease of a holder has 1
	prefill atomic.Int64 // tokens it still counts for
	before  int64        // tokens that the holder had prefilled as it was taken
	stream  bool
	moved   atomic.Int64 // its newest token; 0: none yet
	first   atomic.Bool  // a first token came, or the lease ended without one
	done    atomic.Bool
	held    atomic.Bool // of a stream: it does not count among its holder's
}

// Take gives a request its place on h, whatever the state of its worker.
func (h *Holder) Take(w Work) *Lease {
	now := Now()
	l := &Lease{Holder: h, Since: now, stream: w.Stream, before: h.prefilled.Load()}
	prefill := max(w.Prompt-w.Cached, 0)
	l.prefill.Store(prefill)
	h.history.prefill.note(now, uint64(h.prefill.Add(prefill)-prefill))
	l.seq = h.taken.Add(1)
	h.history.taken.note(now, l.seq-1)
	h.tokens.Add(prefill)
	if w.Stream {
		if h.streams.Load() == 0 { // before it counts, so that no one sees a stream that never moved
			newer(&h.rose, now)
		}
		h.unmoved.Add(1)
		h.streams.Add(1)
	}
	h.requests.Add(1) // last: see TryTake
	return l
}

// TryTake is Take where the worker takes new requests; nil: it drains or has gone.
//
// A drain that begins beside it either sees the lease or is seen by it: the lease counts
// before the state is read, the state is set before leases are counted.
func (h *Holder) TryTake(w Work) *Lease {
	if s := h.Worker.State(); s == Draining || s == Removed {
		return nil
	}
	l := h.Take(w)
	if s := h.Worker.State(); s == Draining || s == Removed {
		l.Release()
		return nil
	}
	return l
}

// Moved notes that a token of the answer came at the time now: its prefill is over.
// After Release it only tells of the worker.
func (l *Lease) Moved(now int64) {
	h := l.Holder
	newer(&l.moved, now)
	newer(&h.token, now)
	newer(&h.Worker.contact, now)
	l.settle(now)
}

// settle ends what the lease counts for prefill and for a first token, once. That came
// at the time moved; 0: it never did.
func (l *Lease) settle(moved int64) {
	if l.first.Load() || l.first.Swap(true) {
		return
	}
	h := l.Holder
	if l.stream {
		h.unmoved.Add(-1)
	}
	n := l.prefill.Swap(0)
	if n == 0 {
		return
	}
	h.tokens.Add(-n)
	if moved > 0 {
		h.measure(h.prefilled.Add(n)-l.before, n, moved-l.Since, l.stream)
	}
	if r := h.reading.Load(); r != nil && l.seq > r.Taken {
		r.laterPrefill.Add(n)
	}
}

// LastMoved returns when the newest token came; 0: none yet.
func (l *Lease) LastMoved() int64 { return l.moved.Load() }

// Released reports whether the lease was given back.
func (l *Lease) Released() bool { return l.done.Load() }

// Release gives the place back. Only the first call counts; it reports whether it was.
func (l *Lease) Release() bool {
	if l.done.Swap(true) {
		return false
	}
	l.settle(0)
	h := l.Holder
	if r := h.reading.Load(); r != nil && l.seq > r.Taken {
		r.laterEnded.Add(1)
	}
	if l.stream && !l.held.Swap(true) {
		h.streams.Add(-1)
	}
	h.requests.Add(-1)
	return true
}

// Hold notes that a stream's client takes nothing, so that nobody waits for the worker's
// next token, or takes its answer again: meanwhile the lease counts as a request, and not
// as a stream. Who ends a hold is who releases.
func (l *Lease) Hold(on bool) {
	switch h := l.Holder; {
	case !l.stream:
	case on:
		if !l.held.Swap(true) {
			h.streams.Add(-1)
		}
	case !l.done.Load() && l.held.Swap(false):
		if h.streams.Load() == 0 {
			newer(&h.rose, Now())
		}
		h.streams.Add(1)
	}
}
