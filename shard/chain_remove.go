// SPDX-License-Identifier: Apache-2.0

// Hop before: Shard, with the engine hashes that one slot gives up.
// Hop after: coverage, then reclamation of what nobody holds.

package shard

import (
	"runtime"

	"kindex/asm"
	"kindex/internal/kv"
)

func (c *chainCore) remove(s slot, engines []kv.EngineHash, unknown []kv.EngineHash) []kv.EngineHash {
	st := c.slot(s)
	es := engineWords(engines)
	ahead, single := 0, false // hashes asked for; hash by hash
	for i := 0; i < len(es); {
		if single && i >= ahead {
			ahead = min(i+probeAhead, len(es))
			asm.DictPrefetch(&c.dict.table, es[i:ahead])
		}
		p := c.mappedNear(s, st, es[i])
		if p == 0 {
			single = true
			unknown = append(unknown, engines[i])
			i++
			continue
		}
		idx := p >> offsetBits
		if st.exc.in(idx) || c.over.of(idx) != nil {
			// Hash by hash, with the net effect published in the end.
			single = true
			c.unmap(s, st, p, es[i])
			i++
			continue
		}
		line, row := c.runs.at(idx).line, st.rowOf(idx)
		lo, hi := c.extent(s, line, row, int(p&posOffset), es[i+1:])
		st.aboveIs = lo > 0
		if lo > 0 {
			st.above = c.names(row, lo-1, lo)[0]
		}
		c.uncover(line, s, st, lo, hi)
		i += hi - lo
		if lo > 0 {
			st.cursor = p&^posOffset | uint32(lo-1)
		} else if up := c.parent(line); up.line != 0 {
			st.cursor = c.position(up.line, int(up.off)-1)
		}
	}
	if len(c.over.list) > 0 {
		c.publish(s, st)
	}
	c.settle(s, st)
	runtime.KeepAlive(c)
	return unknown
}

// probeAhead is how many hashes are asked for together where each is looked up.
const probeAhead = 64

// mappedNear is [chainCore.mapped] that tries the removal cursor first: engines give
// blocks up from a chain's end upwards, over many events.
func (c *chainCore) mappedNear(s slot, st *slotState, e uint64) uint32 {
	if p := st.cursor; (!st.aboveIs || st.above == e) && c.maps(s, st, p, e) {
		return p
	}
	return c.mapped(s, st, e)
}

// extent returns the range around off of the run at line whose hashes in row,
// upwards or downwards from off, are the next ones to be removed and which s
// holds.
func (c *chainCore) extent(s slot, line, row uint32, off int, next []uint64) (lo, hi int) {
	lo, hi = off, off+1
	if len(next) == 0 {
		return lo, hi
	}
	h := c.holding(line, s)
	if n := asm.MatchReverse(c.names(row, 0, off), next); n > 0 {
		if off < h.prefix {
			return lo - n, hi
		}
		for n > 0 && c.holds(h, lo-1) {
			lo--
			n--
		}
		return lo, hi
	}
	end := hi + asm.MatchForward(c.names(row, hi, int(c.runs.at(row).filled)), next)
	hi = min(end, max(hi, h.prefix))
	for hi < end && c.holds(h, hi) {
		hi++
	}
	return lo, hi
}

// settle reclaims what the runs in c.touched no longer need, of which s may have
// been the last user.
func (c *chainCore) settle(s slot, st *slotState) {
	for _, idx := range c.touched {
		if c.runs.at(idx).next != 0 {
			c.settleRows(s, st, idx)
		}
	}
	for _, idx := range c.touched {
		line := c.runs.at(idx).line
		for line != 0 {
			line = c.settleRun(line)
		}
	}
	c.touched = c.touched[:0]
	c.arena.trim()
}

// settleRun slims the holder block of the run at line, cuts off its tail that
// nobody holds and nothing hangs below, and frees it when that is all of it. Then
// it returns the line of the run above, which may be free now, too; else 0.
func (c *chainCore) settleRun(line uint32) uint32 {
	if ext := c.ext(line); ext != 0 {
		c.slimExt(line, ext)
	}
	info := c.runs.at(c.index(line))
	top, length := 0, c.runLen(line)
	if info.children > 0 {
		top = int(info.maxChild)
	}
	if ext := c.ext(line); ext != 0 {
		top = max(top, c.extTop(ext, length))
	} else {
		for k := range inlineHolders {
			if e := *c.arena.w(line, runEntry0+k); e != 0 {
				top = max(top, c.top(entryHolding(e)))
			}
		}
	}
	if top == 0 {
		return c.freeRun(line)
	}
	if top < length {
		c.truncate(line, top)
	}
	return 0
}

func (c *chainCore) clear(s slot) {
	st := c.slot(s)
	st.runs.each(func(idx uint32) {
		line := c.runs.at(idx).line
		h := c.holding(line, s)
		b := c.blocks(h)
		if h.holes != 0 {
			c.arena.give(classHoles, h.holes)
		}
		c.setHolding(line, s, holding{})
		c.lost(line, st, holding{}, b.count())
	})
	if st.held != 0 || st.runs.n != 0 {
		panic("BUG: shard: a cleared slot still holds something")
	}
	st.runs, st.exc, st.mayGap = runSet{}, nil, false
	c.settle(s, st)
	runtime.KeepAlive(c)
}
