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

// span is lines that were never handed out.
type span struct{ line, n uint32 }

// arena hands out pieces of an address space in lines, by class. Line 0 is never
// handed out: it means none.
//
// Concurrency: the writer's, but for [arena.w] and [arena.words], which anybody
// may call for a line that reached them through the structure.
type arena struct {
	arenaMemory
	placement numa.Placement // of all that the index keeps outside the heap

	next  uint32 // first line never handed out
	soft  uint32 // stores are refused past it
	hard  uint32 // the end of the address space
	free  [numPieces]uint32
	nfree [numPieces]uint32
	live  [numPieces]uint32
	spare []span // a few at a time: what growth left out

	spareLines uint64
	// outside is memory outside the arena that counts against the bound, in lines:
	// the dictionary's. edgeLines is the edge table's.
	outside   uint64
	edgeLines uint64
}

// init reserves address space for bytes, the default when 0.
func (a *arena) init(bytes uint64) error {
	if bytes == 0 {
		bytes = defaultArenaBytes
	}
	lines := min(max(bytes/lineBytes, 64), maxLines)
	a.soft = uint32(lines)
	a.hard = uint32(min(lines+lines>>arenaSlackShift+arenaSlackLines, maxLines))
	a.next = 1
	return a.reserveArena()
}

// room returns how many lines stores may still take.
func (a *arena) room() uint64 {
	taken := uint64(a.next) + a.outside + a.edgeLines
	if taken >= uint64(a.soft) {
		return 0
	}
	return uint64(a.soft) - taken
}

// slack reports whether there is room for what coverage of blocks already there
// may want: half of what lies past the bound for removals.
func (a *arena) slack() bool { return a.next < a.soft+(a.hard-a.soft)/2 }

// take returns the first line of a piece. Its words hold what they last held.
// Whoever cannot be refused takes past the bound.
func (a *arena) take(class int) uint32 {
	a.live[class]++
	if line := a.free[class]; line != 0 {
		a.free[class] = uint32(*a.w(line, pieceLink(class)))
		a.nfree[class]--
		return line
	}
	return a.lines(pieceLines[class])
}

// give takes a piece back.
func (a *arena) give(class int, line uint32) {
	a.live[class]--
	storeWord(a.w(line, pieceLink(class)), uint64(a.free[class]))
	a.free[class] = line
	a.nfree[class]++
}

// lines returns n zeroed lines in a row.
func (a *arena) lines(n uint32) uint32 {
	for i := range a.spare {
		s := &a.spare[i]
		if s.n < n {
			continue
		}
		line := s.line
		s.line += n
		s.n -= n
		a.spareLines -= uint64(n)
		if s.n == 0 {
			a.spare[i] = a.spare[len(a.spare)-1]
			a.spare = a.spare[:len(a.spare)-1]
		}
		return line
	}
	line := a.grow(a.next, n)
	if line > a.next {
		a.addSpare(a.next, line-a.next)
	}
	a.next = line + n
	return line
}

// addSpare notes lines that growth left out.
func (a *arena) addSpare(line, n uint32) {
	a.spare = append(a.spare, span{line, n})
	a.spareLines += uint64(n)
}

// bytes adds the arena's lines to b by purpose.
func (a *arena) bytes(b *[NumPurposes]uint64) {
	for class := range a.live {
		purpose := PurposeHolders
		if class < numRunClasses || class >= classRow && class < classExt {
			purpose = PurposeRuns
		}
		size := uint64(pieceLines[class]) * lineBytes
		b[purpose] += uint64(a.live[class]) * size
		b[PurposeFree] += uint64(a.nfree[class]) * size
	}
	b[PurposeEdges] += a.edgeLines * lineBytes
	// What is usable and was never touched takes no memory and is not counted.
	b[PurposeFree] += a.spareLines*lineBytes + lineBytes
}
