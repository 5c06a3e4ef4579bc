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
// [Lease.Release], whatever becomes of the worker meanwhile.
//
// Concurrency: any goroutine.
type Lease struct {
	Holder *Holder
	Since  int64 // by [Now]

	prefill atomic.Int64 // tokens it still counts for
	stream  bool
	moved   atomic.Int64 // its newest token; 0: none yet
	done    atomic.Bool
}

// Take gives a request its place on h.
func (h *Holder) Take(w Work) *Lease {
	l := &Lease{Holder: h, Since: Now(), stream: w.Stream}
	prefill := max(w.Prompt-w.Cached, 0)
	l.prefill.Store(prefill)
	h.taken.Add(1)
	h.requests.Add(1)
	h.tokens.Add(prefill)
	if w.Stream {
		h.streams.Add(1)
	}
	return l
}

// Moved notes that a token of the answer came at the time now: its prefill is over.
func (l *Lease) Moved(now int64) {
	l.moved.Store(now)
	newer(&l.Holder.Worker.contact, now)
	newer(&l.Holder.Worker.token, now)
	l.settle()
}

// settle ends what the lease counts for prefill, once.
func (l *Lease) settle() {
	if n := l.prefill.Swap(0); n != 0 {
		l.Holder.tokens.Add(-n)
	}
}

// LastMoved returns when the newest token came; 0: none yet.
func (l *Lease) LastMoved() int64 { return l.moved.Load() }

// Release gives the place back. Only the first call counts; it reports whether it was.
func (l *Lease) Release() bool {
	if l.done.Swap(true) {
		return false
	}
	l.settle()
	l.Holder.requests.Add(-1)
	if l.stream {
		l.Holder.streams.Add(-1)
	}
	return true
}
