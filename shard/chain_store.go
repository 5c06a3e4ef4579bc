// SPDX-License-Identifier: Apache-2.0

// Hop before: Shard, with one chain for one slot.
// Hop after: runs, dictionary, coverage.

package shard

import (
	"runtime"

	"kindex/asm"
	"kindex/internal/kv"
)

// segment is a range of a run that blocks of one event lie in.
type segment struct {
	line   uint32
	lo, hi int // offsets
	first  int // number in the event of the block at lo
	row    uint32
	naming naming // by that row, or otherwise
}

func (c *chainCore) store(s slot, ns kv.Namespace, at pos, engines []kv.EngineHash, contents []kv.ContentHash, held []uint64, moved []kv.EngineHash) ([]kv.EngineHash, error) {
	st := c.slot(s)
	es, cs := engineWords(engines), contentWords(contents)
	clear(held[:(len(es)+63)/64])
	var above place
	if at != 0 {
		above = c.place(uint32(at))
		ns = kv.Namespace(*c.arena.w(c.runs.at(uint32(at)>>offsetBits).root, runKey))
	}
	known, end := c.locate(uint64(ns), above, cs)
	added := c.addTail(end, known, len(cs))
	want := c.plan(s, st, es)
	if err := c.reserve(want, end, added, len(cs)-known-added); err != nil {
		return c.refuse(s, st, engines, moved), err
	}
	c.build(uint64(ns), end, cs, es, known, added)
	c.stamped = false
	if c.name(st, es) && c.agrees(st, es) {
		c.coverAll(s, st, held)
	} else {
		moved = c.storeMoves(s, st, es, held, moved)
	}
	last := &c.segs[len(c.segs)-1]
	c.noteTail(es[len(es)-1], c.position(last.line, last.hi-1))
	c.settle(s, st)
	runtime.KeepAlive(c)
	return moved, nil
}

// refuse ends the mappings that the store of engines at c.segs, which is refused,
// would have moved: their blocks are no longer where they were.
func (c *chainCore) refuse(s slot, st *slotState, engines, moved []kv.EngineHash) []kv.EngineHash {
	from := len(moved)
	next := 0 // the segment that block i lies in, or the next one
	for i, e := range engines {
		p := c.mapped(s, st, uint64(e))
		if p == 0 {
			continue
		}
		for next < len(c.segs) && c.segs[next].first+c.segs[next].hi-c.segs[next].lo <= i {
			next++
		}
		if next < len(c.segs) && c.segs[next].first <= i {
			if g := &c.segs[next]; p == c.position(g.line, g.lo+i-g.first) {
				continue
			}
		}
		moved = append(moved, e)
	}
	c.remove(s, moved[from:], nil)
	return moved
}

// locate fills c.segs with the positions below at that the contents have
// already, and returns how many there are and where they end.
//
// Cost: an edge probe and a header for each run, none at an offset where nothing
// hangs.
func (c *chainCore) locate(ns uint64, at place, contents []uint64) (known int, end place) {
	c.segs = c.segs[:0]
	for known < len(contents) {
		if at.line == 0 {
			at.line = c.findEdge(ns, flagRoot, contents[known])
			if at.line == 0 {
				return known, at
			}
		}
		shape := c.shape(at.line)
		lo := int(at.off)
		n := asm.MatchForward(c.content(at.line, lo, shapeLength(shape)), contents[known:])
		if n > 0 {
			c.segs = append(c.segs, segment{line: at.line, lo: lo, hi: lo + n, first: known})
			known += n
			at.off += uint16(n)
			continue
		}
		if shape&flagParent == 0 || c.runs.at(c.index(at.line)).maxChild < at.off {
			return known, at
		}
		child := c.findEdge(childKey(at), 0, contents[known])
		if child == 0 {
			return known, at
		}
		at = place{line: child}
	}
	return known, at
}

// addTail adds to c.segs those of the blocks from known on that can be added in
// place to the run that ends at end, and returns how many.
func (c *chainCore) addTail(end place, known, blocks int) int {
	if known == blocks || end.line == 0 || int(end.off) < c.runLen(end.line) {
		return 0
	}
	n := min(c.appendable(end.line), blocks-known)
	if n == 0 {
		return 0
	}
	lo := int(end.off)
	if k := len(c.segs) - 1; k >= 0 && c.segs[k].line == end.line {
		c.segs[k].hi += n
	} else {
		c.segs = append(c.segs, segment{line: end.line, lo: lo, hi: lo + n, first: known})
	}
	return n
}

// reserve makes sure that n blocks in new runs below end, once added blocks are
// added there, and what naming and coverage of c.segs take can be had without a
// refusal half-way.
//
// Errors: ErrArenaFull, with nothing changed that anybody sees.
func (c *chainCore) reserve(want need, end place, added, n int) error {
	if n == 0 && want.entries == 0 && want.rows == 0 {
		if !c.arena.slack() {
			return ErrArenaFull
		}
		return nil
	}
	// Coverage may want a bitmap and a wider block for each run.
	lines := uint64(len(c.segs))*4 + want.lines
	runs, rest := n/maxRun, n%maxRun
	made, last, lasts := runs, 0, 0
	if rest > 0 {
		class := runClass(rest)
		if made == 0 {
			class, _ = c.newClass(end, added, rest)
		}
		made++
		if last = int(class); last == numRunClasses-1 {
			runs++
		} else {
			lasts = 1
		}
	}
	lines += c.arena.wants(numRunClasses-1, runs) + c.arena.wants(last, lasts)
	edgesWant := c.edgesWant(made)
	edgeLines := c.edgeLines(edgesWant, made)
	edgesGrown := edgeLines - min(edgeLines, c.arena.edgeLines)
	entries := uint64(n + want.entries)
	homes := c.dict.homesFor(c.dict.n + entries)
	if lines+edgesGrown > c.arena.room() {
		c.arena.reclaim(lines+edgesGrown, numRunClasses-1, last)
	}
	// Where the bound leaves no room for a table to grow it fills up: what memory is
	// left is for blocks.
	if c.edgeState.held = lines+edgesGrown > c.arena.room() && c.edgesHold(made); c.edgeState.held {
		edgesWant, edgeLines = uint64(c.edgeState.usable), max(c.arena.edgeLines, uint64(c.edgeState.end))
	} else {
		lines += edgesGrown
	}
	grown := uint64(0)
	if homes > 0 {
		grown = c.dict.cost(homes, entries)
	}
	if lines+grown <= c.arena.room() {
		lines += grown
	} else if c.dict.holds(entries) {
		homes = 0
	} else {
		return ErrArenaFull
	}
	if lines > c.arena.room() || c.runs.full(made+want.rows) || !c.edgesUsable(edgesWant) ||
		!c.arena.prepare(numRunClasses-1, runs) || !c.arena.prepare(last, lasts) || !c.arena.spare(uint64(len(c.segs))*4+want.lines) {
		return ErrArenaFull
	}
	c.arena.edgeLines = edgeLines
	return c.reserveDict(homes, entries)
}

// build makes the positions of the blocks from known on, below end: the first added
// of them in place, which are in c.segs already, the others in new runs, which it
// adds there.
func (c *chainCore) build(ns uint64, end place, contents, engines []uint64, known, added int) {
	if added > 0 {
		c.appendRun(end.line, contents[known:known+added])
		known += added
		end.off += uint16(added)
	}
	for known < len(contents) {
		line, n := c.newRun(ns, end, contents[known:], engines[known:])
		c.segs = append(c.segs, segment{line: line, hi: n, first: known, row: c.index(line), naming: nameByRow})
		known += n
		end = place{line: line, off: uint16(n)}
	}
}

// agrees reports whether no hash of the event, each of which stands in the slot's
// row, stands at another position or is an exception, and there are none in the
// event's runs: then no hash can move, and the dictionary need not be asked.
func (c *chainCore) agrees(st *slotState, engines []uint64) bool {
	for i := range c.segs {
		line := c.segs[i].line
		if c.shape(line)&flagDup != 0 || st.exc.in(c.index(line)) {
			return false
		}
	}
	return !st.exc.any(engines)
}

// coverAll makes s hold c.segs, from the top down.
func (c *chainCore) coverAll(s slot, st *slotState, held []uint64) {
	clean := c.cleanAbove(c.segs[0].line, s, st)
	for i := range c.segs {
		g := &c.segs[i]
		c.markHeld(held, g, c.holding(g.line, s))
		now := c.cover(g.line, s, st, g.lo, g.hi, clean)
		clean = clean && now.prefix >= g.hi
	}
}

// cleanAbove reports whether s holds every position above the run at line.
func (c *chainCore) cleanAbove(line uint32, s slot, st *slotState) bool {
	if st.mayGap {
		return c.climb(line, s)
	}
	up := c.parent(line)
	return up.line == 0 || c.holds(c.holding(up.line, s), int(up.off)-1)
}

// markHeld sets the bits of g's blocks that h holds.
func (c *chainCore) markHeld(held []uint64, g *segment, h holding) {
	end := min(h.prefix, g.hi)
	if end > g.lo {
		blockSpan(g.first, g.first+end-g.lo, func(w int, mask uint64) { held[w] |= mask })
	}
	if h.holes == 0 {
		return
	}
	for off := max(end, g.lo); off < g.hi; off++ {
		if c.holds(h, off) {
			i := g.first + off - g.lo
			held[i/64] |= 1 << (i % 64)
		}
	}
}

func (c *chainCore) adopt(s slot, p pos, e kv.EngineHash) (held, moved bool, err error) {
	st := c.slot(s)
	at := c.place(uint32(p))
	off := int(at.off) - 1
	one := [1]uint64{uint64(e)}
	c.segs = append(c.segs[:0], segment{line: at.line, lo: off, hi: off + 1})
	if err := c.reserve(c.plan(s, st, one[:]), place{}, 0, 0); err != nil {
		gone := c.refuse(s, st, []kv.EngineHash{e}, nil)
		return false, len(gone) > 0, err
	}
	c.name(st, one[:])
	c.stamped = false
	var bit [1]uint64
	var buf [1]kv.EngineHash
	gone := c.storeMoves(s, st, one[:], bit[:], buf[:0])
	c.settle(s, st)
	runtime.KeepAlive(c)
	return bit[0] != 0, len(gone) > 0, nil
}
