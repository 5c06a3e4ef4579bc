// SPDX-License-Identifier: Apache-2.0

// Hop before: Shard, for dumps, digests and further tiers.
// Hop after: none.

package shard

import (
	"maps"
	"runtime"
	"slices"

	"kindex/internal/kv"
)

// eachRun calls fn for each run that s holds something of, once, in no order. fn
// changes nothing.
func (c *chainCore) eachRun(s slot, fn func(line uint32, h holding)) {
	st := c.slot(s)
	st.runs.each(func(idx uint32) {
		line := c.runs.at(idx).line
		fn(line, c.holding(line, s))
	})
}

func (c *chainCore) clone(from, to slot) error {
	src, dst := c.slot(from), c.slot(to)
	if uint64(2*src.runs.n) > c.arena.room() {
		return ErrArenaFull
	}
	c.stamped = false
	type copied struct {
		line uint32
		h    holding
	}
	var runs []copied
	c.eachRun(from, func(line uint32, h holding) { runs = append(runs, copied{line, h}) })
	for _, r := range runs {
		b := c.blocks(r.h)
		h := c.holdingOf(holding{}, &b)
		// In no order, so that the runs above may be still to come.
		if h.prefix > 0 && !c.climb(r.line, to) {
			c.stampGap(r.line)
		}
		c.setHolding(r.line, to, h)
		c.gained(r.line, dst, holding{}, b.count())
	}
	dst.mayGap = src.mayGap
	dst.rows = maps.Clone(src.rows)
	for _, row := range dst.rows {
		c.addUser(row)
	}
	if src.exc != nil {
		dst.exc = src.exc.clone()
	}
	runtime.KeepAlive(c)
	return nil
}

// wanted is a run in a walk.
type wanted struct {
	need    int // blocks of it that the walk visits
	held    holding
	visited bool
}

// chainWalk is one walk of one slot.
type chainWalk struct {
	c       *chainCore
	st      *slotState
	runs    map[uint32]*wanted // by line
	own     map[uint32][]kv.EngineHash
	scratch []kv.EngineHash
	fn      func(*coreNode) bool
}

func (c *chainCore) walk(s slot, fn func(*coreNode) bool) {
	w := chainWalk{c: c, st: c.slot(s), runs: map[uint32]*wanted{}, fn: fn}
	var order []uint32
	c.eachRun(s, func(line uint32, h holding) {
		w.want(line, c.top(h)).held = h
		order = append(order, line)
	})
	if x := w.st.exc; x != nil {
		w.own = make(map[uint32][]kv.EngineHash, len(x.byPos))
		for e, p := range x.byHash {
			w.own[p] = append(w.own[p], kv.EngineHash(e))
		}
	}
	for _, line := range order {
		if !w.visit(line) {
			break
		}
	}
	runtime.KeepAlive(c)
}

// want makes the walk visit at least need blocks of the run at line, and those
// above it.
func (w *chainWalk) want(line uint32, need int) *wanted {
	first := w.runs[line]
	if first == nil {
		first = &wanted{}
		w.runs[line] = first
	} else {
		first.need = max(first.need, need)
		return first // its ancestors are wanted already
	}
	first.need = need
	for up := w.c.parent(line); up.line != 0; up = w.c.parent(up.line) {
		r := w.runs[up.line]
		if r != nil {
			r.need = max(r.need, int(up.off))
			break
		}
		w.runs[up.line] = &wanted{need: int(up.off)}
	}
	return first
}

// visit visits the run at line, the runs above it first.
func (w *chainWalk) visit(line uint32) bool {
	var path []uint32
	for l := line; l != 0 && !w.runs[l].visited; l = w.c.parent(l).line {
		path = append(path, l)
	}
	for _, l := range slices.Backward(path) {
		if !w.visitRun(l) {
			return false
		}
	}
	return true
}

func (w *chainWalk) visitRun(line uint32) bool {
	c, r := w.c, w.runs[line]
	r.visited = true
	idx := c.index(line)
	info := c.runs.at(idx)
	row := w.st.rowOf(idx)
	n := coreNode{ns: kv.Namespace(*c.arena.w(info.root, runKey))}
	if up := c.parent(line); up.line != 0 {
		n.parent = pos(c.position(up.line, int(up.off)-1))
	}
	for off := range r.need {
		p := idx<<offsetBits | uint32(off)
		n.id = pos(p)
		n.content = kv.ContentHash(c.content(line, off, off+1)[0])
		w.scratch = w.scratch[:0]
		if c.holds(r.held, off) {
			canonical := true
			if w.st.exc != nil {
				if x, ok := w.st.exc.byPos[p]; ok {
					canonical = x.canonical
				}
			}
			if canonical {
				w.scratch = append(w.scratch, kv.EngineHash(c.engineOf(row<<offsetBits|uint32(off))))
			}
			w.scratch = append(w.scratch, w.own[p]...)
		}
		n.engines = w.scratch
		if !w.fn(&n) {
			return false
		}
		n.parent = n.id
	}
	return true
}

// stats adds what the core knows to st.
func (c *chainCore) stats(st *Stats) {
	c.countStale()
	st.Blocks = c.blocksHeld
	st.Runs = uint64(c.runs.count - c.runs.rows)
	c.arena.bytes(&st.Bytes)
	st.Bytes[PurposeRuns] += c.runs.bytes()
	st.Bytes[PurposeDictionary] += c.dict.lines()*lineBytes + 8<<tailBits
	st.Bytes[PurposeRuns] += uint64(cap(c.stale)) * 4
	for _, page := range c.slots {
		if page == nil {
			continue
		}
		st.Bytes[PurposeHolders] += slotPage * slotBytes
		for i := range page {
			s := &page[i]
			st.Bytes[PurposeHolders] += s.runs.bytes() + uint64(len(s.rows))*rowUseBytes
			if s.exc != nil {
				st.Bytes[PurposeStreams] += uint64(len(s.exc.byHash)+len(s.exc.byPos)) * exceptionBytes
			}
		}
	}
}
