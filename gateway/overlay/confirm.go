// SPDX-License-Identifier: Apache-2.0

// Before: the router, which has an answer's usage. After: table.go; later requests'
// Merge.

package overlay

import (
	"sync"

	"kindex/gateway/fleet"
	"kindex/internal/kv"
)

// Names are what an index is asked for a prompt by, besides its blocks.
type Names struct{ Model, LoRA, Salt string }

// Answer is what an engine said of one request, and what had been known of it.
type Answer struct {
	Holder *fleet.Holder
	Names  Names

	Prompt, Cached int64 // tokens, as reported
	BlockSize      int   // tokens

	// Blocks of the prompt: what the index alone had of the holder when it was chosen,
	// what was expected of it in all, and what the best holder had.
	Indexed, Expected, Available uint32
}

// Usable returns how many blocks of a prompt of n tokens a cache can save: the last
// token is computed in any case.
func Usable(n int64, blockSize int) uint32 {
	if n < 1 || blockSize < 1 {
		return 0
	}
	return uint32((n - 1) / int64(blockSize))
}

// Answered takes note of an answer to v's prompt.
func (o *Overlay) Answered(v *View, a *Answer, now int64) {
	usable := Usable(a.Prompt, a.BlockSize)
	if a.BlockSize < 1 || int64(len(v.hashes)) < a.Prompt/int64(a.BlockSize) || a.Prompt < 1 {
		o.accuracy.other.Add(1) // the engine read other tokens than the gateway: nothing to compare
		return
	}
	o.accuracy.add(a, usable)
	told := uint32(a.Cached / int64(a.BlockSize))
	r := o.record(a.Holder.Worker)
	r.answered(min(a.Indexed, usable), told, now)
	if o.o.ConfirmLife <= 0 || len(v.hashes) == 0 {
		return
	}
	if o.confirmed.seq.Load() > 0 && o.weigh(v, a, r, told, usable, now) {
		return
	}
	if told > a.Indexed && int(told) <= len(v.hashes) {
		o.wait(v, a, told, now)
	}
}

// weigh holds what was confirmed of the holder against what it told, and reports
// whether it is confirmed already.
func (o *Overlay) weigh(v *View, a *Answer, r *record, told, usable uint32, now int64) bool {
	v.hits = o.confirmed.find(v.hits[:0], v.whole(), now, a.Holder)
	borne, less := false, false
	for _, h := range v.hits {
		depth := uint32(h.depth)
		switch {
		case h.e.stale() || depth == 0:
		case told < min(depth, usable):
			less = true
			o.confirmed.end(h.e)
			o.stats.contradicted.Add(1)
		case depth >= told: // all that was told is in it
			h.e.until.Store(now + int64(o.o.ConfirmLife))
			borne = true
		}
	}
	clear(v.hits)
	switch {
	case less && told == 0:
		if r.struck() {
			o.stats.emptied.Add(1)
		}
	case less:
		o.confirm(a.Holder, v.whole()[:told], now)
		return true
	case told > 0:
		r.strikes.Store(0)
	}
	return borne
}

// strikesOut is how many answers in a row that found nothing of what was confirmed say
// that the whole cache is gone.
const strikesOut = 2

// struck notes an answer that found nothing, and reports whether it was one too many:
// then nothing that was confirmed of the worker counts any more.
func (r *record) struck() bool {
	if r.strikes.Add(1) < strikesOut {
		return false
	}
	r.strikes.Store(0)
	r.epoch.Add(1)
	return true
}

// confirm makes an entry of what an engine told of. What it has of the same chain goes.
func (o *Overlay) confirm(h *fleet.Holder, chain []uint64, now int64) {
	r := o.record(h.Worker)
	for _, old := range o.confirmed.find(nil, chain, now, h) {
		if long := int(old.e.length.Load()); !old.e.stale() && old.depth == len(chain) {
			old.e.until.Store(now + int64(o.o.ConfirmLife))
			return
		} else if old.depth == long {
			o.confirmed.end(old.e)
		}
	}
	e := newEntry(h, chain, now+int64(o.o.ConfirmLife))
	e.record, e.epoch = r, r.epoch.Load()
	o.confirmed.root(e, nil)
	o.confirmed.rest(e, now)
	o.stats.confirmed.Add(1)
}

// maxWaiting bounds the answers that wait for the index to hear of what they told.
const maxWaiting = 1024

// Claimed is what an engine told of and the index did not know: it is to be asked again.
type Claimed struct {
	Holder *fleet.Holder
	Names  Names
	Hashes []kv.ContentHash // of what was told, in whole blocks

	chain []uint64
	due   int64
	epoch uint32
}

// waiting are claims, the oldest first.
type waiting struct {
	mu   sync.Mutex
	list []*Claimed // guarded by mu
}

// wait keeps what a told of until the index has had time to hear of it. Events come
// after the answer that they belong to; only what they still do not tell is news.
func (o *Overlay) wait(v *View, a *Answer, told uint32, now int64) {
	c := &Claimed{
		Holder: a.Holder, Names: a.Names, due: now + int64(o.o.Grace), epoch: o.record(a.Holder.Worker).epoch.Load(),
		Hashes: append([]kv.ContentHash(nil), v.hashes[:told]...), chain: append([]uint64(nil), v.whole()[:told]...),
	}
	w := &o.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.list) >= maxWaiting {
		w.list = append(w.list[:0], w.list[1:]...)
	}
	w.list = append(w.list, c)
}

// Due returns the next claim whose time has come; nil: none has.
func (o *Overlay) Due(now int64) *Claimed {
	w := &o.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.list) == 0 || w.list[0].due > now {
		return nil
	}
	c := w.list[0]
	w.list[0] = nil
	w.list = w.list[1:]
	return c
}

// Settle takes the index's second word on a claim: the blocks that it has of the holder
// now. What it still does not know is confirmed.
func (o *Overlay) Settle(c *Claimed, indexed uint32, now int64) {
	r := o.record(c.Holder.Worker)
	if c.Holder.Worker.State() == fleet.Removed || r.epoch.Load() != c.epoch {
		return
	}
	told := uint32(len(c.chain))
	r.settled(indexed, told, now)
	if indexed < told {
		o.confirm(c.Holder, c.chain, now)
	}
}
