// SPDX-License-Identifier: Apache-2.0

// Before: store.go, remove.go (one batch's changes). After: cut.go (the content of
// one moment).

package live

// record is one block: held, or a ghost. It holds no Go pointer, so that the
// garbage collector passes it by.
//
// Size: 48 bytes.
type record struct {
	engine   uint64 // of a held block; 0 in a ghost
	position uint64 // livedigest.Child of the chain up to it: what tells a move from a copy
	content  uint64
	parent   uint32 // record of the block above; 0: none. In a free record, the next free one
	attr     uint32 // of the first copy; a ghost keeps its last
	blob     uint32 // where the tokens are; 0: nowhere
	size     uint32 // bytes of the blob, and flags
	children uint32 // records whose parent this is
	more     uint32 // node of the copies beyond the first; 0: none
}

// The flags in record.size. A free record has none.
const (
	sizeMask uint32 = 1<<24 - 1
	held     uint32 = 1 << 24
	ghost    uint32 = 1 << 25
	keyed    uint32 = 1 << 26 // the blob ends with extra keys
)

// node is copies of a block beyond its first, in one tier and group.
//
// Size: 12 bytes.
type node struct {
	attr  uint32
	count uint32 // 1 to maxCopies-1
	next  uint32 // of the same block; 0: none. In a free node, the next free one
}

// maxCopies bounds the copies of one block in one tier and group. Chosen: engines
// make a handful.
const maxCopies = 1<<16 - 1

const (
	slabBits = 10
	slabLen  = 1 << slabBits
)

// slab is numbered cells in chunks that cuts share with it: a chunk that an open
// cut reads is copied before its first change. Cell 0 is nobody's.
//
// Concurrency: the State's. A cut reads its own list of chunks.
type slab[T any] struct {
	chunks []*[slabLen]T
	made   []uint64 // by chunk: cuts made before it was
	next   uint32   // first cell never used
	free   uint32   // first of the free cells' list
	used   uint32
}

// at returns cell i for reading. It is stale after the next mut.
func (s *slab[T]) at(i uint32) *T { return &s.chunks[i>>slabBits][i&(slabLen-1)] }

// mut returns cell i for changing, which no cut sees.
func (s *slab[T]) mut(i uint32, c *cuts) *T {
	k := i >> slabBits
	if s.made[k] < c.newest.Load() {
		s.unshare(k, c)
	}
	return &s.chunks[k][i&(slabLen-1)]
}

func (s *slab[T]) unshare(k uint32, c *cuts) {
	chunk := *s.chunks[k]
	s.chunks[k], s.made[k] = &chunk, c.made
	c.pin(slabBytes[T]())
}

// fresh returns a cell never used before. Cells freed are the caller's to list.
func (s *slab[T]) fresh(c *cuts) uint32 {
	if s.next == 0 {
		s.next = 1
	}
	if int(s.next>>slabBits) == len(s.chunks) {
		s.chunks = append(s.chunks, new([slabLen]T))
		s.made = append(s.made, c.made)
	}
	i := s.next
	s.next++
	return i
}

// bytes returns what is allocated, and how much of it is free for use.
func (s *slab[T]) bytes() (all, free uint64) {
	all = uint64(len(s.chunks))*slabBytes[T]() + uint64(cap(s.chunks))*16
	return all, uint64(len(s.chunks)*slabLen-int(s.used)) * (slabBytes[T]() / slabLen)
}
