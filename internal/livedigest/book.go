// SPDX-License-Identifier: Apache-2.0

// Before: a subscriber's decoded events. After: its comparison with the relay's
// digest.

package livedigest

import "kindex/internal/kv"

// Book keeps the digest of a content that is told by events, each complete in
// itself: no parent unknown, no namespace inherited. The zero value is an empty
// content.
//
// Concurrency: one goroutine. Cost: about 100 ns and 50 bytes a block.
type Book struct {
	blocks map[kv.EngineHash]block
	// more are the copies of a block in other places than its first ones.
	more map[kv.EngineHash][]copies
	sum  uint64
}

// block is an engine hash held: its position, and its first copies.
type block struct {
	position uint64
	copies
}

// copies are the copies of one block at one place.
type copies struct {
	place
	n uint32
}

type place struct {
	tier  kv.Tier
	group uint8
}

// Store is a run of blocks, each the child of the one before it. Without contents
// it adds one more copy of blocks that are known.
type Store struct {
	Tier      kv.Tier
	Group     uint8
	Parent    kv.EngineHash
	HasParent bool
	Seed      uint64
	Engines   []kv.EngineHash
	Contents  []kv.ContentHash
}

// Store applies st. A run below a parent that is not held, and copies of blocks
// that are not, are left out: it then returns false.
func (b *Book) Store(st *Store) bool {
	at := place{st.Tier, st.Group}
	if len(st.Contents) == 0 {
		whole := true
		for _, e := range st.Engines {
			if _, ok := b.blocks[e]; ok {
				b.add(e, at)
			} else {
				whole = false
			}
		}
		return whole
	}
	if len(st.Contents) != len(st.Engines) {
		return false
	}
	position := Root(st.Seed)
	if st.HasParent {
		parent, ok := b.blocks[st.Parent]
		if !ok {
			return false
		}
		position = parent.position
	}
	if b.blocks == nil {
		b.blocks, b.more = map[kv.EngineHash]block{}, map[kv.EngineHash][]copies{}
	}
	for i, e := range st.Engines {
		position = Child(position, st.Contents[i])
		bl, ok := b.blocks[e]
		switch {
		case ok && bl.position == position:
			b.add(e, at)
			continue
		case ok:
			b.forget(e, bl)
		}
		b.blocks[e] = block{position: position, copies: copies{at, 1}}
		b.count(e, position, at, 0, 1)
	}
	return true
}

// add adds a copy of e, which is held.
func (b *Book) add(e kv.EngineHash, at place) {
	bl := b.blocks[e]
	if bl.place == at {
		b.count(e, bl.position, at, bl.n, bl.n+1)
		bl.n++
		b.blocks[e] = bl
		return
	}
	list := b.more[e]
	for i := range list {
		if c := &list[i]; c.place == at {
			b.count(e, bl.position, at, c.n, c.n+1)
			c.n++
			return
		}
	}
	b.more[e] = append(list, copies{at, 1})
	b.count(e, bl.position, at, 0, 1)
}

// count moves the sum as the copies of e at one place change.
func (b *Book) count(e kv.EngineHash, position uint64, at place, was, is uint32) {
	if was > 0 {
		b.sum -= Copies(e, position, at.tier, at.group, was)
	}
	if is > 0 {
		b.sum += Copies(e, position, at.tier, at.group, is)
	}
}

// Remove takes one copy of each of engines out of one tier and group. It returns
// false when one was not there.
func (b *Book) Remove(tier kv.Tier, group uint8, engines []kv.EngineHash) bool {
	whole := true
	for _, e := range engines {
		if !b.remove(e, place{tier, group}) {
			whole = false
		}
	}
	return whole
}

func (b *Book) remove(e kv.EngineHash, at place) bool {
	bl, ok := b.blocks[e]
	if !ok {
		return false
	}
	list := b.more[e]
	if bl.place == at {
		b.count(e, bl.position, at, bl.n, bl.n-1)
		switch bl.n--; {
		case bl.n > 0:
			b.blocks[e] = bl
		case len(list) > 0: // others become the first
			bl.copies = list[len(list)-1]
			b.blocks[e] = bl
			b.trim(e, list, len(list)-1)
		default:
			delete(b.blocks, e)
		}
		return true
	}
	for i := range list {
		if c := &list[i]; c.place == at {
			b.count(e, bl.position, at, c.n, c.n-1)
			if c.n--; c.n == 0 {
				b.trim(e, list, i)
			}
			return true
		}
	}
	return false
}

// trim takes element i out of the list of e's further copies.
func (b *Book) trim(e kv.EngineHash, list []copies, i int) {
	list[i] = list[len(list)-1]
	if list = list[:len(list)-1]; len(list) == 0 {
		delete(b.more, e)
	} else {
		b.more[e] = list
	}
}

// forget ends e with all its copies.
func (b *Book) forget(e kv.EngineHash, bl block) {
	b.count(e, bl.position, bl.place, bl.n, 0)
	for _, c := range b.more[e] {
		b.count(e, bl.position, c.place, c.n, 0)
	}
	delete(b.more, e)
	delete(b.blocks, e)
}

// Clear makes the content empty.
func (b *Book) Clear() { *b = Book{} }

// Blocks returns how many engine hashes are held.
func (b *Book) Blocks() int { return len(b.blocks) }

// Sum returns the digest.
func (b *Book) Sum() uint64 { return b.sum }
