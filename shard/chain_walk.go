// SPDX-License-Identifier: Apache-2.0

// Hop before: Shard, for dumps, digests and further tiers.
// Hop after: none.

package shard

import (
	"maps"
	"runtime"
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
