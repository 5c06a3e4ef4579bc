// SPDX-License-Identifier: Apache-2.0

// Hop before: runs made and freed; lookups on their way down.
// Hop after: the table's own address space.

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
// The tag alone says where an entry's home line is, so that the table grows
// without a look at the runs. An entry lies in its home line or, when that is
// full, in one of the next; all lines it passed count it. There is no way round
// from the last line to the first: the lines past the last home take the rest.
//
// The table grows in place, by half, while readers read: see [chainCore.sweepEdges].
// It never shrinks, and no line of it is ever used for anything else.
type edges struct {
	// desc: home lines 32 | from 32. Of the lines, those from `from` on were
	// moved to the next larger table; none when the two are equal. Written by
	// the writer after the copies stand and before the originals go. It only
	// ever describes a later state of growth, so that none comes twice.
	desc atomic.Uint64
	arenaMemory
}

// edgeWriter is what the writer knows of the edge table.
type edgeWriter struct {
	n       uint64     // entries
	growing bool       // the table is on its way to edgeNext lines
	held    bool       // there is no room within the bound to begin to grow
	end     uint32     // one past the last line that ever held or passed an entry
	usable  uint32     // lines that may be touched
	moves   []edgeMove // scratch of one sweep
	// testHook, where a test sets it, is called between the steps of a sweep.
	testHook func()
}

// edgeMove is an entry whose home line changes.
type edgeMove struct {
	line uint32 // where it lies
	slot uint8  // word of the line
	home uint32 // its home line until now
}

const (
	edgeSlots    = lineWords - 1
	edgeMinLines = 8
	// edgeMaxLoad is the most entries per line, of 7. Chosen: at 60 % one line in
	// fourteen overflows.
	edgeMaxLoad = 4
	// edgeFullLoad is how full a table gets that there is no memory to grow for.
	// Chosen, as dictFullLoad is.
	edgeFullLoad = 5
	// edgeSweep is how many lines each new run moves while the table grows. Any
	// number from 1 on ends growth long before the load ceiling is met again; four
	// keep the part still to be moved below 4.25 entries a line.
	edgeSweep = 4
	// edgeSpill is how many lines past the last home are made usable ahead of need.
	edgeSpill = 64
)

// edgeNext is the size of the table after the one of lines home lines.
func edgeNext(lines uint64) uint64 { return lines + lines/2 }

// childKey is the run key of a child that hangs at p.
func childKey(p place) uint64 { return uint64(p.line)<<16 | uint64(p.off) }

// edgeTag mixes a run's key, flagRoot or not, and its first content. It is never 0.
func edgeTag(key, root, content uint64) uint32 {
	hi, lo := bits.Mul64(key^root^0x9E3779B97F4A7C15, content^0xA0761D6478BD642F)
	h := hi ^ lo
	h = (h ^ h>>32) * 0xD6E8FEB86659FD93
	return max(uint32((h^h>>29)>>32), 1)
}

// edgeSlot is the slot value of the run at line under tag.
func edgeSlot(tag, line uint32) uint64 { return uint64(tag)<<32 | uint64(line) }

// edgeHomeOf is the home line of tag in a table of lines.
func edgeHomeOf(tag uint32, lines uint64) uint32 { return uint32(uint64(tag) * lines >> 32) }

// edgeHome is the home line of tag as desc says. For the same tag it never falls
// while the table grows; where it stays the same, the entry stays where it is.
func edgeHome(desc uint64, tag uint32) uint32 {
	lines := desc >> 32
	home := edgeHomeOf(tag, lines)
	if home >= uint32(desc) {
		home = edgeHomeOf(tag, edgeNext(lines))
	}
	return home
}

// initEdges reserves address space for the table that the most runs want which
// lines of the arena have room for, and makes the smallest one.
//
// Errors: the kernel's, when the address space is not to be had.
func (c *chainCore) initEdges(lines uint64) error {
	most := min(lines/uint64(pieceLines[0]), maxRuns)
	table := uint64(edgeMinLines)
	for table*edgeMaxLoad <= most {
		table = edgeNext(table)
	}
	// Past the last home there are at most as many lines as all entries fill.
	if err := c.edges.reserve(table+most/edgeSlots+edgeSpill, c.arena.placement); err != nil {
		return err
	}
	if !c.edgesUsable(edgeMinLines + edgeSpill) {
		return ErrArenaFull
	}
	c.edgeState.end = edgeMinLines
	c.edges.desc.Store(edgeMinLines<<32 | edgeMinLines)
	return nil
}

// edgesUsable makes the first lines lines usable.
func (c *chainCore) edgesUsable(lines uint64) bool {
	if lines <= uint64(c.edgeState.usable) {
		return true
	}
	n, err := c.edges.use(lines)
	if err != nil {
		return false
	}
	c.edgeState.usable = n
	return true
}

// edgesWant returns how many lines are to be usable before n more entries come.
// Memory for growth is taken ahead: the table waits for it, a little fuller than it
// should be.
func (c *chainCore) edgesWant(n int) uint64 {
	t := &c.edgeState
	lines, usable := c.edges.desc.Load()>>32, uint64(t.usable)
	want := edgeNext(lines) + edgeSpill
	if t.growing || t.n+uint64(n) < lines*edgeMaxLoad || want <= usable {
		return usable
	}
	return max(usable, min(want, c.edges.soon(want)))
}

// edgesNext returns how many lines of memory the table's next growth takes beside
// those that it has, and how many entries it takes without growing.
func (c *chainCore) edgesNext() (lines, most uint64) {
	homes := c.edges.desc.Load() >> 32
	if c.edgeState.growing {
		homes = edgeNext(homes)
	}
	next := edgeNext(homes)
	if next+edgeSpill > chunkLines {
		next = (next + edgeSpill + chunkLines - 1) / chunkLines * chunkLines
	}
	return next - min(next, c.arena.edgeLines), homes * edgeFullLoad
}

// edgeLines is how many lines of memory the table takes with usable lines and n
// more entries. The system gives all of what is usable but of the first huge page,
// of which it gives what is touched.
func (c *chainCore) edgeLines(usable uint64, n int) uint64 {
	if usable > chunkLines {
		return (usable + chunkLines - 1) / chunkLines * chunkLines // as use gives them
	}
	lines := c.edges.desc.Load() >> 32
	for lines*edgeMaxLoad < c.edgeState.n+uint64(n) {
		lines = edgeNext(lines)
	}
	return max(lines, uint64(c.edgeState.end))
}

// edgesHold reports whether the table takes n more entries without growing.
func (c *chainCore) edgesHold(n int) bool {
	t := &c.edgeState
	return !t.growing && t.n+uint64(n) <= c.edges.desc.Load()>>32*edgeFullLoad
}

// insertEdge adds an entry, for which the caller has made sure of memory. While the
// table grows, it moves on a bit.
//
// Cost: a line; while the table grows, edgeSweep lines one after the other and
// the places of their entries, which lie together, too.
func (c *chainCore) insertEdge(tag, run uint32) {
	t := &c.edgeState
	desc := c.edges.desc.Load()
	if next := edgeNext(desc >> 32); !t.growing && !t.held && t.n >= desc>>32*edgeMaxLoad && uint64(t.usable) >= next+edgeSpill {
		t.growing = true
		t.end = max(t.end, uint32(next))
	}
	if t.growing {
		desc = c.sweepEdges(desc)
	}
	c.putEdge(edgeHome(desc, tag), edgeSlot(tag, run))
	t.n++
}

// putEdge enters slot at the line home or after it.
func (c *chainCore) putEdge(home uint32, slot uint64) {
	t := &c.edgeState
	for l := home; ; l++ {
		for k := 1; k <= edgeSlots; k++ {
			if w := c.edges.w(l, k); *w == 0 {
				storeWord(w, slot)
				return
			}
		}
		// Readers go on to the next line as soon as this one counts.
		t.end = max(t.end, l+2)
		if !c.edgesUsable(uint64(l) + 2) {
			panic("FATAL: shard: no memory for the edge table")
		}
		w := c.edges.w(l, 0)
		storeWord(w, *w+1)
	}
}

// dropEdge takes the entry in word k of line l away, whose home line is home.
func (c *chainCore) dropEdge(home, l uint32, k int) {
	storeWord(c.edges.w(l, k), 0)
	for ; home < l; home++ {
		w := c.edges.w(home, 0)
		storeWord(w, *w-1)
	}
}

// sweepEdges moves the entries of the last few lines not yet moved to where their
// homes are in the next larger table, and returns the new desc.
//
// Homes are in the order of tags in either table, so that one line number
// separates the moved from the others. The entries of a line are copied to their
// new places, then desc says that the line is moved, then the originals go. A
// reader that looks at an entry's old place therefore finds the entry, or
// afterwards finds desc changed and looks again.
//
// Old and new share the lines: the counts say for either who passed.
func (c *chainCore) sweepEdges(desc uint64) uint64 {
	t := &c.edgeState
	lines, from := desc>>32, uint32(desc)
	next := edgeNext(lines)
	to := from - min(from, edgeSweep)
	t.moves = t.moves[:0]
	for home := to; home < from; home++ {
		for l := home; ; l++ {
			for k := 1; k <= edgeSlots; k++ {
				if tag := uint32(*c.edges.w(l, k) >> 32); tag != 0 && edgeHomeOf(tag, lines) == home && edgeHomeOf(tag, next) != home {
					t.moves = append(t.moves, edgeMove{line: l, slot: uint8(k), home: home})
				}
			}
			if *c.edges.w(l, 0) == 0 {
				break
			}
		}
	}
	for _, m := range t.moves {
		slot := *c.edges.w(m.line, int(m.slot))
		c.putEdge(edgeHomeOf(uint32(slot>>32), next), slot)
	}
	if t.testHook != nil {
		t.testHook()
	}
	desc = lines<<32 | uint64(to)
	if to == 0 {
		desc = next<<32 | next
		t.growing = false
	}
	c.edges.desc.Store(desc)
	for _, m := range t.moves {
		if t.testHook != nil {
			t.testHook()
		}
		c.dropEdge(m.home, m.line, int(m.slot))
	}
	return desc
}

// removeEdge takes the entry of the run at line run away.
func (c *chainCore) removeEdge(tag, run uint32) {
	home := edgeHome(c.edges.desc.Load(), tag)
	for l := home; ; l++ {
		for k := 1; k <= edgeSlots; k++ {
			if *c.edges.w(l, k) == edgeSlot(tag, run) {
				c.dropEdge(home, l, k)
				c.edgeState.n--
				return
			}
		}
		if *c.edges.w(l, 0) == 0 {
			panic("BUG: shard: edge not found")
		}
	}
}

// findEdge is the writer's search: the run below key whose first content is given,
// or 0.
func (c *chainCore) findEdge(key, root, content uint64) uint32 {
	tag := edgeTag(key, root, content)
	for l := edgeHome(c.edges.desc.Load(), tag); ; l++ {
		for k := 1; k <= edgeSlots; k++ {
			slot := *c.edges.w(l, k)
			if uint32(slot>>32) != tag {
				continue
			}
			run := uint32(slot)
			if *c.arena.w(run, runKey) == key && c.shape(run)&flagRoot == root && *c.arena.w(run, runContent) == content {
				return run
			}
		}
		if *c.edges.w(l, 0) == 0 {
			return 0
		}
	}
}
