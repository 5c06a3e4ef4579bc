// SPDX-License-Identifier: Apache-2.0

// Hop before: runs and holder blocks, which want lines.
// Hop after: numa, with address space.

package shard

import "kindex/numa"

// lineWords is the number of uint64 words in a line; lineBytes its size. A line
// is the machine's cache line; arenas begin at one.
const (
	lineWords = 8
	lineBytes = 64
)

// Arena sizes, in lines unless said otherwise.
const (
	defaultArenaBytes = 64 << 30
	maxLines          = 1<<32 - 1 // line numbers are uint32
	// arenaSlack is room past the bound for what cannot be refused: a removal may
	// need a bitmap or a wider table. A quarter of the bound and 64 MiB. Chosen.
	arenaSlackShift = 2
	arenaSlackLines = 1 << 20
	// arenaSpread is how many times as many addresses there are as memory. Chosen:
	// a mix of run lengths may change altogether that often.
	arenaSpread = 8
)

// Run classes: how many blocks a run has room for.
const (
	numRunClasses = 22
	maxRun        = 512 // a hole bitmap fits one line, an offset nine bits
	offsetBits    = 9
)

// runCap is the capacity, in blocks, of each run class.
var runCap = func() (c [numRunClasses]uint16) {
	copy(c[:], []uint16{4, 8, 12, 16, 24, 32, 48, 64})
	for i := 8; i < numRunClasses; i++ {
		c[i] = c[i-1] + 32
	}
	return c
}()

// runClassFor maps (blocks+3)/4 to the smallest class with room for blocks.
var runClassFor = func() (m [maxRun/4 + 1]uint8) {
	class := uint8(0)
	for i := range m {
		for int(runCap[class]) < i*4 {
			class++
		}
		m[i] = class
	}
	return m
}()

// Classes of pieces: runs, hole bitmaps of one line, alias rows for as many
// blocks as each run class has room for, and external holder blocks of
// numExtClasses sizes. A line stays in its class for ever, so that a reader with
// an old line number finds something of the kind it expects.
const (
	classHoles    = numRunClasses
	classRow      = classHoles + 1
	classExt      = classRow + numRunClasses
	numExtClasses = 29
	numPieces     = classExt + numExtClasses
)

// pieceLines is the size of each class in lines.
var pieceLines = func() (n [numPieces]uint32) {
	for i := range numRunClasses {
		n[i] = 1 + uint32(runCap[i])*2/lineWords
		n[classRow+i] = (uint32(runCap[i]) + lineWords - 1) / lineWords
	}
	n[classHoles] = 1
	for i := range numExtClasses { // 1 2 3 4 6 8 12 16 24 ... 16,384 24,576
		switch {
		case i < 2:
			n[classExt+i] = uint32(i) + 1
		case i%2 == 0:
			n[classExt+i] = 3 << (i/2 - 1)
		default:
			n[classExt+i] = 2 << (i / 2)
		}
	}
	return n
}()

// pieceLink is the word of a free piece that holds the next free one's line. It
// is a word whose garbage a reader survives: see the reclamation part of the
// essay on [chainCore].
func pieceLink(class int) int {
	switch {
	case class < numRunClasses:
		return runEntry0
	case class < classExt:
		return 0
	}
	return extCounts
}

// arena hands out pieces of an address space in lines, by class. Line 0 is never
// handed out: it means none. Where pieces lie is in arena_pages.go.
//
// Concurrency: the writer's, but for [arena.w] and [arena.words], which anybody
// may call for a line that reached them through the structure.
type arena struct {
	arenaMemory
	placement numa.Placement // of all that the index keeps outside the heap

	soft uint32 // stores are refused past it, in lines of memory
	over uint32 // lines of memory past it for what cannot be refused
	hard uint32 // the end of the address space
	pages

	touched uint64 // lines of pieces that were handed out and have memory
	free    uint64 // those of them whose pieces are in no use now
	// tight refuses whatever wants memory, as if none were left.
	tight bool
	// outside is memory outside the arena that counts against the bound, in lines:
	// the dictionary's. edgeLines is the edge table's.
	outside   uint64
	edgeLines uint64
}

// init reserves address space for bytes of memory, the default when 0.
//
// A class keeps its addresses for ever, but not its memory. So there are several
// times as many addresses as memory may be used at a time: what one class held
// another may hold later.
func (a *arena) init(bytes uint64) error {
	if bytes == 0 {
		bytes = defaultArenaBytes
	}
	lines := min(max(bytes/lineBytes, 64), maxLines)
	a.soft = uint32(lines)
	a.over = uint32(min(lines>>arenaSlackShift+arenaSlackLines, maxLines-lines))
	a.hard = uint32(min(lines*arenaSpread+uint64(a.over), maxLines) &^ (chunkLines - 1))
	return a.reserveArena()
}

// bound is the most lines of memory that pieces may ever take.
func (a *arena) bound() uint64 { return uint64(a.soft) + uint64(a.over) }

// room returns how many lines stores may still take.
func (a *arena) room() uint64 {
	counted := a.counted()
	if a.tight || counted >= uint64(a.soft) {
		return 0
	}
	return uint64(a.soft) - counted
}

// counted returns how many lines count against the bound.
func (a *arena) counted() uint64 { return a.touched + a.outside + a.edgeLines }

// slack reports whether there is room for what coverage of blocks already there
// may want: half of what lies past the bound for removals.
func (a *arena) slack() bool { return a.touched < uint64(a.soft)+uint64(a.over/2) }

// take returns the first line of a piece. Its words hold what they last held, or
// zeros; a run's version and generation are such as no run had at this line
// before. Whoever cannot be refused takes past the bound.
func (a *arena) take(class int) uint32 {
	k := &a.classes[class]
	k.live++
	if k.free > 0 {
		id := k.open.lowest()
		p := a.page(id)
		line := p.free
		p.free = uint32(*a.w(line, pieceLink(class)))
		if k.free--; p.free == 0 {
			k.open.del(id)
		}
		if p.live == 0 {
			k.idle.del(id)
			k.leastIdle = min(k.leastIdle, k.idle.n)
		}
		p.live++
		a.free -= uint64(pieceLines[class])
		return line
	}
	if k.fresh.n == 0 && !a.nextPage(class) {
		panic("FATAL: shard: no memory for what cannot be refused")
	}
	id := k.fresh.lowest()
	p := a.page(id)
	line := p.line + uint32(p.carved)*pieceLines[class]
	p.live++
	k.uncarved--
	if p.carved++; p.carved == p.pieces {
		k.fresh.del(id)
	}
	a.touched += uint64(pieceLines[class])
	if class < numRunClasses {
		storeWord(a.w(line, runVersion), p.version)
		storeWord(a.w(line, runShape), uint64(p.generation))
	}
	return line
}

// give takes a piece back. A run's version and generation are past all that a
// reader has seen with contents.
func (a *arena) give(class int, line uint32) {
	k := &a.classes[class]
	id := a.pageOf(line)
	p := a.page(id)
	if class < numRunClasses {
		p.version = max(p.version, (*a.w(line, runVersion)|1)+3)
		p.generation = max(p.generation, uint32(*a.w(line, runShape))+1)
	}
	storeWord(a.w(line, pieceLink(class)), uint64(p.free))
	if p.free == 0 {
		k.open.add(id)
	}
	p.free = line
	k.live--
	k.free++
	a.free += uint64(pieceLines[class])
	if p.live--; p.live == 0 {
		k.idle.add(id)
	}
	a.gives++
}

// bytes adds the arena's lines to b by purpose.
func (a *arena) bytes(b *[NumPurposes]uint64) {
	live := uint64(0)
	for class := range a.classes {
		purpose := PurposeHolders
		if class < numRunClasses || class >= classRow && class < classExt {
			purpose = PurposeRuns
		}
		lines := uint64(a.classes[class].live) * uint64(pieceLines[class])
		b[purpose] += lines * lineBytes
		live += lines
	}
	b[PurposeEdges] += a.edgeLines * lineBytes
	b[PurposeFree] += (a.resident() - live) * lineBytes
}
