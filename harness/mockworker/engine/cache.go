// SPDX-License-Identifier: Apache-2.0

// Before: rank.go. After: pool.go, and publisher.go for the events.

package engine

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
)

// Cache is one rank's prefix cache.
//
// Concurrency: one goroutine at a time.
type Cache struct {
	size   int // tokens in a block
	hash   *chain
	unique bool // SGLang: a block that is cached already gets no second copy
	pool   *pool
	told   map[digest]*entry // what was told of each cached block
	events []kv.Event
	wants  int // blocks that running sequences may yet take
}

// entry is what a cached block is, beyond its name.
type entry struct {
	engine   kv.EngineHash
	parent   *kv.EngineHash // nil: the block begins a chain
	content  kv.ContentHash
	position Position
	tokens   []uint32
}

// Position names a place in the tree of contents: the path of content hashes from
// a namespace's root to it, hashed.
type Position uint64

// Root returns the position above every chain of a namespace of this content seed.
func Root(seed uint64) Position { return Position(seed) }

// Below returns the position of a block below p.
func (p Position) Below(c kv.ContentHash) Position {
	return Position(xxh3.HashSeed(binary.LittleEndian.AppendUint64(nil, uint64(c)), uint64(p)))
}

// newCache returns an empty cache of n blocks of size tokens.
func newCache(n, size int, hash *chain, unique bool) *Cache {
	return &Cache{size: size, hash: hash, unique: unique, pool: newPool(n), told: make(map[digest]*entry)}
}

// sequence is a request's share of the cache.
type sequence struct {
	tokens []uint32 // prompt, then what was generated
	salt   string
	limit  int // tokens it may grow to

	names  []digest   // of its whole blocks, as far as they were computed
	places []Position // of the same
	blocks []int32    // physical, in order
	cached int        // blocks found cached when it was admitted
	named  int        // blocks named so far
	wants  int        // blocks it may yet take
}

// name computes the names of s's whole blocks among its first n tokens.
func (c *Cache) name(s *sequence, n int) {
	seed := kv.ContentSeed("", s.salt)
	for i := len(s.names); i < n/c.size; i++ {
		var above *digest
		place := Root(seed)
		if i > 0 {
			above, place = &s.names[i-1], s.places[i-1]
		}
		tokens := s.tokens[i*c.size : (i+1)*c.size]
		s.names = append(s.names, c.hash.next(above, tokens, s.salt))
		s.places = append(s.places, place.Below(kv.HashBlock(seed, tokens, nil)))
	}
}

// held returns how many leading blocks of a prompt are cached.
func (c *Cache) held(tokens []uint32, salt string) int {
	s := sequence{tokens: tokens, salt: salt}
	c.name(&s, len(tokens))
	for i := range s.names {
		if _, ok := c.pool.find(s.names[i]); !ok {
			return i
		}
	}
	return len(s.names)
}

// usable returns how many of n leading cached blocks an engine uses for a prompt:
// its last token is always computed, and with it the block it lies in.
func (c *Cache) usable(held int, tokens int) int { return min(held, max(tokens-1, 0)/c.size) }

// admit begins a sequence: what is cached of its prompt is used, blocks for the
// rest are taken, and its whole blocks are cached. It reports false, and changes
// nothing, unless all that the sequence may come to need is free.
func (c *Cache) admit(s *sequence) bool {
	c.name(s, len(s.tokens))
	hits := c.usable(c.held(s.tokens, s.salt), len(s.tokens))
	idle := 0 // hits that stand in the free queue
	for _, d := range s.names[:hits] {
		if i, _ := c.pool.find(d); c.pool.blocks[i].refs == 0 {
			idle++
		}
	}
	all := (s.limit + c.size - 1) / c.size
	if all-hits > c.pool.free-idle-c.wants {
		return false
	}
	for _, d := range s.names[:hits] {
		i, _ := c.pool.find(d)
		c.pool.use(i)
		s.blocks = append(s.blocks, i)
	}
	s.cached, s.named = hits, hits
	s.wants = all - hits
	c.wants += s.wants
	c.cover(s, len(s.tokens))
	return true
}

// cover takes blocks for s's first n tokens and caches those that are whole: one
// removal for each block that lost its name to them, then one store.
func (c *Cache) cover(s *sequence, n int) {
	for len(s.blocks)*c.size < n {
		i, evicted, was := c.pool.take()
		if was {
			c.removed(evicted)
		}
		s.blocks = append(s.blocks, i)
		s.wants--
		c.wants--
	}
	c.name(s, n)
	first := s.named
	for ; s.named < n/c.size; s.named++ {
		d := s.names[s.named]
		if i, ok := c.pool.find(d); ok && c.unique {
			c.pool.use(i) // in the place of the block just computed
			c.pool.release(s.blocks[s.named])
			s.blocks[s.named] = i
			c.stored(s, first, s.named)
			first = s.named + 1
			continue
		}
		c.pool.give(s.blocks[s.named], d)
	}
	c.stored(s, first, s.named)
}

// end gives a sequence's blocks back, its last first: so its tail is the first
// to lose its name.
func (c *Cache) end(s *sequence) {
	c.wants -= s.wants
	slices.Reverse(s.blocks)
	c.pool.release(s.blocks...)
	s.blocks, s.wants = nil, 0
}

// reset empties the cache, unless a sequence runs. The clear is told with the
// next pass.
func (c *Cache) reset() bool {
	if c.pool.free != len(c.pool.blocks) {
		return false
	}
	c.pool.forgetAll()
	clear(c.told)
	c.events = append(c.events, kv.Event{Kind: kv.KindCleared})
	return true
}

// stored tells of s's blocks from first to past, if there are any.
func (c *Cache) stored(s *sequence, first, past int) {
	if first >= past {
		return
	}
	e := kv.Event{
		Kind: kv.KindStored, Form: c.hash.form(), BlockSize: c.size, Medium: "GPU",
		Tokens: append([]uint32(nil), s.tokens[first*c.size:past*c.size]...),
	}
	var parent *kv.EngineHash
	if first > 0 {
		above := c.hash.fold(s.names[first-1])
		e.Parent, e.HasParent, parent = above, true, &above
	}
	seed := kv.ContentSeed("", s.salt)
	for i := first; i < past; i++ {
		d := s.names[i]
		r := &entry{engine: c.hash.fold(d), parent: parent, position: s.places[i], tokens: e.Tokens[(i-first)*c.size : (i-first+1)*c.size]}
		r.content = kv.HashBlock(seed, r.tokens, nil)
		if c.told[d] == nil {
			c.told[d] = r
		}
		e.Hashes = append(e.Hashes, r.engine)
		parent = &r.engine
	}
	c.hash.annotate(&e, first == 0, s.salt)
	c.events = append(c.events, e)
}

// removed tells that one copy of a block is gone.
func (c *Cache) removed(d digest) {
	e := kv.Event{Kind: kv.KindRemoved, Form: c.hash.form(), Medium: "GPU", Hashes: []kv.EngineHash{c.hash.fold(d)}}
	c.hash.annotate(&e, false, "")
	c.events = append(c.events, e)
	if _, ok := c.pool.find(d); !ok {
		delete(c.told, d)
	}
}

// take returns the events since the last call.
func (c *Cache) take() []kv.Event {
	out := c.events
	c.events = nil
	return out
}

// used returns how many blocks running sequences hold, and how many there are.
func (c *Cache) used() (n, of int) { return len(c.pool.blocks) - c.pool.free, len(c.pool.blocks) }

// content returns every cached block, by engine hash.
func (c *Cache) content() []Block {
	out := make([]Block, 0, len(c.told))
	for d, r := range c.told {
		out = append(out, Block{
			Engine: r.engine, Parent: r.parent, Content: r.content, Position: r.position, Tokens: r.tokens, Copies: len(c.pool.named[d]),
		})
	}
	slices.SortFunc(out, func(a, b Block) int { return cmp.Compare(a.Engine, b.Engine) })
	return out
}
