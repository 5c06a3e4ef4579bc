// SPDX-License-Identifier: Apache-2.0

// Hop before: a walk, with slots that left at some depth.
// Hop after: the caller, with a match for each holder.

package shard

import (
	"math/bits"
	"slices"

	"kindex/asm"
	"kindex/internal/kv"
)

// flatAnswer makes matches of what a walk found. Slots of the first run's bitset,
// nearly all of a popular prefix's holders, are listed in ascending order while the
// next run is on its way from memory; those that turn out to hold more are found
// again by counting bits.
type flatAnswer struct {
	t      *seatTable
	dst    []kv.Match
	base   int // of dst, where this answer begins
	ranks  []int32
	listed bool
	// seen has, by a holder's widest slot, where in dst its match may be.
	seen []int32
}

func (f *flatAnswer) start(t *seatTable, dst []kv.Match) {
	f.t, f.dst, f.base = t, dst, len(dst)
	f.reset()
}

func (f *flatAnswer) reset() {
	f.dst, f.listed = f.dst[:f.base], false
}

// early lists the slots of w's first bitset, before it is known who of them holds
// more.
func (f *flatAnswer) early(w *walk) {
	if f.listed {
		return
	}
	f.listed = true
	if len(w.first) == 0 {
		return
	}
	f.ranks = resize(f.ranks, len(w.first))
	rank := len(f.dst)
	for i, a := range w.first {
		f.ranks[i] = int32(rank)
		rank += bits.OnesCount64(a & f.t.pages[i*64/seatPageSlots].plain[i%(seatPageSlots/64)])
	}
	f.dst = slices.Grow(f.dst, rank-len(f.dst))
	for i := 0; i < len(w.first); i += seatPageSlots / 64 {
		p := f.t.pages[i*64/seatPageSlots]
		set := w.first[i:min(i+seatPageSlots/64, len(w.first))]
		n := asm.ExpandSlots(matchWords(f.dst[len(f.dst):rank]), p.holders[:], set, p.plain[:], uint32(w.firstDepth))
		f.dst = f.dst[:len(f.dst)+n]
	}
}

// finish lists everything that w found.
func (f *flatAnswer) finish(w *walk) []kv.Match {
	f.early(w)
	for _, g := range w.groups {
		if int(g.depth) != w.firstDepth { // else they were listed with it
			f.deepen(w, w.group(g), g.depth)
		}
		if f.t.odd > 0 {
			f.group(w.group(g), g.depth)
		}
	}
	for _, d := range w.few {
		f.one(w, d)
	}
	return f.dst
}

// deepen gives the slots in set, which are listed, another depth.
func (f *flatAnswer) deepen(w *walk, set []uint64, depth uint32) {
	for i, a := range set {
		listed := w.first[i] & f.t.pages[i*64/seatPageSlots].plain[i%(seatPageSlots/64)]
		for a &= listed; a != 0; a &= a - 1 {
			below := a&-a - 1
			m := &f.dst[int(f.ranks[i])+bits.OnesCount64(listed&below)]
			m.Device, m.Host, m.Any = depth, depth, depth
		}
	}
}

// group merges the odd slots in set.
func (f *flatAnswer) group(set []uint64, depth uint32) {
	for i, a := range set {
		for a &= f.t.pages[i*64/seatPageSlots].odd[i%(seatPageSlots/64)]; a != 0; a &= a - 1 {
			f.merge(slot(i*64+bits.TrailingZeros64(a)), depth)
		}
	}
}

// one lists one slot.
func (f *flatAnswer) one(w *walk, d slotDepth) {
	p, k := f.t.page(d.slot), d.slot%seatPageSlots
	switch id := p.holders[k]; {
	case id == 0:
	case p.plain[k/64]>>(k%64)&1 == 0:
		f.merge(d.slot, d.depth)
	case hasSlot(w.first, d.slot):
		i := int(d.slot) / 64
		m := &f.dst[int(f.ranks[i])+bits.OnesCount64(w.first[i]&p.plain[k/64]&(1<<(k%64)-1))]
		m.Device, m.Host, m.Any = d.depth, d.depth, d.depth
	default:
		f.dst = append(f.dst, kv.Match{Holder: id, Device: d.depth, Host: d.depth, Any: d.depth})
	}
}

// merge takes an odd slot's depth into its holder's match.
func (f *flatAnswer) merge(s slot, depth uint32) {
	p := f.t.page(s)
	id, info := p.holders[s%seatPageSlots], p.info[s%seatPageSlots]
	home := int(uint16(info))
	if home >= len(f.seen) {
		f.seen = append(f.seen, make([]int32, max(home+1, 2*len(f.seen))-len(f.seen))...)
	}
	// Whatever an earlier lookup left there, a place that has this holder is its.
	i := int(f.seen[home])
	if i < f.base || i >= len(f.dst) || f.dst[i].Holder != id {
		i = len(f.dst)
		f.seen[home] = int32(i)
		f.dst = append(f.dst, kv.Match{Holder: id})
	}
	m := &f.dst[i]
	if info>>seatClasses&(1<<classDevice) != 0 {
		m.Device = max(m.Device, depth)
	}
	if info>>seatClasses&(1<<classHost) != 0 {
		m.Host = max(m.Host, depth)
	}
	m.Any = max(m.Any, depth) // a wider class never holds less, whatever a writer is doing
	m.Host = max(m.Host, m.Device)
}
