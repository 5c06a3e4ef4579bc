// SPDX-License-Identifier: Apache-2.0

// Hop before: a store in which workers disagree: a hash that may be elsewhere,
// too, or a position by another hash than the first that named it.
// Hop after: exceptions and coverage.

package shard

import (
	"kindex/asm"
	"kindex/internal/kv"
)

// overlay is what a slot will hold of one run once the event is applied.
type overlay struct {
	idx      uint32
	line     uint32
	old, now blockSet
}

// overlays are those of one event, so that its net effect is published run by run
// and a reader sees each run's change whole.
type overlays struct {
	list  []overlay
	index map[uint32]int // used once the list is long
}

// overlayScan is the number of overlays up to which the list is searched.
const overlayScan = 8

// of returns the overlay of run idx, nil when there is none. Valid until the next
// is added.
func (o *overlays) of(idx uint32) *overlay {
	if len(o.list) > overlayScan {
		if i, ok := o.index[idx]; ok {
			return &o.list[i]
		}
		return nil
	}
	for i := range o.list {
		if o.list[i].idx == idx {
			return &o.list[i]
		}
	}
	return nil
}

func (o *overlays) add(v overlay) *overlay {
	o.list = append(o.list, v)
	switch n := len(o.list); {
	case n == overlayScan+1:
		o.index = make(map[uint32]int, 2*n)
		for i := range o.list {
			o.index[o.list[i].idx] = i
		}
	case n > overlayScan+1:
		o.index[v.idx] = n - 1
	}
	return &o.list[len(o.list)-1]
}

func (o *overlays) reset() {
	o.list = o.list[:0]
	o.index = nil
}

// overlay returns the overlay of run idx for s, making it.
func (c *chainCore) overlay(s slot, idx uint32) *overlay {
	if o := c.over.of(idx); o != nil {
		return o
	}
	line := c.runs.at(idx).line
	b := c.blocks(c.holding(line, s))
	return c.over.add(overlay{idx: idx, line: line, old: b, now: b})
}

// storeMoves makes s hold c.segs by engines, block by block and in order, with
// mappings that go elsewhere ended, and publishes the net effect.
func (c *chainCore) storeMoves(s slot, st *slotState, engines []uint64, held []uint64, moved []kv.EngineHash) []kv.EngineHash {
	ahead := 0 // hashes asked for
	for k := range c.segs {
		g := c.segs[k]
		idx := c.index(g.line)
		row := st.rowOf(idx) << offsetBits
		dup := c.shape(g.line)&flagDup != 0
		c.overlay(s, idx)
		for off := g.lo; off < g.hi; off++ {
			i := g.first + off - g.lo
			if i >= ahead {
				ahead = min(i+probeAhead, len(engines))
				asm.DictPrefetch(&c.dict.table, engines[i:ahead])
			}
			e, p := engines[i], idx<<offsetBits|uint32(off)
			canonical := c.stands(row|uint32(off), e)
			was := uint32(0)
			if !canonical || dup {
				was = c.mapped(s, st, e)
			} else if q, ok := st.exc.find(e); ok {
				was = q
			} else if c.holdsCanonical(s, st, p) {
				was = p
			}
			c.noteTail(e, p) // so that a hash told again and again is found at once
			if was == p {
				held[i/64] |= 1 << (i % 64)
				continue
			}
			if was != 0 {
				c.unmap(s, st, was, e)
				moved = append(moved, kv.EngineHash(e))
			}
			c.mapTo(s, st, p, e, canonical)
		}
	}
	c.publish(s, st)
	return moved
}

// mapTo makes s hold p by e in the overlays; s maps e to nothing.
func (c *chainCore) mapTo(s slot, st *slotState, p uint32, e uint64, canonical bool) {
	o := c.overlay(s, p>>offsetBits)
	off := int(p & posOffset)
	if canonical {
		if st.exc != nil {
			if x, ok := st.exc.byPos[p]; ok {
				x.canonical = true
				st.exc.byPos[p] = x
			}
		}
		o.now.add(off, off+1)
		return
	}
	st.addHash(p, e, o.now.has(off))
	o.now.add(off, off+1)
}

// unmap ends s's mapping of e to p in the overlays.
func (c *chainCore) unmap(s slot, st *slotState, p uint32, e uint64) {
	if st.dropHash(p, e) {
		off := int(p & posOffset)
		c.overlay(s, p>>offsetBits).now.del(off, off+1)
	}
}

// publish applies the overlays: first what s loses, in all runs, then what it
// gains, from the top down. So a lookup in between finds a depth between the one
// before and the one after. Runs are reclaimed later, by [chainCore.settle]: the
// ones that the gains stand on are still there.
func (c *chainCore) publish(s slot, st *slotState) {
	changed := 0
	for i := range c.over.list {
		if c.over.list[i].old != c.over.list[i].now {
			changed++
		}
	}
	if changed > 1 {
		for i := range c.over.list {
			o := &c.over.list[i]
			var b blockSet
			for w := range b {
				b[w] = o.old[w] & o.now[w]
			}
			if b != o.old {
				c.publishRun(s, st, o, &b)
				o.old = b
			}
		}
	}
	for i := range c.over.list {
		if o := &c.over.list[i]; o.old != o.now {
			c.publishRun(s, st, o, &o.now)
		}
	}
	c.over.reset()
}

// publishRun makes s hold b of o's run, where it held o.old.
func (c *chainCore) publishRun(s slot, st *slotState, o *overlay, b *blockSet) {
	var gains, losses blockSet
	for w := range b {
		gains[w] = b[w] &^ o.old[w]
		losses[w] = o.old[w] &^ b[w]
	}
	old := c.holding(o.line, s)
	now := c.holdingOf(old, b)
	if gain := gains.count(); gain > 0 {
		clean := c.climb(o.line, s)
		if !clean || now.prefix < gains.top() {
			st.mayGap = true
		}
		if !clean && now.prefix > old.prefix {
			c.stampGap(o.line)
		}
		c.setHolding(o.line, s, now)
		c.gained(o.line, st, old, gain)
	} else {
		c.setHolding(o.line, s, now)
	}
	if loss := losses.count(); loss > 0 {
		c.lost(o.line, st, now, loss)
	}
}
