// SPDX-License-Identifier: Apache-2.0

// Hop before: the chain core's store, removal and find.
// Hop after: asm's dictionary kernels.

package shard

import (
	"kindex/asm"
	"kindex/numa"
)

// dict maps engine hashes to where they stand: one entry for each hash of each
// row, whoever uses it. A position is the row's index shifted by offsetBits, plus
// the offset. It keeps no keys; a candidate is verified in the row
// ([chainCore.engineOf]). One hash may have several positions.
//
// Concurrency: the writer's alone, so its words are plain.
type dict struct {
	block *numa.Block
	words []uint64
	n     uint64 // entries
}

const (
	// dictMaxLoad is the most entries per line in tenths, of 100: 4.5 of 10 slots.
	// From the prototype: slower above (an overflow is a miss of its own), no
	// faster below.
	dictMaxLoad  = 45
	dictMinLines = 64
	// dictSmall is the number of lines below which a table doubles; above it grows
	// by a quarter, since doubling would waste up to half.
	dictSmall = 1 << 14
	// candidates is the room for positions of one hash that usually suffices.
	candidates = 16
)

// linesFor returns the number of lines that n entries want, 0 when those at hand
// suffice.
func (d *dict) linesFor(n uint64) uint64 {
	lines := uint64(len(d.words) / asm.DictLineWords)
	if n*10 <= lines*dictMaxLoad {
		return 0
	}
	grown := lines + lines/4
	if lines < dictSmall {
		grown = 2 * lines
	}
	return max(dictMinLines, grown, n*10/dictMaxLoad+1)
}

// growDict gives the dictionary lines lines and enters every live position.
//
// It is called before a run or an append becomes live, so that no position is
// entered twice. Cost: all positions.
func (c *chainCore) growDict(lines uint64) error {
	block, err := numa.NewBlock(int(lines)*asm.DictLineWords, c.arena.placement)
	if err != nil {
		return ErrArenaFull
	}
	old := c.dict.block
	c.dict.block, c.dict.words = block, block.Words()
	c.arena.outside = lines
	for idx := uint32(1); idx <= c.runs.next; idx++ {
		info := c.runs.at(idx)
		if info.line == 0 {
			continue
		}
		keys := c.names(idx, 0, int(info.filled))
		asm.DictInsert(c.dict.words, keys, idx<<offsetBits, c.hitsFor(len(keys)))
	}
	if old != nil {
		return old.Release()
	}
	return nil
}

// hitsFor returns scratch for n hits.
func (c *chainCore) hitsFor(n int) []uint32 {
	if cap(c.hitBuf) < n {
		c.hitBuf = make([]uint32, max(n, maxRun))
	}
	return c.hitBuf[:n]
}

// enter adds the positions from off of a row to the dictionary, and marks the
// runs that share an engine hash.
func (c *chainCore) enter(row uint32, off int, engines []uint64) {
	hits := c.hitsFor(len(engines))
	from := row<<offsetBits | uint32(off)
	base := c.basePosition(from)
	n := asm.DictInsert(c.dict.words, engines, from, hits)
	c.dict.n += uint64(len(engines))
	for k, i := range hits[:n] {
		if k > 0 && engines[i] == engines[hits[k-1]] {
			continue // the whole batch is in: all places of this hash were marked
		}
		for _, p := range c.candidates(engines[i]) {
			// The position may be one of this very batch, not yet counted as filled.
			if q := c.basePosition(p); q != base+i && c.engineOf(p) == engines[i] {
				c.markDup(c.runs.at(base >> offsetBits).line)
				c.markDup(c.runs.at(q >> offsetBits).line)
			}
		}
	}
}

// leave takes the positions from off of a row out of the dictionary.
func (c *chainCore) leave(row uint32, off int, engines []uint64) {
	if missing := asm.DictDelete(c.dict.words, engines, row<<offsetBits|uint32(off)); missing != 0 {
		panic("BUG: shard: position missing in the dictionary")
	}
	c.dict.n -= uint64(len(engines))
}

// candidates returns the positions that may have e as canonical hash. The slice
// is valid until the next call.
func (c *chainCore) candidates(e uint64) []uint32 {
	for {
		n := asm.DictFind(c.dict.words, e, c.found)
		if n <= len(c.found) {
			return c.found[:n]
		}
		c.found = make([]uint32, 2*n)
	}
}
