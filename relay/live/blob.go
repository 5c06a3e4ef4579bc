// SPDX-License-Identifier: Apache-2.0

// Before: store.go (tokens of new blocks). After: the peer's encoder, which copies
// them as they are.

package live

import (
	"encoding/binary"
	"math/bits"
)

const (
	blobChunk = 64 << 10 // bytes
	blobUnit  = 8        // bytes: what a blob's number counts
	// maxBlob bounds a block's tokens and extra keys, encoded.
	maxBlob = 60_000
	// smallCells is the size up to which cells are multiples of the unit; above,
	// each power of two has eight sizes.
	smallCells = 512
	numClasses = smallCells/blobUnit + 8*8
)

// blobs keep the tokens of blocks as the peer's wire has them: packed varints, and
// behind them extra keys with their tags. A cell that is freed is kept as it is
// until the next batch, for the effects that name it, and until no cut sees it;
// then it serves the next blob of its size.
//
// Concurrency: the State's; a cut reads cells that were in use when it was made.
type blobs struct {
	chunks []*[blobChunk]byte
	next   int                // first byte of the last chunk never used
	free   [numClasses]uint32 // by class, first of a list through the cells
	used   uint64             // bytes of the cells in use or waiting

	waiting []waiting // freed, in order
	head    int       // of waiting
	waits   uint64    // bytes of the cells that wait
}

// waiting is a freed cell.
type waiting struct {
	cell  uint32
	class uint32
	cuts  uint64 // made before it was freed
}

// classOf returns the class of a blob of n bytes, at least 1, and its cells' size.
func classOf(n int) (class, cell int) {
	if n <= smallCells {
		class = (n+blobUnit-1)/blobUnit - 1
		return class, (class + 1) * blobUnit
	}
	octave := bits.Len(uint(n-1)) - 1 // 9 and up
	step := 1 << (octave - 3)
	k := (n - 1 - 1<<octave) / step
	return smallCells/blobUnit + (octave-9)*8 + k, 1<<octave + (k+1)*step
}

// put keeps b and returns its number.
func (bs *blobs) put(b []byte) uint32 {
	class, cell := classOf(len(b))
	ref := bs.free[class]
	if ref != 0 {
		bs.free[class] = binary.LittleEndian.Uint32(bs.at(ref, 4))
	} else {
		ref = bs.fresh(cell)
	}
	bs.used += uint64(cell)
	copy(bs.at(ref, len(b)), b)
	return ref
}

func (bs *blobs) fresh(cell int) uint32 {
	if len(bs.chunks) == 0 || bs.next+cell > blobChunk {
		bs.chunks = append(bs.chunks, new([blobChunk]byte))
		bs.next = 0
		if len(bs.chunks) == 1 {
			bs.next = blobUnit // number 0 is nobody's
		}
	}
	at := bs.next
	bs.next += cell
	return uint32((len(bs.chunks)-1)*(blobChunk/blobUnit) + at/blobUnit)
}

// at returns n bytes of the cell numbered ref.
func (bs *blobs) at(ref uint32, n int) []byte { return blobAt(bs.chunks, ref, n) }

func blobAt(chunks []*[blobChunk]byte, ref uint32, n int) []byte {
	off := int(ref%(blobChunk/blobUnit)) * blobUnit
	return chunks[ref/(blobChunk/blobUnit)][off : off+n : off+n]
}

// drop frees the cell of a blob of n bytes.
func (bs *blobs) drop(ref uint32, n int, c *cuts) {
	class, cell := classOf(n)
	bs.waits += uint64(cell)
	bs.waiting = append(bs.waiting, waiting{cell: ref, class: uint32(class), cuts: c.made})
}

// settle makes freed cells that nobody reads any more ready for use.
func (bs *blobs) settle(c *cuts) {
	oldest := c.oldest.Load()
	for bs.head < len(bs.waiting) {
		w := &bs.waiting[bs.head]
		if oldest <= w.cuts {
			break
		}
		binary.LittleEndian.PutUint32(bs.at(w.cell, 4), bs.free[w.class])
		bs.free[w.class] = w.cell
		cell := uint64(cellSize(int(w.class)))
		bs.used -= cell
		bs.waits -= cell
		bs.head++
	}
	switch {
	case bs.head == len(bs.waiting):
		bs.waiting, bs.head = bs.waiting[:0], 0
		if cap(bs.waiting) > 1<<14 {
			bs.waiting = nil
		}
	case bs.head > len(bs.waiting)/2:
		bs.waiting = bs.waiting[:copy(bs.waiting, bs.waiting[bs.head:])]
		bs.head = 0
	}
}

// cellSize returns the bytes of a cell of class.
func cellSize(class int) int {
	if class < smallCells/blobUnit {
		return (class + 1) * blobUnit
	}
	k := class - smallCells/blobUnit
	octave := 9 + k/8
	return 1<<octave + (k%8+1)<<(octave-3)
}

// bytes returns what is allocated, how much of it is free for use, and how much is
// kept for cuts.
func (bs *blobs) bytes() (all, free, kept uint64) {
	all = uint64(len(bs.chunks))*blobChunk + uint64(cap(bs.chunks))*8
	return all, uint64(len(bs.chunks))*blobChunk - bs.used, bs.waits + uint64(cap(bs.waiting))*16
}
