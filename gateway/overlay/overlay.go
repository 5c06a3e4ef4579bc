// SPDX-License-Identifier: Apache-2.0

// Before: the router, which has the index's answer. After: the policy, which is asked
// with what comes of both.

package overlay

import (
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/policy"
	"kindex/internal/kv"
)

// Options bound an overlay.
type Options struct {
	// PredictLife is how long a predicted entry stands if nothing ends it; 0: nothing
	// is predicted.
	PredictLife time.Duration
	// ConfirmLife is how long a confirmed entry stands after the last answer that
	// bears it out; 0: nothing is confirmed.
	ConfirmLife time.Duration
	// Grace is how long an answer that tells of more than the index knew waits for the
	// index to hear of it.
	Grace time.Duration

	// Bounds of the predicted and of the confirmed entries each.
	MaxEntries, MaxBytes int64
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{
		PredictLife: 2 * time.Second, ConfirmLife: 10 * time.Minute, Grace: 500 * time.Millisecond,
		MaxEntries: 1 << 16, MaxBytes: 64 << 20,
	}
}

// Overlay is what no index can know yet. The package describes it.
//
// Concurrency: any goroutine.
type Overlay struct {
	o         Options
	predicted *table
	confirmed *table
	records   sync.Map // *fleet.Worker -> *record
	waiting   waiting
	accuracy  accuracy
	stats     counters
}

// counters are how often each thing happened.
type counters struct {
	predicted, predictedUsed, conflicts, withdrawn, indexed   atomic.Uint64
	confirmed, confirmedUsed, contradicted, emptied, overtook atomic.Uint64
}

// New returns an empty overlay.
func New(o Options) *Overlay {
	return &Overlay{o: o, predicted: newTable(o.MaxEntries, o.MaxBytes, true), confirmed: newTable(o.MaxEntries, o.MaxBytes, false)}
}

// View is one prompt as the overlay sees it, and the memory that this needs. Only what
// [View.Open] sets is the caller's business.
type View struct {
	hashes []kv.ContentHash
	seed   uint64
	chain  []uint64
	hits   []hit
	seq    uint64 // predicted entries when the view was taken
	raised []raised
}

// raised is a match that the overlay made deeper than the index has it.
type raised struct {
	holder  *fleet.Holder
	indexed uint32
}

// Open sets v to a prompt: the content hashes of its whole blocks, in a namespace. They
// must not change until the next Open.
func (v *View) Open(seed uint64, hashes []kv.ContentHash) {
	v.hashes, v.seed, v.chain = hashes[:min(len(hashes), longest)], seed, v.chain[:0]
}

// whole makes the prefix hashes of all of v's blocks.
func (v *View) whole() []uint64 {
	if n := len(v.chain); n < len(v.hashes) {
		seed := v.seed
		if n > 0 {
			seed = v.chain[n-1]
		}
		v.chain = appendChain(v.chain, seed, v.hashes[n:])
	}
	return v.chain
}

// first makes the prefix hash of v's first block.
func (v *View) first() uint64 {
	if len(v.chain) == 0 {
		v.chain = appendChain(v.chain, v.seed, v.hashes[:1])
	}
	return v.chain[0]
}

// Merge adds to ms, an index's matches with the most blocks first, what the overlay
// knows of v's prompt, and keeps that order. What the index knows is never made less;
// where a request under way is to bring more the match says [policy.Match.Predicted].
func (o *Overlay) Merge(v *View, ms []policy.Match, now int64) []policy.Match {
	v.seq = o.predicted.seq.Load()
	clear(v.raised)
	v.raised = v.raised[:0]
	if len(v.hashes) > 0 {
		ms = o.merge(v, o.confirmed, ms, now)
		ms = o.merge(v, o.predicted, ms, now)
	}
	return ms
}

func (o *Overlay) merge(v *View, t *table, ms []policy.Match, now int64) []policy.Match {
	if t.seq.Load() == 0 || !t.there(v.first()) {
		return ms
	}
	v.hits = t.find(v.hits[:0], v.whole(), now, nil)
	for _, h := range v.hits {
		if h.depth == 0 || h.e.holder.Worker.State() == fleet.Removed || h.e.stale() {
			continue
		}
		at, knows := place(ms, h.e.holder), 0
		if at < len(ms) {
			knows = int(ms[at].Blocks)
		}
		if knows >= h.depth {
			if int(v.Indexed(h.e.holder, uint32(knows))) >= h.depth && int(h.e.length.Load()) <= h.depth {
				o.known(t, h.e) // the index tells of it now, and will tell of its end
			}
			continue
		}
		m := policy.Match{Holder: h.e.holder, Blocks: uint32(h.depth), Device: uint32(h.depth), Predicted: t == o.predicted}
		if at < len(ms) {
			m.Degraded = ms[at].Degraded
		}
		v.raised = append(v.raised, raised{m.Holder, v.Indexed(m.Holder, uint32(knows))})
		ms = raise(ms, at, m)
		o.used(t)
	}
	clear(v.hits)
	return ms
}

// Indexed returns how many blocks the index alone had of h, of whom a merged match says
// that it has so many.
func (v *View) Indexed(h *fleet.Holder, merged uint32) uint32 {
	for i := range v.raised {
		if v.raised[i].holder == h {
			return v.raised[i].indexed
		}
	}
	return merged
}

// known ends an entry that the index has taken over.
func (o *Overlay) known(t *table, e *entry) {
	t.end(e)
	if t == o.confirmed {
		o.stats.overtook.Add(1)
	} else {
		o.stats.indexed.Add(1)
	}
}

func (o *Overlay) used(t *table) {
	if t == o.confirmed {
		o.stats.confirmedUsed.Add(1)
	} else {
		o.stats.predictedUsed.Add(1)
	}
}

// Blocks returns how many blocks ms has of h.
func Blocks(ms []policy.Match, h *fleet.Holder) uint32 {
	if i := place(ms, h); i < len(ms) {
		return ms[i].Blocks
	}
	return 0
}

// place returns where ms has h; len(ms): nowhere.
func place(ms []policy.Match, h *fleet.Holder) int {
	for i := range ms {
		if ms[i].Holder == h {
			return i
		}
	}
	return len(ms)
}

// raise puts m at the place of the one at at, or adds it, and then where its blocks
// belong.
func raise(ms []policy.Match, at int, m policy.Match) []policy.Match {
	if at == len(ms) {
		ms = append(ms, m)
	}
	for ; at > 0 && ms[at-1].Blocks < m.Blocks; at-- {
		ms[at] = ms[at-1]
	}
	ms[at] = m
	return ms
}

// Left forgets a worker that is no longer registered.
func (o *Overlay) Left(w *fleet.Worker) {
	o.records.Delete(w)
}

// Sweep ends what is over. To be called a few times a second.
func (o *Overlay) Sweep(now int64) {
	o.predicted.sweep(now)
	o.confirmed.sweep(now)
	o.records.Range(func(_, r any) bool {
		r.(*record).rest(now) //nolint:errcheck // nothing else is in there
		return true
	})
}
