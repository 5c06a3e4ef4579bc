// SPDX-License-Identifier: Apache-2.0

// Before: a publisher's cache, or a subscriber's decoded events. After: one sum, to
// compare.

package publish

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
)

// Content is what one rank holds, by the index's rules, as a sum that equal contents
// share whatever their history. It is small and slow on purpose: a second opinion
// beside every index and relay here, and beside shard.Reference, which its test holds it
// against.
//
// Concurrency: one goroutine. Cost: a map entry a block, one hash a change.
type Content struct {
	blocks  map[kv.EngineHash]*heldBlock
	room    []*orphan // in order of arrival; no bound
	copies  int       // (block, tier, group) that are held
	sum     uint64
	unknown uint64 // removals and placeholders of what is not there
}

// Event is one step of a rank's content.
type Event struct {
	Kind      kv.Kind
	Tier      kv.Tier
	Group     uint8
	Seed      uint64 // of a store without parent
	Parent    kv.EngineHash
	HasParent bool
	Engines   []kv.EngineHash
	Contents  []kv.ContentHash // of a store; empty: copies of blocks told before
}

type heldBlock struct {
	position uint64 // hash of the path to it
	copies   []heldCopy
}

type heldCopy struct {
	tier  kv.Tier
	group uint8
	count uint32
}

type orphan struct {
	waits kv.EngineHash
	event Event
	out   []bool // blocks taken out by a removal
}

// Apply applies one event. It keeps nothing of e's slices but those of an orphan, which
// it copies.
func (c *Content) Apply(e *Event) {
	switch e.Kind {
	case kv.KindStored:
		c.stored(e)
	case kv.KindRemoved:
		for _, h := range e.Engines {
			c.remove(h, e.Tier, e.Group)
		}
	case kv.KindCleared:
		c.Clear()
	}
}

// Clear takes everything away.
func (c *Content) Clear() {
	clear(c.blocks)
	c.room, c.copies, c.sum = nil, 0, 0
}

// Sum returns the number that equal contents share, 0 where nothing is held.
func (c *Content) Sum() uint64 { return c.sum }

// Copies returns how many copies are held, those of one place counted as one.
func (c *Content) Copies() int { return c.copies }

// Unknown counts removals, and copies, of blocks that were not there.
func (c *Content) Unknown() uint64 { return c.unknown }

func (c *Content) stored(e *Event) {
	if len(e.Contents) == 0 {
		for _, h := range e.Engines {
			if b := c.blocks[h]; b != nil {
				c.add(h, b, e.Tier, e.Group, 1)
			} else {
				c.unknown++
			}
		}
		return
	}
	at, ok := e.Seed, true
	if e.HasParent {
		var b *heldBlock
		if b, ok = c.blocks[e.Parent]; ok {
			at = b.position
		}
	}
	if !ok {
		o := &orphan{waits: e.Parent, event: *e, out: make([]bool, len(e.Engines))}
		o.event.Engines, o.event.Contents = slices.Clone(e.Engines), slices.Clone(e.Contents)
		c.room = append(c.room, o)
		return
	}
	c.settle(c.store(e, at, nil))
}

// store stores e's blocks, but those taken out, below the position at, and returns the
// names of those stored.
func (c *Content) store(e *Event, at uint64, out []bool) []kv.EngineHash {
	if c.blocks == nil {
		c.blocks = map[kv.EngineHash]*heldBlock{}
	}
	var done []kv.EngineHash
	for i, h := range e.Engines {
		at = below(at, e.Contents[i])
		if out != nil && out[i] {
			continue
		}
		b := c.blocks[h]
		if b != nil && b.position != at { // the latest store wins
			for _, held := range b.copies {
				c.sum -= item(h, b.position, held)
				c.copies--
			}
			b = nil
		}
		if b == nil {
			b = &heldBlock{position: at}
			c.blocks[h] = b
		}
		c.add(h, b, e.Tier, e.Group, 1)
		done = append(done, h)
	}
	return done
}

// settle applies the orphans that waited for what was stored, then theirs.
func (c *Content) settle(stored []kv.EngineHash) {
	for len(stored) > 0 && len(c.room) > 0 {
		h := stored[0]
		stored = stored[1:]
		var now []*orphan
		c.room = slices.DeleteFunc(c.room, func(o *orphan) bool {
			if o.waits == h {
				now = append(now, o)
				return true
			}
			return false
		})
		for _, o := range now {
			stored = append(stored, c.store(&o.event, c.blocks[h].position, o.out)...)
		}
	}
}

// add adds n copies (takes away where n is below 0).
func (c *Content) add(h kv.EngineHash, b *heldBlock, tier kv.Tier, group uint8, n int) {
	i := slices.IndexFunc(b.copies, func(x heldCopy) bool { return x.tier == tier && x.group == group })
	if i < 0 {
		b.copies = append(b.copies, heldCopy{tier, group, 0})
		i = len(b.copies) - 1
		c.copies++
	} else {
		c.sum -= item(h, b.position, b.copies[i])
	}
	b.copies[i].count += uint32(n)
	if b.copies[i].count > 0 {
		c.sum += item(h, b.position, b.copies[i])
		return
	}
	b.copies = slices.Delete(b.copies, i, i+1)
	c.copies--
	if len(b.copies) == 0 {
		delete(c.blocks, h)
	}
}

// remove takes one copy of h: of a block that waits, else of one that is held.
func (c *Content) remove(h kv.EngineHash, tier kv.Tier, group uint8) {
	for n, o := range c.room {
		if o.event.Tier != tier || o.event.Group != group {
			continue
		}
		for i, e := range o.event.Engines {
			if e != h || o.out[i] {
				continue
			}
			o.out[i] = true
			if !slices.Contains(o.out, false) {
				c.room = slices.Delete(c.room, n, n+1)
			}
			return
		}
	}
	b := c.blocks[h]
	if b == nil || !slices.ContainsFunc(b.copies, func(x heldCopy) bool { return x.tier == tier && x.group == group }) {
		c.unknown++
		return
	}
	c.add(h, b, tier, group, -1)
}

// below returns the hash of the path to a child.
func below(at uint64, content kv.ContentHash) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[0:], at)
	binary.LittleEndian.PutUint64(b[8:], uint64(content))
	return xxh3.Hash(b[:])
}

// item is what one held place adds to the sum.
func item(h kv.EngineHash, position uint64, held heldCopy) uint64 {
	var b [22]byte
	binary.LittleEndian.PutUint64(b[0:], uint64(h))
	binary.LittleEndian.PutUint64(b[8:], position)
	b[16], b[17] = byte(held.tier), held.group
	binary.LittleEndian.PutUint32(b[18:], held.count)
	return xxh3.Hash(b[:])
}
