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
	// more are the copies in other places than the block's first, and second ones.
	more map[spot]uint32
	sum  uint64
}

// block is an engine hash held: its position, and where its first copies lie.
type block struct {
	position uint64
	place    place
	copies   uint32
}

type place struct {
	tier  kv.Tier
	group uint8
}

type spot struct {
	engine kv.EngineHash
	place
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
		b.blocks, b.more = map[kv.EngineHash]block{}, map[spot]uint32{}
	}
	for i, e := range st.Engines {
		position = Child(position, st.Contents[i])
		if old, ok := b.blocks[e]; ok && old.position != position {
			b.forget(e, old)
		}
		if _, ok := b.blocks[e]; !ok {
			b.blocks[e] = block{position: position, place: at}
		}
		b.add(e, at)
	}
	return true
}

// add adds a copy of e, which is held.
func (b *Book) add(e kv.EngineHash, at place) {
	bl := b.blocks[e]
	if bl.place == at {
		b.count(e, &bl, at, bl.copies, bl.copies+1)
		bl.copies++
		b.blocks[e] = bl
		return
	}
	n := b.more[spot{e, at}]
	b.count(e, &bl, at, n, n+1)
	b.more[spot{e, at}] = n + 1
}

// count moves the sum as the copies of e at one place change.
func (b *Book) count(e kv.EngineHash, bl *block, at place, was, is uint32) {
	if was > 0 {
		b.sum -= Copies(e, bl.position, at.tier, at.group, was)
	}
	if is > 0 {
		b.sum += Copies(e, bl.position, at.tier, at.group, is)
	}
}

// Remove takes one copy of each of engines out of one tier and group. It returns
// false when one was not there.
func (b *Book) Remove(tier kv.Tier, group uint8, engines []kv.EngineHash) bool {
	at, whole := place{tier, group}, true
	for _, e := range engines {
		bl, ok := b.blocks[e]
		n := b.more[spot{e, at}]
		switch {
		case ok && bl.place == at && bl.copies > 0:
			b.count(e, &bl, at, bl.copies, bl.copies-1)
			bl.copies--
			b.blocks[e] = bl
			if bl.copies == 0 {
				b.settle(e, bl)
			}
		case ok && n > 0:
			b.count(e, &bl, at, n, n-1)
			if n == 1 {
				delete(b.more, spot{e, at})
			} else {
				b.more[spot{e, at}] = n - 1
			}
		default:
			whole = false
		}
	}
	return whole
}

// settle makes other copies of e its first, or ends it: the first are gone.
func (b *Book) settle(e kv.EngineHash, bl block) {
	if len(b.more) > 0 {
		for _, at := range b.elsewhere(e) {
			bl.place, bl.copies = at, b.more[spot{e, at}]
			delete(b.more, spot{e, at})
			b.blocks[e] = bl
			return
		}
	}
	delete(b.blocks, e)
}

// forget ends e with all its copies.
func (b *Book) forget(e kv.EngineHash, bl block) {
	b.count(e, &bl, bl.place, bl.copies, 0)
	if len(b.more) > 0 {
		for _, at := range b.elsewhere(e) {
			b.count(e, &bl, at, b.more[spot{e, at}], 0)
			delete(b.more, spot{e, at})
		}
	}
	delete(b.blocks, e)
}

// elsewhere returns where copies of e lie besides its first.
func (b *Book) elsewhere(e kv.EngineHash) (at []place) {
	for tier := range kv.Tier(kv.LocalTiers) {
		for group := range 256 {
			p := place{tier, uint8(group)}
			if _, ok := b.more[spot{e, p}]; ok {
				at = append(at, p)
			}
		}
	}
	return at
}

// Clear makes the content empty.
func (b *Book) Clear() { *b = Book{} }

// Blocks returns how many engine hashes are held.
func (b *Book) Blocks() int { return len(b.blocks) }

// Sum returns the digest.
func (b *Book) Sum() uint64 { return b.sum }
