// SPDX-License-Identifier: Apache-2.0

// Hop before: the chain core's store and removal.
// Hop after: the arena; readers meet runs in chain_lookup.go.

package shard

import (
	"sync/atomic"

	"kindex/asm"
)

// Words of a run's header. Every word is the writer's to write and anybody's to
// read; asm.ReadRun depends on words 0, 1 and 3-7 and on the content's place.
const (
	// runVersion is odd while the structure changes: len shrinks, ext is replaced,
	// the run is freed or made. Written with atomic stores.
	runVersion = 0
	// runShape: generation 32 | len 16 | flags 8 | class 8. The generation goes
	// up when the run is shortened or freed: what a reader has matched may be
	// another chain from then on. len grows by a plain word store, once the new
	// content stands; it shrinks under the version.
	runShape = 1
	// runKey: a root's namespace, else parent's line 32 | offset in it 16.
	// Constant while the run lives.
	runKey = 2
	// runExt: line of the external holder block 32 (0: holders are inline) |
	// index 32. ext changes under the version.
	runExt = 3
	// runGap is the gap clock's value at the last gain below a hole. Stored
	// before the gain is, read after the coverage is.
	runGap = 4
	// runEntry0 to +2 are the inline holder entries, 0 where there is none. An
	// entry never moves while its slot holds anything of the run.
	runEntry0     = 5
	inlineHolders = 3
	// runContent: content[cap], then eng[cap]. Words below len are constant while
	// the run lives; eng is the writer's alone.
	runContent = asm.RunHeaderWords
)

// Flags of runShape.
const (
	flagRoot = 1 << 48 // the key is a namespace
	// flagDup: an engine hash here may be another position's, too. Never cleared
	// while the run lives.
	flagDup = 1 << 49
	// flagParent: something hangs below. Set before the first edge is there,
	// cleared after the last is gone, so that a reader without it need not look.
	flagParent = 1 << 50

	shapeLen   = 32
	shapeClass = 56
)

// runInfo is what only the writer knows of a run or an alias row, so dense that
// it stays in the cache. A row has line, base, next, filled, users and class.
type runInfo struct {
	line     uint32 // 0: the index is free
	root     uint32 // line of the root above, itself for a root
	base     uint32 // index of the row's run; 0: this is a run
	next     uint32 // index of the run's first row, or of the next one; 0: none
	children uint32
	filled   uint16 // leading engine hashes that stand in the row, or in the run's own
	users    uint16 // slots that use the row, or any alias row of the run
	maxChild uint16 // at least the largest offset a child hangs at; 0 without any
	held     uint16 // blocks that anybody holds, unless stale
	class    uint8
	grown    bool // made when a few blocks followed at the end of the run above
	stale    bool // held is to be counted again: the run is in chainCore.stale
	mark     bool // scratch of walks, false between them
}

const (
	infoPage  = 1 << 10
	maxRuns   = 1 << (32 - offsetBits) // a dictionary position is 32 bits
	infoBytes = 32
	posOffset = maxRun - 1 // the offset's bits of a position
)

// runs is the table of runs and alias rows by index. Index 0 is never given out.
type runs struct {
	infos []*[infoPage]runInfo
	next  uint32
	free  uint32 // the first free index, whose root is the next one; 0: none
	count uint32 // both
	rows  uint32
}

func (t *runs) at(idx uint32) *runInfo { return &t.infos[idx/infoPage][idx%infoPage] }

// lineOf returns the line of run idx, 0 when there is none: the index may be free
// or a row's by now.
func (t *runs) lineOf(idx uint32) uint32 {
	info := t.at(idx)
	if info.base != 0 {
		return 0
	}
	return info.line
}

// full reports whether fewer than n more runs and rows can be had.
func (t *runs) full(n int) bool { return int(t.count)+n >= maxRuns }

func (t *runs) take() uint32 {
	t.count++
	if idx := t.free; idx != 0 {
		t.free = t.at(idx).root
		return idx
	}
	t.next++
	if int(t.next/infoPage) >= len(t.infos) {
		t.infos = append(t.infos, new([infoPage]runInfo))
	}
	return t.next
}

func (t *runs) give(idx uint32) {
	*t.at(idx) = runInfo{root: t.free}
	t.free = idx
	t.count--
}

// bytes is the memory of the table itself.
func (t *runs) bytes() uint64 {
	return uint64(len(t.infos)) * infoPage * infoBytes
}

// place is one offset of a run: where a chain stands. Line 0: above all roots.
type place struct {
	line uint32
	off  uint16 // blocks of the run above and including where the chain stands
}

func (c *chainCore) shape(line uint32) uint64 { return *c.arena.w(line, runShape) }
func shapeLength(shape uint64) int            { return int(uint16(shape >> shapeLen)) }
func shapeCap(shape uint64) int               { return int(runCap[shape>>shapeClass]) }
func (c *chainCore) runLen(line uint32) int   { return shapeLength(c.shape(line)) }
func (c *chainCore) ext(line uint32) uint32   { return uint32(*c.arena.w(line, runExt)) }
func (c *chainCore) index(line uint32) uint32 { return uint32(*c.arena.w(line, runExt) >> 32) }

func (c *chainCore) setLen(line uint32, n int) {
	w := c.arena.w(line, runShape)
	storeWord(w, *w&^(0xffff<<shapeLen)|uint64(n)<<shapeLen)
}

func (c *chainCore) setExt(line, ext uint32) {
	w := c.arena.w(line, runExt)
	storeWord(w, *w&^0xffffffff|uint64(ext))
}

// markDup sets the dup flag.
func (c *chainCore) markDup(line uint32) {
	w := c.arena.w(line, runShape)
	storeWord(w, *w|flagDup)
}

// content is the content hashes in [lo, hi) of the run at line.
func (c *chainCore) content(line uint32, lo, hi int) []uint64 {
	return c.arena.words(line, runContent+lo, hi-lo)
}

// parent is the place the run at line hangs below; line 0 for a root.
func (c *chainCore) parent(line uint32) place {
	if c.shape(line)&flagRoot != 0 {
		return place{}
	}
	key := *c.arena.w(line, runKey)
	return place{line: uint32(key >> 16), off: uint16(key)}
}

// begin and end bracket a structural change of the run at line.
func (c *chainCore) begin(line uint32) {
	w := c.arena.w(line, runVersion)
	atomic.StoreUint64(w, *w|1)
}

func (c *chainCore) end(line uint32) {
	w := c.arena.w(line, runVersion)
	atomic.StoreUint64(w, (*w|1)+1)
}

// newRun makes a run for the first of contents and engines, as many as fit, below
// at (a root of ns when at has no line), without holders, and returns its line
// and how many it took. Its hashes are in the dictionary and it is published.
//
// The caller has reserved everything; see [chainCore.plan].
func (c *chainCore) newRun(ns uint64, at place, contents, engines []uint64) (line uint32, n int) {
	n = min(len(contents), maxRun)
	class, grown := c.newClass(at, 0, n)
	line = c.arena.take(int(class))
	idx := c.runs.take()
	info := c.runs.at(idx)
	*info = runInfo{line: line, root: line, class: class, grown: grown}

	key, flags := ns, uint64(flagRoot)
	if at.line != 0 {
		key, flags = childKey(at), 0
		up := c.runs.at(c.index(at.line))
		info.root = up.root
		up.children++
		up.maxChild = max(up.maxChild, at.off)
		w := c.arena.w(at.line, runShape)
		storeWord(w, *w|flagParent)
	}
	a := &c.arena
	shape := a.w(line, runShape)
	generation := uint64(uint32(*shape))
	c.begin(line)
	storeWord(shape, generation|uint64(n)<<shapeLen|flags|uint64(class)<<shapeClass)
	storeWord(a.w(line, runKey), key)
	storeWord(a.w(line, runExt), uint64(idx)<<32)
	storeWord(a.w(line, runGap), 0)
	for k := range inlineHolders {
		storeWord(a.w(line, runEntry0+k), 0)
	}
	copyWords(c.content(line, 0, n), contents)
	c.end(line)
	c.fill(idx, engines[:n])
	c.insertEdge(edgeTag(key, flags, contents[0]), line)
	return line, n
}

// growBlocks is the most blocks that follow a run's end as decoding does; a prompt
// that goes on brings more. Chosen.
const growBlocks = 4

// newClass is the class of a new run of n blocks that hangs at a place, once added
// blocks are added there, and whether the run above grows by it.
//
// A chain that is decoded block by block would be a run every few blocks. So a run
// that grows out of one that grew, too, has twice its room, which its parent's
// blocks, all there, pay for: only the first child at a full run's end gets it.
func (c *chainCore) newClass(at place, added, n int) (class uint8, grown bool) {
	class = runClass(n)
	if at.line == 0 || n > growBlocks || int(at.off) != c.runLen(at.line) {
		return class, false
	}
	up := c.runs.at(c.index(at.line))
	off, room := int(at.off)+added, int(runCap[up.class])
	if up.grown && off == room && int(up.maxChild) < off {
		class = max(class, runClassFor[(min(2*room, maxRun)+3)/4])
	}
	return class, true
}

// runClass is the class of a new run of n blocks: one block larger than needed,
// so that the first decoded block lands in place.
func runClass(n int) uint8 { return runClassFor[(min(n+1, maxRun)+3)/4] }

// appendable returns how many blocks can be added in place to the run at line. Who
// holds the run so far holds it as before: neither entries nor bits mean "all".
func (c *chainCore) appendable(line uint32) int {
	shape := c.shape(line)
	return shapeCap(shape) - shapeLength(shape)
}

// appendRun adds contents, as many as are appendable, to the run at line. Their
// engine hashes are for [chainCore.name].
func (c *chainCore) appendRun(line uint32, contents []uint64) {
	length := c.runLen(line)
	copyWords(c.content(line, length, length+len(contents)), contents)
	c.setLen(line, length+len(contents))
}

// freeRun takes away the run at line, which nobody holds and nothing hangs below.
// It returns the line of the run it hung below, 0 for a root.
func (c *chainCore) freeRun(line uint32) (parentLine uint32) {
	idx := c.index(line)
	info := c.runs.at(idx)
	shape := c.shape(line)
	key := *c.arena.w(line, runKey)
	up := c.parent(line)
	if info.next != 0 {
		panic("BUG: shard: rows in a run that nobody holds")
	}
	c.removeEdge(edgeTag(key, shape&flagRoot, *c.arena.w(line, runContent)), line)
	c.cut(idx, 0)
	c.blocksHeld -= uint64(info.held)
	if up.line != 0 {
		u := c.runs.at(c.index(up.line))
		if u.children--; u.children == 0 {
			u.maxChild = 0
			w := c.arena.w(up.line, runShape)
			storeWord(w, *w&^flagParent)
		}
	}
	c.begin(line)
	storeWord(c.arena.w(line, runShape), uint64(uint32(shape)+1)|uint64(info.class)<<shapeClass)
	c.arena.give(int(info.class), line)
	c.end(line)
	c.runs.give(idx)
	return up.line
}

// truncate shortens the run at line to n blocks, n >= 1; nobody holds the others
// and nothing hangs below them.
func (c *chainCore) truncate(line uint32, n int) {
	shape := c.shape(line)
	for row := c.index(line); row != 0; row = c.runs.at(row).next {
		c.cut(row, n)
	}
	c.begin(line)
	storeWord(c.arena.w(line, runShape), shape&^(0xffff<<shapeLen|0xffffffff)|uint64(n)<<shapeLen|uint64(uint32(shape)+1))
	c.end(line)
}
