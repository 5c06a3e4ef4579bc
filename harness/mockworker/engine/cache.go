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

	windows  []windowGroup // beside the main group
	retain   int           // tokens between the tails that window groups keep; 0: only what the next turn needs; below 0: they keep all
	inFlight int           // tokens that a pass computes at most
	host     *hostTier     // nil: none
	quiet    bool          // nobody hears of it: nothing is told, and told stays empty
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
	of     space

	names    []digest // of its whole blocks, as far as they were needed
	blocks   []int32  // physical, in order
	named    int      // blocks that the cache knows by name, from the first
	computed int      // tokens whose values are in the blocks

	windows []part // of the window groups
	prompt  int    // tokens of it; window groups alone care
	session string // told with what it stores
	shared  int    // tokens that others have in common and window groups had lost; 0: none
}

// name computes the names of s's whole blocks among its first n tokens.
func (c *Cache) name(s *sequence, n int) {
	s.names = c.hash.extend(s.names, s.tokens[:n], c.size, s.of)
}

// held returns how many of the leading blocks are cached.
func (c *Cache) held(names []digest) int {
	for i := range names {
		if _, ok := c.pool.find(names[i]); !ok {
			return i
		}
	}
	return len(names)
}

// usable returns how many of n leading cached blocks an engine uses for a prompt:
// its last token is always computed, and with it the block it lies in.
func (c *Cache) usable(held int, tokens int) int { return min(held, max(tokens-1, 0)/c.size) }

// hits returns how many leading blocks of a sequence that has none yet it would
// find cached and use: on the device, and after those on the host.
func (c *Cache) hits(s *sequence) (device, host int) {
	c.name(s, len(s.tokens))
	return c.found(s.names[:c.usable(len(s.names), len(s.tokens))])
}

// found returns how many leading blocks of a chain a sequence can begin with.
func (c *Cache) found(names []digest) (device, host int) {
	device = c.held(names)
	if len(c.windows) > 0 {
		return c.within(names, device), 0
	}
	if c.host != nil {
		host = c.host.held(names[device:])
	}
	return device, host
}

// price returns how many free blocks it takes for a sequence that has none yet to
// hold n tokens: the new ones, and those of the hits that nobody uses now. Capped it
// counts what a window group holds at once at most.
func (c *Cache) price(s *sequence, hits, n int, capped bool) int {
	p := c.span(n) - hits
	for _, d := range s.names[:hits] {
		if i, _ := c.pool.find(d); c.pool.blocks[i].refs == 0 {
			p++
		}
	}
	return p + c.windowPrice(s, hits, n, capped)
}

// fits reports whether there is room for a sequence that has no blocks yet: for all
// of the tokens that it must be able to hold, and for those that it holds at once.
func (c *Cache) fits(s *sequence, hits, must, now int) bool {
	return c.price(s, hits, must, true) <= c.pool.free && (len(c.windows) == 0 || c.price(s, hits, now, false) <= c.pool.free)
}

// span returns how many blocks n tokens lie in.
func (c *Cache) span(n int) int { return (n + c.size - 1) / c.size }

// adopt gives a sequence that has none yet the blocks that it hits.
func (c *Cache) adopt(s *sequence, hits int) {
	c.adoptWindows(s, hits)
	for _, d := range s.names[:hits] {
		i, _ := c.pool.find(d)
		c.pool.use(i)
		s.blocks = append(s.blocks, i)
	}
	s.named, s.computed = hits, hits*c.size
}

// room takes blocks until s can hold n tokens, and reports whether there are that
// many; if not nothing changes. Each name that is lost to it is told as a removal.
func (c *Cache) room(s *sequence, n int) bool {
	c.slide(s)
	need := c.span(n) - len(s.blocks)
	for g := range s.windows {
		need += max(c.span(n)-len(s.windows[g].blocks), 0)
	}
	if need > c.pool.free {
		return false
	}
	for g := range s.windows {
		s.windows[g].blocks = c.grow(s.windows[g].blocks, n)
	}
	s.blocks = c.grow(s.blocks, n)
	return true
}

// grow takes blocks until n tokens lie in them.
func (c *Cache) grow(blocks []int32, n int) []int32 {
	for len(blocks)*c.size < n {
		i, evicted, group, was := c.pool.take()
		if was {
			c.removed(evicted, group)
		}
		blocks = append(blocks, i)
	}
	return blocks
}

// cover caches those of s's first n tokens' blocks that are whole, and tells the
// new ones in one store; where equal blocks are made one, in a store for each run
// between such.
func (c *Cache) cover(s *sequence, n int) {
	c.name(s, n)
	c.coverWindows(s, n)
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
		c.pool.give(s.blocks[s.named], d, c.main())
	}
	c.stored(s, first, s.named)
}

// end gives a sequence's blocks back, its last first: so its tail is the first
// to lose its name.
func (c *Cache) end(s *sequence) {
	c.endWindows(s)
	slices.Reverse(s.blocks)
	c.pool.release(s.blocks...)
	s.blocks, s.named, s.computed = nil, 0, 0
}

// reset empties the cache, unless a sequence runs. The clear is told with the
// next pass.
func (c *Cache) reset() bool {
	if c.pool.free != len(c.pool.blocks) {
		return false
	}
	c.pool.forgetAll()
	clear(c.told)
	if c.host != nil {
		c.host = newHostTier(c.host.most)
	}
	c.events = append(c.events, kv.Event{Kind: kv.KindCleared})
	return true
}

// stored tells of s's blocks from first to past, if there are any.
func (c *Cache) stored(s *sequence, first, past int) {
	if first >= past || c.quiet {
		return
	}
	e := kv.Event{
		Kind: kv.KindStored, Form: c.hash.form(), BlockSize: c.size, Medium: "GPU",
		Tokens: append([]uint32(nil), s.tokens[first*c.size:past*c.size]...),
		Hashes: make([]kv.EngineHash, past-first),
	}
	seed := s.of.seed()
	place := Root(seed)
	var parent *kv.EngineHash
	if first > 0 {
		before := c.told[s.names[first-1]] // cached: s uses it
		e.Parent, e.HasParent = before.engine, true
		parent, place = &before.engine, before.position
	}
	for i := first; i < past; i++ {
		d := s.names[i]
		tokens := e.Tokens[(i-first)*c.size : (i-first+1)*c.size]
		r := c.told[d]
		if r == nil {
			content := kv.HashBlock(seed, tokens, nil)
			r = &entry{engine: c.hash.fold(d, s.of), parent: parent, content: content, position: place.Below(content), tokens: tokens}
			c.told[d] = r
		}
		e.Hashes[i-first] = r.engine
		parent, place = &r.engine, r.position
	}
	c.hash.annotate(&e, first == 0, s.of)
	e.Group, e.SessionID = c.main(), s.session
	c.hash.spell(&e, s.names[first:past], above(s.names, first))
	c.events = append(c.events, e)
	if c.host != nil {
		c.host.due(s.names[first:past], e)
	}
}

// above returns the name before the i-th; nil for the first.
func above(names []digest, i int) *digest {
	if i == 0 {
		return nil
	}
	return &names[i-1]
}

// main returns the number of the group that has every block.
func (c *Cache) main() int { return len(c.windows) }

// removed tells that one copy of a block of a group is gone.
func (c *Cache) removed(key digest, group int) {
	if c.quiet {
		return
	}
	d := inGroup(key, group, c.main())
	e := kv.Event{Kind: kv.KindRemoved, Form: c.hash.form(), Medium: "GPU", Hashes: []kv.EngineHash{c.told[d].engine}}
	c.hash.annotate(&e, false, space{})
	e.Group = group
	c.hash.spell(&e, []digest{d}, nil)
	c.events = append(c.events, e)
	c.forget(d)
}

// forget drops what was told of a block that is nowhere any more.
func (c *Cache) forget(d digest) {
	for g := range c.main() + 1 {
		if _, ok := c.pool.find(inGroup(d, g, c.main())); ok {
			return
		}
	}
	if c.host == nil || !c.host.has(d) {
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

// content returns every cached block, by engine hash, then by tier and group.
func (c *Cache) content() []Block {
	out := make([]Block, 0, len(c.told))
	for d, r := range c.told {
		b := Block{Engine: r.engine, Parent: r.parent, Content: r.content, Position: r.position, Tokens: r.tokens, Tier: TierDevice}
		for b.Group = range c.main() + 1 {
			if b.Copies = c.pool.copies(inGroup(d, b.Group, c.main())); b.Copies > 0 {
				out = append(out, b)
			}
		}
		if c.host != nil && c.host.has(d) {
			b.Tier, b.Group, b.Copies = TierHost, c.main(), 1
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b Block) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Group, b.Group))
	})
	return out
}
