// SPDX-License-Identifier: Apache-2.0

// Hop before: the chain core's stores and removals, with a range of a run.
// Hop after: the run's holder entries, which lookups read.

package shard

import (
	"math/bits"
	"slices"
)

// A holder entry says what one slot holds of one run:
//
//	slot 16 | prefix 16 | line of the hole bitmap 32
//
// prefix is the number of leading blocks it holds without a hole: all that a
// lookup wants. Without a bitmap it holds nothing else; with one the bitmap has
// all that it holds, the prefix too. 0 is no entry.
//
// In an external block one with prefix 0 and no bitmap holds nothing and only keeps
// its place.
const (
	entryPrefix = 16
	entryHoles  = 32
)

func makeEntry(s slot, prefix int, holes uint32) uint64 {
	return uint64(s) | uint64(prefix)<<entryPrefix | uint64(holes)<<entryHoles
}

func entrySlot(e uint64) slot { return slot(e) }

// holding is what one slot holds of one run.
type holding struct {
	prefix int    // leading blocks held
	holes  uint32 // line of the bitmap, 0: nothing but the prefix is held
}

func (h holding) empty() bool { return h.prefix == 0 && h.holes == 0 }

func entryHolding(e uint64) holding {
	return holding{prefix: int(uint16(e >> entryPrefix)), holes: uint32(e >> entryHoles)}
}

// holding returns what s holds of the run at line.
func (c *chainCore) holding(line uint32, s slot) holding {
	ext := c.ext(line)
	if ext != 0 {
		return c.extHolding(ext, s)
	}
	for k := range inlineHolders {
		if e := *c.arena.w(line, runEntry0+k); entrySlot(e) == s {
			return entryHolding(e)
		}
	}
	return holding{}
}

// setHolding publishes what s holds of the run at line, by one store unless the
// holder block has to be replaced.
func (c *chainCore) setHolding(line uint32, s slot, h holding) {
	if ext := c.ext(line); ext != 0 {
		c.setExtHolding(line, ext, s, h)
		return
	}
	var free *uint64
	for k := range inlineHolders {
		w := c.arena.w(line, runEntry0+k)
		if entrySlot(*w) == s {
			if h.empty() {
				storeWord(w, 0)
			} else {
				storeWord(w, makeEntry(s, h.prefix, h.holes))
			}
			return
		}
		if *w == 0 && free == nil {
			free = w
		}
	}
	switch {
	case h.empty():
	case free != nil:
		storeWord(free, makeEntry(s, h.prefix, h.holes))
	default:
		c.rebuildExt(line, s, h)
	}
}

// blockSet is a set of the blocks of one run.
type blockSet [maxRun / 64]uint64

// blockSpan calls fn with each word that [lo, hi) touches and the bits it takes.
func blockSpan(lo, hi int, fn func(w int, mask uint64)) {
	for w := lo / 64; w*64 < hi; w++ {
		mask := ^uint64(0)
		if lo > w*64 {
			mask <<= lo - w*64
		}
		if rest := hi - w*64; rest < 64 {
			mask &= 1<<rest - 1
		}
		fn(w, mask)
	}
}

func (b *blockSet) add(lo, hi int) {
	blockSpan(lo, hi, func(w int, mask uint64) { b[w] |= mask })
}

func (b *blockSet) del(lo, hi int) {
	blockSpan(lo, hi, func(w int, mask uint64) { b[w] &^= mask })
}

func (b *blockSet) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

func (b *blockSet) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// prefix is the number of leading blocks in the set.
func (b *blockSet) prefix() int {
	for i, w := range b {
		if w != ^uint64(0) {
			return i*64 + bits.TrailingZeros64(^w)
		}
	}
	return maxRun
}

// top is one more than the largest block in the set.
func (b *blockSet) top() int {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0 {
			return i*64 + 64 - bits.LeadingZeros64(b[i])
		}
	}
	return 0
}

// blocks returns the set that h says.
func (c *chainCore) blocks(h holding) (b blockSet) {
	if h.holes != 0 {
		copy(b[:], c.arena.words(h.holes, 0, len(b)))
		return b
	}
	b.add(0, h.prefix)
	return b
}

// top returns one more than the largest block that h holds.
func (c *chainCore) top(h holding) int {
	if h.holes == 0 {
		return h.prefix
	}
	b := c.blocks(h)
	return b.top()
}

// holds reports whether h holds block off.
func (c *chainCore) holds(h holding, off int) bool {
	if off < h.prefix || h.holes == 0 {
		return off < h.prefix
	}
	return *c.arena.w(h.holes, off/64)>>(off%64)&1 != 0
}

// covers reports whether s holds the live position p, as the overlays say where
// there are some.
func (c *chainCore) covers(s slot, p uint32) bool {
	idx, off := p>>offsetBits, int(p&posOffset)
	if len(c.over.list) > 0 {
		if o := c.over.of(idx); o != nil {
			return o.now.has(off)
		}
	}
	return c.holds(c.holding(c.runs.at(idx).line, s), off)
}

// holdingOf returns the holding that says b, in place of old, whose bitmap is
// used or given back. Bitmaps are the writer's alone.
func (c *chainCore) holdingOf(old holding, b *blockSet) holding {
	prefix := b.prefix()
	if b.count() == prefix {
		if old.holes != 0 {
			c.arena.give(classHoles, old.holes)
		}
		return holding{prefix: prefix}
	}
	if old.holes == 0 {
		old.holes = c.arena.take(classHoles)
	}
	copyWords(c.arena.words(old.holes, 0, len(b)), b[:])
	return holding{prefix: prefix, holes: old.holes}
}

// gained and lost keep the counts of a slot after its holding of the run at line
// changed from old to h.
func (c *chainCore) gained(line uint32, st *slotState, old holding, blocks int) {
	st.held += uint64(blocks)
	c.recount(line)
	if old.empty() && blocks > 0 {
		st.runs.add(c.index(line))
	}
}

func (c *chainCore) lost(line uint32, st *slotState, h holding, blocks int) {
	st.held -= uint64(blocks)
	if h.empty() && blocks > 0 {
		st.runs.del(c.index(line))
	}
	c.recount(line)
	idx := c.index(line)
	if n := len(c.touched); n == 0 || c.touched[n-1] != idx {
		c.touched = append(c.touched, idx)
	}
	switch {
	case st.held == 0:
		st.mayGap = false
	case h.holes != 0 || c.runs.at(idx).children > 0:
		// Something that the slot holds may lie below what it lost.
		st.mayGap = true
	}
}

// recount keeps the number of blocks of the run at line that anybody holds. Where
// that means looking at many holders, it is put off until somebody asks.
func (c *chainCore) recount(line uint32) {
	info := c.runs.at(c.index(line))
	var n int
	if ext := c.ext(line); ext != 0 {
		if byBit, _ := c.extCount(ext); byBit == 0 || c.extShape(ext).prefix != c.runLen(line) {
			if !info.stale {
				info.stale = true
				c.noteStale(c.index(line))
			}
			return
		}
		n = c.runLen(line)
	} else {
		n = c.union(line)
	}
	info.stale = false
	c.blocksHeld += uint64(n) - uint64(info.held)
	info.held = uint16(n)
}

// union counts the blocks of the run at line that anybody holds.
func (c *chainCore) union(line uint32) int {
	prefix, holes := 0, false
	c.eachHolder(line, func(_ slot, h holding) {
		prefix = max(prefix, h.prefix)
		holes = holes || h.holes != 0
	})
	if !holes {
		return prefix
	}
	var all blockSet
	c.eachHolder(line, func(_ slot, h holding) {
		b := c.blocks(h)
		for w := range all {
			all[w] |= b[w]
		}
	})
	return all.count()
}

// noteStale notes that run idx is to be counted. Nobody may ever ask, so that what
// need not be counted any more is taken out before the list grows.
func (c *chainCore) noteStale(idx uint32) {
	if len(c.stale) == cap(c.stale) && len(c.stale) > 0 {
		keep := c.stale[:0]
		for _, idx := range c.stale {
			if info := c.runs.at(idx); info.line != 0 && info.stale && !info.mark {
				info.mark = true
				keep = append(keep, idx)
			}
		}
		for _, idx := range keep {
			c.runs.at(idx).mark = false
		}
		if c.stale = keep; len(keep) > cap(keep)/2 {
			c.stale = slices.Grow(keep, cap(keep))
		}
	}
	c.stale = append(c.stale, idx)
}

// countStale counts what recount has put off.
func (c *chainCore) countStale() {
	for _, idx := range c.stale {
		if info := c.runs.at(idx); info.line != 0 && info.stale {
			n := c.union(info.line)
			info.stale = false
			c.blocksHeld += uint64(n) - uint64(info.held)
			info.held = uint16(n)
		}
	}
	c.stale = c.stale[:0]
}

// cover makes s hold blocks [lo, hi) of the run at line. clean says that s holds
// everything above the run. It returns what s
// holds now.
func (c *chainCore) cover(line uint32, s slot, st *slotState, lo, hi int, clean bool) (now holding) {
	old := c.holding(line, s)
	if hi <= old.prefix {
		return old
	}
	var n int
	switch {
	case old.holes == 0 && lo <= old.prefix:
		now = holding{prefix: hi}
		n = hi - old.prefix
	default:
		b := c.blocks(old)
		before := b.count()
		b.add(lo, hi)
		n = b.count() - before
		if n == 0 {
			return old
		}
		now = c.holdingOf(old, &b)
	}
	if !clean || now.prefix < hi {
		st.mayGap = true
	}
	if !clean && now.prefix > old.prefix {
		c.stampGap(line)
	}
	c.setHolding(line, s, now)
	c.gained(line, st, old, n)
	return now
}

// uncover ends s's hold of blocks [lo, hi) of the run at line, all of which it
// holds, by one store. The run waits in c.touched for [chainCore.settle].
func (c *chainCore) uncover(line uint32, s slot, st *slotState, lo, hi int) {
	old := c.holding(line, s)
	var now holding
	if old.holes == 0 && hi == old.prefix {
		now = holding{prefix: lo}
	} else {
		b := c.blocks(old)
		b.del(lo, hi)
		now = c.holdingOf(old, &b)
	}
	c.setHolding(line, s, now)
	c.lost(line, st, now, hi-lo)
}

// stampGap says to lookups under way that some slot's leading part of the run at
// line grows while it lacks something above, so that what they read above may
// have been of another moment.
func (c *chainCore) stampGap(line uint32) {
	if !c.stamped {
		c.stamped = true
		c.gapClock.Add(1)
	}
	storeWord(c.arena.w(line, runGap), c.gapClock.Load())
}

// climb reports whether s holds every position above the run at line.
//
// Cost: one header for each run above.
func (c *chainCore) climb(line uint32, s slot) bool {
	for up := c.parent(line); up.line != 0; up = c.parent(up.line) {
		if c.holding(up.line, s).prefix < int(up.off) {
			return false
		}
	}
	return true
}
