// SPDX-License-Identifier: Apache-2.0

// Hop before: a lookup that has matched some blocks of a run.
// Hop after: the lookup again, with who of those alive holds them.

package shard

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"kindex/asm"
)

// readCover reads who holds how much of a run's first n blocks, as far as it
// matters, to w.next, w.got and w.part: of a first run everybody, else those
// alive. It returns what the slots in w.next hold. Nothing of it counts before the
// run's version is confirmed: see [walk.pass].
func (w *walk) readCover(head *[asm.RunHeaderWords]uint64, ext uint32, n int) (byBit int) {
	w.part, w.next = w.part[:0], w.next[:0]
	switch {
	case ext == 0 && w.line == 0:
		w.listInline(head, n)
	case ext == 0:
		w.keepInline(head, n)
	case w.line == 0:
		return w.listExt(w.extTable(ext), n)
	default:
		return w.keepExt(w.extTable(ext), n)
	}
	return 0
}

// listInline lists the holders of a first run.
func (w *walk) listInline(head *[asm.RunHeaderWords]uint64, n int) {
	for k := range inlineHolders {
		e := head[runEntry0+k]
		s := entrySlot(e)
		depth := min(n, int(uint16(e>>entryPrefix)))
		// A slot that lost its entry and got another meanwhile is seen twice.
		if depth == 0 || k > 0 && entrySlot(head[runEntry0]) == s || k > 1 && entrySlot(head[runEntry0+1]) == s {
			continue
		}
		w.part = append(w.part, slotDepth{slot: s, depth: uint32(depth)})
	}
}

// keepInline finds what those alive hold of a run with inline holders.
func (w *walk) keepInline(head *[asm.RunHeaderWords]uint64, n int) {
	if w.live > 0 {
		w.got = resize(w.got, w.live)
		for i := range w.few[:w.live] {
			d := 0
			for k := range inlineHolders {
				if e := head[runEntry0+k]; entrySlot(e) == w.few[i].slot {
					d = min(n, int(uint16(e>>entryPrefix)))
					break
				}
			}
			w.got[i] = uint16(d)
		}
	}
	if len(w.alive) == 0 {
		return
	}
	w.next = resize(w.next, len(w.alive))
	clear(w.next)
	for k := range inlineHolders {
		e := head[runEntry0+k]
		if depth := min(n, int(uint16(e>>entryPrefix))); depth > 0 && hasSlot(w.alive, entrySlot(e)) {
			w.part = append(w.part, slotDepth{slot: entrySlot(e), depth: uint32(depth)})
		}
	}
}

// extTable is a holder block as a lookup sees it.
type extTable struct {
	bits, entries []uint64
	byBit         int // blocks held by those in bits
	moves         *uint64
}

func (w *walk) extTable(ext uint32) extTable {
	g := extShapeOf(atomic.LoadUint64(w.c.lines.w(ext, extGeometry)))
	all := w.c.lines.words(ext, extBits, g.width+g.table)
	return extTable{bits: all[:g.width], entries: all[g.width:], byBit: g.prefix, moves: w.c.lines.w(ext, extMoves)}
}

// listExt lists the holders of a first run with an external block: bits first,
// then entries, so that a slot going from one to the other is seen at least once.
func (w *walk) listExt(t extTable, n int) (byBit int) {
	before := uint32(atomic.LoadUint64(t.moves))
	w.next = resize(w.next, len(t.bits))
	for i := range t.bits {
		w.next[i] = atomic.LoadUint64(&t.bits[i])
	}
	if hook := w.c.testHookLookup; hook != nil {
		hook()
	}
	w.entries(t, n, nil)
	if uint32(atomic.LoadUint64(t.moves)) != before {
		// A slot listed twice moved to another entry meanwhile.
		slices.SortFunc(w.part, func(a, b slotDepth) int { return int(a.slot) - int(b.slot) })
		w.part = slices.CompactFunc(w.part, func(a, b slotDepth) bool { return a.slot == b.slot })
	}
	return min(n, t.byBit)
}

// entries lists in w.part the slots with entries that are not in w.next: those in
// of, or all when it is nil.
func (w *walk) entries(t extTable, n int, of []uint64) {
	for i := range t.entries {
		e := atomic.LoadUint64(&t.entries[i])
		depth := min(n, int(uint16(e>>entryPrefix)))
		if depth == 0 {
			continue
		}
		if s := entrySlot(e); !hasSlot(w.next, s) && (of == nil || hasSlot(of, s)) {
			w.part = append(w.part, slotDepth{slot: s, depth: uint32(depth)})
		}
	}
}

// keepExt finds what those alive hold of a run with an external block.
func (w *walk) keepExt(t extTable, n int) (byBit int) {
	if w.live > 0 {
		w.got = resize(w.got, w.live)
		for i := range w.few[:w.live] {
			w.got[i] = uint16(t.depth(w.few[i].slot, n))
		}
	}
	if len(w.alive) == 0 {
		return 0
	}
	w.next = resize(w.next, len(w.alive))
	some := 0
	for i, a := range w.alive {
		var b uint64
		if i < len(t.bits) {
			b = atomic.LoadUint64(&t.bits[i])
		}
		w.next[i] = a & b
		some += bits.OnesCount64(a &^ b)
	}
	if some*lineWords >= len(t.entries) {
		w.entries(t, n, w.alive)
		return min(n, t.byBit)
	}
	for i, a := range w.alive {
		for m := a &^ w.next[i]; m != 0; m &= m - 1 {
			s := slot(i*64 + bits.TrailingZeros64(m))
			if d := t.entry(s, n); d > 0 {
				w.part = append(w.part, slotDepth{slot: s, depth: uint32(d)})
			}
		}
	}
	return min(n, t.byBit)
}

// depth is how many of a run's first n blocks s holds.
func (t *extTable) depth(s slot, n int) int {
	if k := int(s) / 64; k < len(t.bits) && atomic.LoadUint64(&t.bits[k])>>(s%64)&1 != 0 {
		return min(n, t.byBit)
	}
	return t.entry(s, n)
}

// entry is how many of a run's first n blocks s holds by its entry.
func (t *extTable) entry(s slot, n int) int {
	i := extHome(s, len(t.entries))
	for range t.entries {
		e := atomic.LoadUint64(&t.entries[i])
		if entrySlot(e) == s {
			return min(n, int(uint16(e>>entryPrefix)))
		}
		if e == 0 {
			return 0
		}
		if i++; i == len(t.entries) {
			i = 0
		}
	}
	return 0
}

// pass takes in what [walk.readCover] read of a run whose first n blocks matched:
// slots that hold all of them stay alive, the others leave with what they hold.
func (w *walk) pass(byBit, n int) {
	if w.line == 0 {
		w.passFirst(byBit, n)
		return
	}
	below := w.depth + n
	for i := range w.few[:w.live] {
		w.few[i].depth = uint32(w.depth) + uint32(w.got[i])
	}
	w.thin(below)
	if len(w.alive) > 0 {
		w.passBits(byBit, n)
	}
	w.depth = below
}

func (w *walk) passFirst(byBit, n int) {
	w.first, w.next = w.next, w.first
	w.firstDepth = byBit
	w.depth = n
	if len(w.part) > 0 {
		w.few = append(w.few, w.part...)
		w.live = len(w.few)
		w.thin(n)
	}
	switch {
	case len(w.first) == 0:
	case byBit == n:
		w.alive = resize(w.alive, len(w.first))
		copy(w.alive, w.first)
	default:
		w.leave(w.first, byBit)
	}
}

// passBits is [walk.pass] for the slots in w.alive.
func (w *walk) passBits(byBit, n int) {
	from := len(w.words)
	for i, a := range w.alive {
		w.words = append(w.words, a&^w.next[i])
	}
	gone := w.words[from:]
	for _, p := range w.part {
		if !hasSlot(gone, p.slot) {
			continue // seen twice
		}
		gone[p.slot/64] &^= 1 << (p.slot % 64)
		if int(p.depth) < n {
			w.few = append(w.few, slotDepth{slot: p.slot, depth: uint32(w.depth) + p.depth})
			continue
		}
		w.keep(p.slot, w.depth+n)
	}
	if w.listed(w.depth) {
		w.words = w.words[:from]
	} else {
		w.leftAt(from, w.depth)
	}
	w.alive, w.next = w.next, w.alive
	switch {
	case byBit < n:
		w.leave(w.alive, w.depth+byBit)
		w.alive = w.alive[:0]
	case countBits(w.alive) <= len(w.alive):
		for i, a := range w.alive {
			for ; a != 0; a &= a - 1 {
				w.keep(slot(i*64+bits.TrailingZeros64(a)), w.depth+n)
			}
		}
		w.alive = w.alive[:0]
	}
}

// keep adds s to the few that are alive.
func (w *walk) keep(s slot, depth int) {
	w.few = append(w.few, slotDepth{slot: s, depth: uint32(depth)})
	last := len(w.few) - 1
	w.few[last], w.few[w.live] = w.few[w.live], w.few[last]
	w.live++
}

// thin lets those of the few leave that hold less than depth.
func (w *walk) thin(depth int) {
	few := w.few[:w.live]
	n := 0
	for i := range few {
		if int(few[i].depth) == depth {
			few[n], few[i] = few[i], few[n]
			n++
		}
	}
	w.live = n
}

// leave lets the slots in set leave with depth.
func (w *walk) leave(set []uint64, depth int) {
	if w.listed(depth) {
		return
	}
	from := len(w.words)
	w.words = append(w.words, set...)
	w.leftAt(from, depth)
}

// leftAt lets the slots in w.words[from:] leave with depth: as a group, or one by
// one when they are so few that all groups together stay smaller than a word for
// each slot.
func (w *walk) leftAt(from, depth int) {
	set := w.words[from:]
	n := countBits(set)
	if n > len(set) {
		w.groups = append(w.groups, walkGroup{depth: uint32(depth), from: from})
		return
	}
	if n > 0 {
		for i, a := range set {
			for ; a != 0; a &= a - 1 {
				w.few = append(w.few, slotDepth{slot: slot(i*64 + bits.TrailingZeros64(a)), depth: uint32(depth)})
			}
		}
	}
	w.words = w.words[:from]
}

// listed reports whether those by bit that leave with depth need not be written
// down: the flat answer lists all of the first bitset with what they hold of the
// first run.
func (w *walk) listed(depth int) bool {
	return w.flat != nil && depth == w.firstDepth && w.flat.t.odd == 0
}

// group returns the bitset of g.
func (w *walk) group(g walkGroup) []uint64 { return w.words[g.from : g.from+len(w.first)] }

// appendSlots appends all that left, slot by slot.
func (w *walk) appendSlots(dst []slotDepth) []slotDepth {
	for _, g := range w.groups {
		for i, a := range w.group(g) {
			for ; a != 0; a &= a - 1 {
				dst = append(dst, slotDepth{slot: slot(i*64 + bits.TrailingZeros64(a)), depth: g.depth})
			}
		}
	}
	return append(dst, w.few...)
}

func hasSlot(set []uint64, s slot) bool {
	k := int(s) / 64
	return k < len(set) && set[k]>>(s%64)&1 != 0
}

func countBits(set []uint64) (n int) {
	for _, w := range set {
		n += bits.OnesCount64(w)
	}
	return n
}

// resize returns a slice of n elements, s's memory where that is enough.
func resize[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n, n+n/2)
	}
	return s[:n]
}
