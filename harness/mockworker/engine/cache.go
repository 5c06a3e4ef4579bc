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
	told   map[digest]*entry // what was told of each block that is cached anywhere

	events  []kv.Event
	chained int            // where in the last event, a removal, the chain begins that may go on upwards
	upward  *kv.EngineHash // with this block; nil: with none

	windows    []windowGroup // beside the main group
	windowOnly bool          // there is no main group
	retain     int           // tokens between the tails that window groups keep; 0: only what the next turn needs; below 0: they keep all
	inFlight   int           // tokens that a pass computes at most
	quiet      bool          // nobody hears of it: nothing is told, and told stays empty

	lower   []*lowerTier // the nearest first
	copyOn  int          // when they get a block: onStore, onAsk, onSecondAsk, onLoss
	waiting []toCopy
	leaving map[digest]bool // blocks that are told as lost in a moment
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
	return &Cache{size: size, hash: hash, unique: unique, pool: newPool(n), told: make(map[digest]*entry), leaving: make(map[digest]bool)}
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

// name computes the names of s's first n blocks.
func (c *Cache) name(s *sequence, n int) {
	s.names = c.hash.extend(s.names, s.tokens, n, c.size, &s.of)
}

// held returns how many of the leading blocks are cached in the main group.
func (c *Cache) held(names []digest) int {
	if c.windowOnly {
		return len(names)
	}
	for i := range names {
		if _, ok := c.pool.find(names[i]); !ok {
			return i
		}
	}
	return len(names)
}

// usable returns how many of n leading cached blocks an engine uses for a prompt:
// its last token is always computed, and with it the block it lies in.
func (c *Cache) usable(n, tokens int) int {
	tokens--
	if c.hash.pairs {
		tokens-- // the pair that it begins
	}
	return min(n, max(tokens, 0)/c.size)
}

// hits returns how many leading blocks of a sequence that has none yet it would
// find cached and use: on the device, and after those on lower tiers.
func (c *Cache) hits(s *sequence) (onDevice, lower int) {
	c.name(s, c.hash.whole(len(s.tokens), c.size))
	return c.found(s.names[:c.usable(len(s.names), len(s.tokens))])
}

// found returns how many leading blocks of a chain a sequence can begin with.
func (c *Cache) found(names []digest) (onDevice, lower int) {
	onDevice = c.within(names, c.held(names))
	return onDevice, c.below(names, onDevice)
}

// price returns how many free blocks it takes for a sequence that has none yet to
// hold n tokens, of which it finds some on the device, hits, and with those on lower
// tiers found: the new ones, and those of the hits that nobody uses now. Capped it
// counts what a window group holds at once at most.
func (c *Cache) price(s *sequence, hits, found, n int, capped bool) int {
	p := c.windowPrice(s, hits, found, n, capped)
	if c.windowOnly {
		return p
	}
	p += c.span(n) - hits
	for _, d := range s.names[:hits] {
		if i, _ := c.pool.find(d); c.pool.blocks[i].refs == 0 {
			p++
		}
	}
	return p
}

// fits reports whether there is room for a sequence that has no blocks yet: for all
// of the tokens that it must be able to hold, and for those that it holds at once.
func (c *Cache) fits(s *sequence, hits, found, must, now int) bool {
	return c.price(s, hits, found, must, true) <= c.pool.free && (len(c.windows) == 0 || c.price(s, hits, found, now, false) <= c.pool.free)
}

// span returns how many blocks n tokens lie in.
func (c *Cache) span(n int) int { return (n + c.size - 1) / c.size }

// adopt gives a sequence that has none yet the blocks that it hits on the device, of
// all that it finds.
func (c *Cache) adopt(s *sequence, hits, found int) {
	c.adoptWindows(s, hits, found)
	if !c.windowOnly {
		for _, d := range s.names[:hits] {
			i, _ := c.pool.find(d)
			c.pool.use(i)
			s.blocks = append(s.blocks, i)
		}
	}
	s.named, s.computed = hits, hits*c.size
}

// room takes blocks until s can hold n tokens, and reports whether there are that
// many; if not nothing changes. Each name that is lost to it is told as a removal.
func (c *Cache) room(s *sequence, n int) bool {
	c.slide(s)
	need := 0
	if !c.windowOnly {
		need = c.span(n) - len(s.blocks)
	}
	for g := range s.windows {
		need += max(c.span(n)-len(s.windows[g].blocks), 0)
	}
	if need > c.pool.free {
		return false
	}
	for g := range s.windows {
		s.windows[g].blocks = c.grow(s.windows[g].blocks, n)
	}
	if !c.windowOnly {
		s.blocks = c.grow(s.blocks, n)
	}
	return true
}

// grow takes blocks until n tokens lie in them.
func (c *Cache) grow(blocks []int32, n int) []int32 {
	var gone []evicted
	for len(blocks)*c.size < n {
		i, key, group, was := c.pool.take()
		if was && !c.quiet {
			gone = append(gone, evicted{inGroup(key, group, c.main()), group})
			if c.copyOn != onLoss { // a name may be lost twice
				c.lost(gone)
				gone = gone[:0]
			}
		}
		blocks = append(blocks, i)
	}
	c.lost(gone)
	return blocks
}

// cover caches those of s's first n tokens' blocks that are whole, and tells the
// new ones in one store; where equal blocks are made one, in a store for each run
// between such.
func (c *Cache) cover(s *sequence, n int) {
	full := min(n/c.size, c.hash.whole(len(s.tokens), c.size))
	if c.hash.pairs {
		full = c.hash.whole(n, c.size) // the whole of the last pair is computed
	}
	c.name(s, full)
	c.coverWindows(s, full)
	if c.windowOnly {
		s.named = max(s.named, full)
		return
	}
	first := s.named
	for ; s.named < full; s.named++ {
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

// stored tells of s's blocks of the main group from first to past, if there are any.
func (c *Cache) stored(s *sequence, first, past int) {
	if first >= past || c.quiet {
		return
	}
	index := make([]int, past-first)
	for k := range index {
		index[k] = first + k
	}
	e := c.storing(s, c.main(), first, past, index)
	c.emit(&e)
	if c.copyOn == onStore {
		c.due(s, c.main(), index, &e)
	}
}

// again tells once more of the blocks that a sequence found on the device, as if it
// had stored them: who asks for that has its engine say what it knows.
func (c *Cache) again(s *sequence, hits int) {
	if hits == 0 || c.windowOnly || c.quiet {
		return
	}
	index := make([]int, hits)
	for k := range index {
		index[k] = k
	}
	e := c.storing(s, c.main(), 0, hits, index)
	c.emit(&e)
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
	for _, t := range c.lower {
		t.empty()
	}
	c.waiting = nil
	c.events = append(c.events, kv.Event{Kind: kv.KindCleared})
	return true
}

// main returns the number of the group that has every block, if there is one.
func (c *Cache) main() int { return len(c.windows) }

// forget drops what was told of a block that is nowhere any more.
func (c *Cache) forget(d digest) {
	if c.leaving[d] {
		return
	}
	for g := range c.main() + 1 {
		key := inGroup(d, g, c.main())
		if _, ok := c.pool.find(key); ok {
			return
		}
		for _, t := range c.lower {
			if t.copies[key] > 0 {
				return
			}
		}
	}
	delete(c.told, d)
}

// take returns the events since the last call.
func (c *Cache) take() []kv.Event {
	out := c.events
	c.events, c.upward = nil, nil
	return out
}

// used returns how many blocks running sequences hold, and how many there are.
func (c *Cache) used() (n, of int) { return len(c.pool.blocks) - c.pool.free, len(c.pool.blocks) }

// content returns every cached block, by engine hash, then by tier and group.
func (c *Cache) content() []Block {
	out := make([]Block, 0, len(c.told))
	for d, r := range c.told {
		b := Block{Engine: r.engine, Parent: r.parent, Content: r.content, Position: r.position, Tokens: r.tokens}
		for b.Group = range c.main() + 1 {
			key := inGroup(d, b.Group, c.main())
			if b.Tier, b.Copies = TierDevice, c.pool.copies(key); b.Copies > 0 {
				out = append(out, b)
			}
			for _, t := range c.lower {
				if b.Tier, b.Copies = t.tier, t.copies[key]; b.Copies > 0 {
					out = append(out, b)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b Block) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Group, b.Group))
	})
	return out
}
