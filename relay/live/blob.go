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
	chunkRefs = blobChunk / blobUnit
	// maxChunks is what numbers reach, with room for a batch.
	maxChunks = 1<<32/chunkRefs - 1<<10
	// maxBlob bounds a block's tokens and extra keys, encoded.
	maxBlob = 60_000
	// smallCells is the size up to which cells are multiples of the unit; above,
	// each power of two has eight sizes.
	smallCells = 512
	numClasses = smallCells/blobUnit + 8*8
	// spareChunks is how many empty chunks are kept for the next class that needs
	// one. Chosen, not measured.
	spareChunks = 8
)

// blobs keep the tokens of blocks as the peer's wire has them: packed varints, and
// behind them extra keys with their tags. A chunk has cells of one size; an empty
// one serves another size, or is given back. A cell that is freed is kept as it is
// until the next batch, for the effects that name it, and until no cut sees it.
//
// Concurrency: the State's; a cut reads cells that were in use when it was made.
type blobs struct {
	chunks []*[blobChunk]byte // nil: given back
	pages  []page             // by chunk
	open   [numClasses]pageList
	empty  []uint32 // chunks of no class; the last kept of them have memory
	kept   int
	used   uint64 // bytes of the cells in use or waiting

	waiting []waiting // freed, in order
	head    int       // of waiting
	waits   uint64    // bytes of the cells that wait
}

// page is what a chunk is used for.
type page struct {
	class      int32
	live       int32 // cells in use or waiting
	next, prev int32 // pages with free cells of the class, by number+1; 0: none
	free       uint32
	fresh      int32 // first byte never used
}

// pageList is pages of one class that have free cells, by number+1. The first is
// filled before the next, so that those behind have time to become empty.
type pageList struct{ first, last int32 }

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
	if bs.open[class].first == 0 {
		bs.link(bs.newPage(class))
	}
	k := bs.open[class].first - 1
	p := &bs.pages[k]
	ref := p.free
	if ref != 0 {
		p.free = binary.LittleEndian.Uint32(bs.at(ref, 4))
	} else {
		ref = uint32(k)*chunkRefs + uint32(p.fresh/blobUnit)
		p.fresh += int32(cell)
	}
	p.live++
	if p.full(cell) {
		bs.unlink(k)
	}
	bs.used += uint64(cell)
	copy(bs.at(ref, len(b)), b)
	return ref
}

// full reports whether p, of cells so large, has none free.
func (p *page) full(cell int) bool { return p.free == 0 && int(p.fresh)+cell > blobChunk }

// newPage returns the number of an empty chunk, now of class.
func (bs *blobs) newPage(class int) int32 {
	var k uint32
	if n := len(bs.empty); n > 0 {
		k, bs.empty = bs.empty[n-1], bs.empty[:n-1]
		bs.kept = max(0, bs.kept-1)
	} else {
		k = uint32(len(bs.chunks))
		bs.chunks, bs.pages = append(bs.chunks, nil), append(bs.pages, page{})
	}
	if bs.chunks[k] == nil {
		bs.chunks[k] = new([blobChunk]byte)
	}
	bs.pages[k] = page{class: int32(class)}
	if k == 0 {
		bs.pages[k].fresh = blobUnit // number 0 is nobody's
	}
	return int32(k)
}

// link puts page k last among those of its class that have free cells.
func (bs *blobs) link(k int32) {
	p := &bs.pages[k]
	list := &bs.open[p.class]
	p.prev, p.next = list.last, 0
	if list.last != 0 {
		bs.pages[list.last-1].next = k + 1
	} else {
		list.first = k + 1
	}
	list.last = k + 1
}

func (bs *blobs) unlink(k int32) {
	p := &bs.pages[k]
	list := &bs.open[p.class]
	if p.prev != 0 {
		bs.pages[p.prev-1].next = p.next
	} else {
		list.first = p.next
	}
	if p.next != 0 {
		bs.pages[p.next-1].prev = p.prev
	} else {
		list.last = p.prev
	}
}

// release frees a cell that nobody reads.
func (bs *blobs) release(cell uint32, size int) {
	k := int32(cell / chunkRefs)
	p := &bs.pages[k]
	if p.full(size) {
		bs.link(k)
	}
	binary.LittleEndian.PutUint32(bs.at(cell, 4), p.free)
	p.free = cell
	if p.live--; p.live > 0 {
		return
	}
	bs.unlink(k)
	bs.empty = append(bs.empty, uint32(k))
	if bs.kept++; bs.kept > spareChunks {
		bs.chunks[bs.empty[len(bs.empty)-bs.kept]] = nil
		bs.kept--
	}
}

// at returns n bytes of the cell numbered ref.
func (bs *blobs) at(ref uint32, n int) []byte { return blobAt(bs.chunks, ref, n) }

func blobAt(chunks []*[blobChunk]byte, ref uint32, n int) []byte {
	off := int(ref%chunkRefs) * blobUnit
	return chunks[ref/chunkRefs][off : off+n : off+n]
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
		cell := cellSize(int(w.class))
		bs.release(w.cell, cell)
		bs.used -= uint64(cell)
		bs.waits -= uint64(cell)
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
	all = uint64(len(bs.chunks)-len(bs.empty)+bs.kept) * blobChunk
	free = all - bs.used
	return all + uint64(cap(bs.chunks))*(8+24), free, bs.waits + uint64(cap(bs.waiting))*16
}
