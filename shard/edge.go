// SPDX-License-Identifier: Apache-2.0

// Hop before: runs made and freed; lookups on their way down.
// Hop after: the arena.

package shard

import (
	"math/bits"
	"sync/atomic"
)

// edges is the one table of roots and children: from (parent run, offset, next
// content) or (namespace, first content) to a run's line. It keeps no keys: a
// slot is verified in the header of the run it names.
//
//	word 0   overflow count: entries that passed this line because it was full
//	word 1-7 slots: tag 32 | line of the run 32; 0: free
//
// A slot is written by one store and stays where it is while its table lives, so
// that a reader finds every run that is there throughout. When the table is
// replaced, desc changes first; a reader that probed the old one finds that desc
// has changed and probes again. Tables only grow, so that no desc comes twice.
type edges struct {
	// desc: first line of the table 32 | number of lines 32. Written by the
	// writer; publishes the table.
	desc atomic.Uint64
	n    uint64 // entries
}

const (
	edgeSlots    = lineWords - 1
	edgeMinLines = 8
	// edgeMaxLoad is the most entries per line, of 7. Chosen: at 60 % one line in
	// fourteen overflows.
	edgeMaxLoad = 4
)

// childKey is the run key of a child that hangs at p.
func childKey(p place) uint64 { return uint64(p.line)<<16 | uint64(p.off) }

// edgeHash mixes a run's key, flagRoot or not, and its first content.
func edgeHash(key, root, content uint64) uint64 {
	hi, lo := bits.Mul64(key^root^0x9E3779B97F4A7C15, content^0xA0761D6478BD642F)
	h := hi ^ lo
	h = (h ^ h>>32) * 0xD6E8FEB86659FD93
	return h ^ h>>29
}

// edgeSlot is the slot value of the run at line under hash h.
func edgeSlot(h uint64, line uint32) uint64 {
	tag := h << 32
	if tag == 0 {
		tag = 1 << 32
	}
	return tag | uint64(line)
}

// edgeHome is the first line to look in, of lines.
func edgeHome(h, lines uint64) uint64 {
	line, _ := bits.Mul64(h, lines)
	return line
}

// reserve makes room for n more entries.
//
// Cost: a walk over all entries when the table grows, by half each time.
func (t *edges) reserve(c *chainCore, n int) {
	lines := edgeLinesFor(t.desc.Load(), t.n+uint64(n))
	if lines == 0 {
		return
	}
	old := t.desc.Load()
	base := c.arena.takeTable(uint32(lines))
	next := uint64(base)<<32 | lines
	for l := range uint64(uint32(old)) {
		for k := 1; k <= edgeSlots; k++ {
			run := uint32(*c.arena.w(uint32(old>>32)+uint32(l), k))
			if run == 0 {
				continue
			}
			h := edgeHash(*c.arena.w(run, runKey), c.shape(run)&flagRoot, *c.arena.w(run, runContent))
			edgeInsert(&c.arena, next, h, run)
		}
	}
	t.desc.Store(next)
	if old != 0 {
		c.arena.giveTable(uint32(old>>32), uint32(old))
	}
}

// edgeLinesFor returns the size of the table that n entries want, 0 when the
// one at desc does.
func edgeLinesFor(desc, n uint64) uint64 {
	lines := uint64(uint32(desc))
	if n <= lines*edgeMaxLoad {
		return 0
	}
	return max(edgeMinLines, lines+lines/2, n/edgeMaxLoad+1)
}

func (t *edges) insert(a *arena, h uint64, line uint32) {
	edgeInsert(a, t.desc.Load(), h, line)
	t.n++
}

func edgeInsert(a *arena, desc, h uint64, run uint32) {
	base, lines := uint32(desc>>32), uint64(uint32(desc))
	l := edgeHome(h, lines)
	for range lines {
		line := base + uint32(l)
		for k := 1; k <= edgeSlots; k++ {
			if w := a.w(line, k); *w == 0 {
				storeWord(w, edgeSlot(h, run))
				return
			}
		}
		w := a.w(line, 0)
		storeWord(w, *w+1)
		if l++; l == lines {
			l = 0
		}
	}
	panic("BUG: shard: edge table full")
}

func (t *edges) remove(a *arena, h uint64, run uint32) {
	desc := t.desc.Load()
	base, lines := uint32(desc>>32), uint64(uint32(desc))
	home := edgeHome(h, lines)
	l := home
	for passed := range lines {
		line := base + uint32(l)
		for k := 1; k <= edgeSlots; k++ {
			w := a.w(line, k)
			if *w != edgeSlot(h, run) {
				continue
			}
			storeWord(w, 0)
			for l = home; passed > 0; passed-- {
				w := a.w(base+uint32(l), 0)
				storeWord(w, *w-1)
				if l++; l == lines {
					l = 0
				}
			}
			t.n--
			return
		}
		if l++; l == lines {
			l = 0
		}
	}
	panic("BUG: shard: edge not found")
}

// find is the writer's search: the run below key whose first content is given,
// or 0.
func (t *edges) find(c *chainCore, key, root, content uint64) uint32 {
	desc := t.desc.Load()
	base, lines := uint32(desc>>32), uint64(uint32(desc))
	h := edgeHash(key, root, content)
	want := edgeSlot(h, 0) >> 32
	l := edgeHome(h, lines)
	for range lines {
		line := base + uint32(l)
		for k := 1; k <= edgeSlots; k++ {
			slot := *c.arena.w(line, k)
			if slot>>32 != want {
				continue
			}
			run := uint32(slot)
			if *c.arena.w(run, runKey) == key && c.shape(run)&flagRoot == root && *c.arena.w(run, runContent) == content {
				return run
			}
		}
		if *c.arena.w(line, 0) == 0 {
			return 0
		}
		if l++; l == lines {
			l = 0
		}
	}
	return 0
}
