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
	if known < len(cs) {
		if err := c.reserve(end, len(cs)-known); err != nil {
			return moved, err
		}
		c.build(uint64(ns), end, cs, es, known)
	} else if !c.arena.slack() {
		return moved, ErrArenaFull
	}
	c.stamped = false
	if c.agrees(st, es) {
		c.coverAll(s, st, held)
	} else {
		moved = c.storeMoves(s, st, es, held, moved)
	}
	last := &c.segs[len(c.segs)-1]
	st.last = c.position(last.line, last.hi-1)
	c.settle()
	runtime.KeepAlive(c)
	return moved, nil
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
			at.line = c.edges.find(c, ns, flagRoot, contents[known])
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
		child := c.edges.find(c, childKey(at), 0, contents[known])
		if child == 0 {
			return known, at
		}
		at = place{line: child}
	}
	return known, at
}

// reserve makes sure that n new blocks below end, and the coverage of c.segs, can
// be had without a refusal half-way.
//
// Errors: ErrArenaFull, with nothing changed that anybody sees.
func (c *chainCore) reserve(end place, n int) error {
	rest := n
	if end.line != 0 && c.ext(end.line) == 0 {
		if shape := c.shape(end.line); int(end.off) == shapeLength(shape) {
			rest -= min(rest, shapeCap(shape)-shapeLength(shape))
		}
	}
	// Coverage may want a bitmap and a wider block for each run.
	lines := uint64(len(c.segs)) * 4
	made := 0
	for left, reused := rest, uint32(0); left > 0; left -= maxRun {
		class := runClass(min(left, maxRun))
		if made++; left > maxRun || c.arena.nfree[class] <= reused {
			lines += uint64(pieceLines[class])
		}
		if left >= maxRun {
			reused++
		}
	}
	lines += edgeLinesFor(c.edges.desc.Load(), c.edges.n+uint64(made))
	dictLines := c.dict.linesFor(c.dict.n + uint64(n))
	if dictLines > 0 {
		lines += dictLines - c.arena.outside
	}
	if lines+slabWaste > c.arena.room() || c.runs.full(made) || !c.arena.ensure(lines) {
		return ErrArenaFull
	}
	c.edges.reserve(c, made)
	if dictLines > 0 {
		return c.growDict(dictLines)
	}
	return nil
}

// build makes the positions of the blocks from known on, below end, and adds
// them to c.segs.
func (c *chainCore) build(ns uint64, end place, contents, engines []uint64, known int) {
	if end.line != 0 && int(end.off) == c.runLen(end.line) {
		n := c.appendRun(end.line, contents[known:], engines[known:])
		if n > 0 {
			lo := int(end.off)
			if k := len(c.segs) - 1; k >= 0 && c.segs[k].line == end.line {
				c.segs[k].hi += n
			} else {
				c.segs = append(c.segs, segment{line: end.line, lo: lo, hi: lo + n, first: known})
			}
			known += n
			end.off += uint16(n)
		}
	}
	for known < len(contents) {
		line, n := c.newRun(ns, end, contents[known:], engines[known:])
		c.segs = append(c.segs, segment{line: line, hi: n, first: known})
		known += n
		end = place{line: line, off: uint16(n)}
	}
}

// agrees reports whether each block of the event has its position's canonical
// hash, which no other position has, and the slot has no exception: then no hash
// can move, and the dictionary need not be asked.
func (c *chainCore) agrees(st *slotState, engines []uint64) bool {
	if st.exc != nil {
		return false
	}
	for i := range c.segs {
		g := &c.segs[i]
		shape := c.shape(g.line)
		n := g.hi - g.lo
		if shape&flagDup != 0 || asm.MatchForward(c.engines(g.line, uint8(shape>>shapeClass), g.lo, g.hi), engines[g.first:]) < n {
			return false
		}
	}
	return true
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
	if h.prefix <= g.lo && h.holes == 0 {
		return
	}
	for off := g.lo; off < g.hi; off++ {
		if c.holds(h, off) {
			i := g.first + off - g.lo
			held[i/64] |= 1 << (i % 64)
		} else if h.holes == 0 {
			return
		}
	}
}

func (c *chainCore) adopt(s slot, p pos, e kv.EngineHash) (held, moved bool, err error) {
	if !c.arena.slack() {
		return false, false, ErrArenaFull
	}
	st := c.slot(s)
	at := c.place(uint32(p))
	off := int(at.off) - 1
	c.segs = append(c.segs[:0], segment{line: at.line, lo: off, hi: off + 1})
	c.stamped = false
	var bit [1]uint64
	var buf [1]kv.EngineHash
	gone := c.storeMoves(s, st, []uint64{uint64(e)}, bit[:], buf[:0])
	c.settle()
	runtime.KeepAlive(c)
	return bit[0] != 0, len(gone) > 0, nil
}
