// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
)

// checker walks the whole structure and panics at the first broken invariant.
type checker struct {
	c        *chainCore
	children map[uint32]uint32 // by line
	maxChild map[uint32]uint16
	held     map[slot]uint64
	runsOf   map[slot]int
	byHash   map[uint64][]uint32 // positions of rows
	users    map[uint32]int      // by alias row
	live     [numPieces]uint32
	entries  uint64
	union    uint64
}

func (k *checker) must(ok bool, format string, args ...any) {
	if !ok {
		panic("BUG: shard: " + fmt.Sprintf(format, args...))
	}
}

// check verifies every invariant that the essay states. Cost: everything, and maps
// of everything.
func (c *chainCore) check() {
	k := &checker{
		c: c, children: map[uint32]uint32{}, maxChild: map[uint32]uint16{},
		held: map[slot]uint64{}, runsOf: map[slot]int{}, byHash: map[uint64][]uint32{},
		users: map[uint32]int{},
	}
	c.countStale()
	count, rows := uint32(0), uint32(0)
	for idx := uint32(1); idx <= c.runs.next; idx++ {
		if line := c.runs.lineOf(idx); line != 0 {
			count++
			k.run(idx, line)
		} else if c.runs.at(idx).base != 0 {
			rows++
		}
	}
	k.must(count+rows == c.runs.count && rows == c.runs.rows, "%d live runs and %d rows, counted %d, %d of them rows", count, rows, c.runs.count, c.runs.rows)
	for idx := uint32(1); idx <= c.runs.next; idx++ {
		if info := c.runs.at(idx); c.runs.lineOf(idx) != 0 {
			k.must(info.children == k.children[info.line], "run %d: %d children, says %d", idx, k.children[info.line], info.children)
			k.must(info.maxChild >= k.maxChild[info.line], "run %d: a child at %d past %d", idx, k.maxChild[info.line], info.maxChild)
			k.must(c.shape(info.line)&flagParent != 0 == (info.children > 0), "run %d: %d children, flag wrong", idx, info.children)
			k.must(!info.mark, "run %d: still marked", idx)
		}
	}
	k.must(k.entries == c.dict.n, "%d positions, dictionary has %d", k.entries, c.dict.n)
	k.must(uint64(count) == c.edgeState.n, "%d runs, %d edges", count, c.edgeState.n)
	k.edges()
	k.hashes()
	for i := range c.slots {
		if c.slots[i] == nil {
			continue
		}
		for j := range c.slots[i] {
			k.slot(slot(i*slotPage+j), &c.slots[i][j])
		}
	}
	k.rows()
	k.pieces()
	k.must(k.union == c.blocksHeld, "%d blocks are held, says %d", k.union, c.blocksHeld)
	k.must(len(c.touched) == 0 && len(c.over.list) == 0, "scratch left over")
	runtime.KeepAlive(c)
}

func (k *checker) run(idx, line uint32) {
	c := k.c
	info := c.runs.at(idx)
	shape := c.shape(line)
	length := shapeLength(shape)
	k.must(c.index(line) == idx, "run %d: line %d says %d", idx, line, c.index(line))
	k.must(uint8(shape>>shapeClass) == info.class, "run %d: class", idx)
	k.must(length >= 1 && length <= shapeCap(shape), "run %d: length %d of %d", idx, length, shapeCap(shape))
	k.must(*c.arena.w(line, runVersion)&1 == 0, "run %d: version is odd", idx)
	k.live[info.class]++

	key, root := *c.arena.w(line, runKey), shape&flagRoot
	k.must(c.findEdge(key, root, *c.arena.w(line, runContent)) == line, "run %d: its edge leads elsewhere", idx)
	if up := c.parent(line); up.line != 0 {
		upIdx := c.index(up.line)
		k.must(c.runs.at(upIdx).line == up.line, "run %d: its parent is dead", idx)
		upLen := c.runLen(up.line)
		k.must(up.off >= 1 && int(up.off) <= upLen, "run %d: hangs at %d of %d", idx, up.off, upLen)
		if int(up.off) < upLen {
			k.must(c.content(up.line, int(up.off), int(up.off)+1)[0] != *c.arena.w(line, runContent), "run %d: its position is in its parent, too", idx)
		}
		k.must(info.root == c.runs.at(upIdx).root, "run %d: root", idx)
		k.children[up.line]++
		k.maxChild[up.line] = max(k.maxChild[up.line], up.off)
	} else {
		k.must(info.root == line, "run %d: a root below another", idx)
	}
	users := 0
	for row := idx; row != 0; row = c.runs.at(row).next {
		k.names(idx, row, length)
		if row != idx {
			users += int(c.runs.at(row).users)
		}
	}
	k.must(users == int(info.users), "run %d: its rows have %d users, says %d", idx, users, info.users)
	own := c.holders(line) - users
	k.must(own >= 0, "run %d: its rows have more users than it has holders", idx)
	k.must(own > 0 || info.next == 0 || info.filled == 0, "run %d: its own row is of no use", idx)
	k.holders(idx, line, length)
}

// names notes what stands in a row of run idx.
func (k *checker) names(idx, row uint32, length int) {
	c := k.c
	info := c.runs.at(row)
	k.must(int(info.filled) <= length, "run %d, row %d: %d of %d filled", idx, row, info.filled, length)
	if row != idx {
		k.live[classRow+int(info.class)]++
		k.must(info.line != 0 && info.base == idx, "run %d: row %d is not one of it", idx, row)
		k.must(info.filled > 0 && int(info.filled) <= c.rowCap(row), "run %d, row %d: %d of %d filled", idx, row, info.filled, c.rowCap(row))
		k.must(c.rowCap(row) <= int(runCap[c.runs.at(idx).class]), "run %d, row %d: larger than the run", idx, row)
	}
	for off, e := range c.names(row, 0, int(info.filled)) {
		k.byHash[e] = append(k.byHash[e], row<<offsetBits|uint32(off))
		k.entries++
	}
}

// rows holds the alias rows' users against the slots'.
func (k *checker) rows() {
	for idx := uint32(1); idx <= k.c.runs.next; idx++ {
		if info := k.c.runs.at(idx); info.base != 0 {
			k.must(k.users[idx] == int(info.users) && info.users > 0, "row %d: %d users, says %d", idx, k.users[idx], info.users)
			delete(k.users, idx)
		}
	}
	k.must(len(k.users) == 0, "rows in use that are none: %v", k.users)
}

func (k *checker) holders(idx, line uint32, length int) {
	c := k.c
	seen := map[slot]bool{}
	top, n := 0, 0
	var union blockSet
	c.eachHolder(line, func(s slot, h holding) {
		st := c.slot(s)
		k.must(st.open, "run %d: held by closed slot %d", idx, s)
		k.must(!seen[s], "run %d: slot %d twice", idx, s)
		seen[s] = true
		n++
		k.must(!h.empty(), "run %d: slot %d holds nothing", idx, s)
		k.must(h.prefix <= length, "run %d: slot %d holds %d of %d", idx, s, h.prefix, length)
		b := c.blocks(h)
		k.must(b.prefix() == h.prefix, "run %d: slot %d: prefix %d, bitmap %d", idx, s, h.prefix, b.prefix())
		k.must(b.top() <= length, "run %d: slot %d holds past the end", idx, s)
		if h.holes != 0 {
			k.live[classHoles]++
			k.must(b.count() > h.prefix, "run %d: slot %d: bitmap without need", idx, s)
		}
		k.must(c.holding(line, s) == h, "run %d: slot %d: found %+v, listed %+v", idx, s, c.holding(line, s), h)
		top = max(top, b.top())
		for w := range union {
			union[w] |= b[w]
		}
		k.held[s] += uint64(b.count())
		k.runsOf[s]++
		if !st.mayGap {
			k.must(h.holes == 0 && c.climb(line, s), "run %d: slot %d may not have a gap", idx, s)
		}
	})
	k.must(n == c.holders(line), "run %d: %d holders, says %d", idx, n, c.holders(line))
	k.union += uint64(union.count())
	info := c.runs.at(idx)
	k.must(n > 0 || info.children > 0, "run %d: nobody wants it", idx)
	if ext := c.ext(line); ext != 0 {
		k.extBlock(idx, ext, n)
		if c.extShape(ext).table > extTopTable {
			return
		}
	}
	want := top
	if info.children > 0 {
		want = max(want, int(info.maxChild))
	}
	k.must(want == length, "run %d: length %d, wants %d", idx, length, want)
}

func (k *checker) extBlock(idx, ext uint32, holders int) {
	c := k.c
	g := c.extShape(ext)
	k.must(g.class >= classExt && g.class < numPieces, "run %d: ext class %d", idx, g.class)
	k.must(extBits+g.width+g.table == int(pieceLines[g.class])*lineWords, "run %d: ext geometry %+v", idx, g)
	k.must(holders > 2, "run %d: %d holders in an external block", idx, holders)
	used := 0
	for i := range g.table {
		if *c.arena.w(ext, extBits+g.width+i) != 0 {
			used++
		}
	}
	k.must(used == int(*c.arena.w(ext, extMoves)>>32), "run %d: %d entries, says %d", idx, used, *c.arena.w(ext, extMoves)>>32)
	k.live[g.class]++
}

// edges holds every line of the edge table against the runs: each run in one slot,
// and each line counts exactly those that passed it.
func (k *checker) edges() {
	c := k.c
	t := &c.edgeState
	desc := c.edges.desc.Load()
	k.must(t.growing == (uint32(desc) < uint32(desc>>32)) || t.growing && uint32(desc) == uint32(desc>>32), "edges: growing %t, desc %#x", t.growing, desc)
	k.must(t.end <= t.usable, "edges: end %d, %d usable", t.end, t.usable)
	passed := make([]uint64, t.end+1)
	seen := map[uint32]bool{}
	for l := range min(t.end+edgeSpill, t.usable) {
		for s := 1; s <= edgeSlots; s++ {
			slot := *c.edges.w(l, s)
			if slot == 0 {
				continue
			}
			run, tag := uint32(slot), uint32(slot>>32)
			k.must(!seen[run], "edges: run at line %d twice", run)
			seen[run] = true
			k.must(c.runs.at(c.index(run)).line == run, "edges: line %d leads to a dead run", l)
			k.must(edgeTag(*c.arena.w(run, runKey), c.shape(run)&flagRoot, *c.arena.w(run, runContent)) == tag, "edges: line %d: wrong tag", l)
			home := edgeHome(desc, tag)
			k.must(home <= l && l < t.end, "edges: an entry in line %d, home %d, end %d", l, home, t.end)
			for ; home < l; home++ {
				passed[home]++
			}
		}
	}
	k.must(uint64(len(seen)) == t.n, "edges: %d slots, says %d", len(seen), t.n)
	for l, n := range passed {
		if uint32(l) < t.usable {
			k.must(*c.edges.w(uint32(l), 0) == n, "edges: %d passed line %d, says %d", n, l, *c.edges.w(uint32(l), 0))
		}
	}
}

// hashes holds the dictionary against the runs, and the dup flags.
func (k *checker) hashes() {
	c := k.c
	entries, err := c.dict.table.Check(c.engineOf)
	k.must(err == nil && entries == c.dict.n, "dictionary: %v; %d entries, says %d", err, entries, c.dict.n)
	for e, positions := range k.byHash {
		in := map[uint32]int{}
		for _, p := range c.candidates(e) {
			in[p]++
		}
		first := c.basePosition(positions[0])
		elsewhere := slices.ContainsFunc(positions, func(p uint32) bool { return c.basePosition(p) != first })
		for _, p := range positions {
			k.must(in[p] == 1, "position %#x: %d times under its hash", p, in[p])
			if elsewhere {
				line := c.runs.at(c.basePosition(p) >> offsetBits).line
				k.must(c.shape(line)&flagDup != 0, "position %#x: its hash is elsewhere, too, and no flag", p)
			}
		}
	}
}

func (k *checker) slot(s slot, st *slotState) {
	c := k.c
	k.must(st.held == k.held[s], "slot %d: holds %d, says %d", s, k.held[s], st.held)
	k.must(st.runs.n == k.runsOf[s], "slot %d: in %d runs, says %d", s, k.runsOf[s], st.runs.n)
	logged := map[uint32]bool{}
	for i, b := range st.runs.buckets {
		for _, idx := range b {
			line := c.runs.lineOf(idx)
			k.must(line != 0 && !c.holding(line, s).empty() && !logged[idx], "slot %d: run %d is in its set and not held, or twice", s, idx)
			k.must(runSetBucket(idx, len(st.runs.buckets)) == i, "slot %d: run %d in bucket %d", s, idx, i)
			logged[idx] = true
		}
	}
	k.must(len(logged) == st.runs.n, "slot %d: %d runs in its set, says %d", s, len(logged), st.runs.n)
	for idx, row := range st.rows {
		k.must(logged[idx], "slot %d: uses a row of run %d, of which it holds nothing", s, idx)
		k.must(c.runs.at(row).base == idx, "slot %d: uses row %d for run %d", s, row, idx)
		k.users[row]++
	}
	own := map[uint64]uint32{}
	for idx := range logged {
		row := st.rowOf(idx)
		filled := int(c.runs.at(row).filled)
		h := c.holding(c.runs.at(idx).line, s)
		for off := range c.top(h) {
			p := idx<<offsetBits | uint32(off)
			if !c.holds(h, off) || !c.holdsCanonical(s, st, p) {
				continue
			}
			k.must(off < filled, "slot %d: holds %#x by row %d, which ends at %d", s, p, row, filled)
			e := c.engineOf(row<<offsetBits | uint32(off))
			q, twice := own[e]
			k.must(!twice, "slot %d: hash %#x at %#x and %#x", s, e, q, p)
			own[e] = p
		}
	}
	if st.exc == nil {
		return
	}
	k.must(len(st.exc.byHash) > 0, "slot %d: no exceptions, but maps of them", s)
	n := map[uint32]uint32{}
	for e, p := range st.exc.byHash {
		_, found := st.exc.find(e)
		k.must(found, "slot %d: exception %#x has no bit", s, e)
		n[p]++
		idx := p >> offsetBits
		k.must(c.runs.lineOf(idx) != 0 && c.covers(s, p), "slot %d: exception at %#x, not held", s, p)
		named := c.stands(st.rowOf(idx)<<offsetBits|p&posOffset, e)
		k.must(!named || !st.exc.byPos[p].canonical, "slot %d: exception %#x is canonical", s, e)
		_, twice := own[e]
		k.must(!twice, "slot %d: hash %#x canonical and exception", s, e)
	}
	k.must(len(n) == len(st.exc.byPos), "slot %d: %d positions with exceptions, says %d", s, len(n), len(st.exc.byPos))
	runs := map[uint32]uint32{}
	for p := range st.exc.byPos {
		runs[p>>offsetBits]++
	}
	k.must(maps.Equal(runs, st.exc.runs), "slot %d: positions with exceptions by run %v, says %v", s, runs, st.exc.runs)
	for p, x := range st.exc.byPos {
		k.must(n[p] == x.n, "slot %d: %d exceptions at %#x, says %d", s, n[p], p, x.n)
	}
}

// pieces holds the arena's pages and counts against the structure.
func (k *checker) pieces() {
	a := &k.c.arena
	var sum [numPieces]pieceClass
	var touched, gone uint64
	gaps := make([]uint32, len(a.gaps))
	var extents [][2]uint32
	for id := uint32(1); id <= a.count; id++ {
		p := a.page(id)
		size := pieceLines[p.class]
		c, of := &sum[p.class], &a.classes[p.class]
		end := p.line + p.lines
		k.must(p.line%systemLines == 0 && p.lines%systemLines == 0 && uint32(p.pieces) == p.lines/size, "page %d: %d pieces of %d lines in %d at %d", id, p.pieces, size, p.lines, p.line)
		extents = append(extents, [2]uint32{p.line, end})
		free := uint32(0)
		taken := map[uint32]bool{}
		for line := p.free; line != 0; line = uint32(*a.w(line, pieceLink(int(p.class)))) {
			at := line - p.line
			k.must(line >= p.line && at < uint32(p.carved)*size && at%size == 0 && !taken[line], "page %d: free list is broken at %d", id, line)
			k.must(a.pageOf(line) == id, "page %d: line %d is said to lie in page %d", id, line, a.pageOf(line))
			taken[line] = true
			free++
		}
		k.must(free+uint32(p.live) == uint32(p.carved), "page %d: %d free and %d live of %d", id, free, p.live, p.carved)
		k.must(of.open.has(id) == (free > 0), "page %d: %d free, listed %t", id, free, of.open.has(id))
		k.must(of.fresh.has(id) == (p.carved < p.pieces && !p.gone), "page %d: %d of %d carved, listed %t", id, p.carved, p.pieces, of.fresh.has(id))
		k.must(of.idle.has(id) == (p.live == 0 && free > 0), "page %d: %d live, %d free, idle %t", id, p.live, free, of.idle.has(id))
		k.must(of.gone.has(id) == p.gone, "page %d: memory given back %t, listed %t", id, p.gone, of.gone.has(id))
		c.live += uint32(p.live)
		c.free += free
		touched += uint64(p.carved) * uint64(size)
		if !p.gone {
			c.pages++
			c.uncarved += uint32(p.pieces - p.carved)
			continue
		}
		gone += uint64(end - p.line)
		for line := p.line; line < end; line++ {
			gaps[line/chunkLines]++
		}
		k.must(p.carved == 0, "page %d: in use without memory", id)
	}
	slices.SortFunc(extents, func(a, b [2]uint32) int { return cmp.Compare(a[0], b[0]) })
	end := uint32(1)
	for _, e := range extents {
		k.must(e[0] >= end && e[1] > e[0], "a page of lines %d to %d, the one before ends at %d", e[0], e[1], end)
		end = e[1]
	}
	k.must(a.count == 0 || end <= a.next && a.next <= a.usable && a.usable <= a.hard, "arena: pages to %d, chunks to %d, %d usable of %d", end, a.next, a.usable, a.hard)
	k.must(touched == a.touched && gone == a.goneLines, "arena: %d lines touched and %d gone, says %d and %d", touched, gone, a.touched, a.goneLines)
	k.must(slices.Equal(gaps, a.gaps), "arena: gaps %v, says %v", gaps, a.gaps)
	for class := range numPieces {
		c, of := &sum[class], &a.classes[class]
		k.must(k.live[class] == of.live, "class %d: %d pieces, says %d", class, k.live[class], of.live)
		k.must(c.live == of.live && c.free == of.free && c.uncarved == of.uncarved && c.pages == of.pages,
			"class %d: live %d, free %d, uncarved %d, pages %d; says %d, %d, %d, %d", class,
			c.live, c.free, c.uncarved, c.pages, of.live, of.free, of.uncarved, of.pages)
	}
}
