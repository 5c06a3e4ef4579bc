// SPDX-License-Identifier: Apache-2.0

// Hop before: coverage of a run with more than three holders.
// Hop after: the arena; lookups read what is written here.

package shard

import "math/bits"

// An external holder block replaces a run's inline entries from the fourth
// holder on:
//
//	word 0   geometry: bitset words 16 | class 8 | table entries 24 | prefix 16
//	word 1   holders by bit 32 | holders by entry 32
//	word 2   moves 32 | table words in use 32
//	then     the bitset: who holds just the first prefix blocks, by slot
//	then     the table: open addressing by slot, of holder entries
//
// A slot is by bit when its bit is set, whatever entry it may have; else by its
// entry. The prefix is the one that most holders had when the block was made: the
// whole run, or what is common to all chains that leave it in its middle. The
// bitset is there only when it is smaller than entries would be, and then takes in
// slots up to the largest of those holders; larger slots have entries. So a run of
// a few holders among 40,000 slots costs 12 bytes for each of them, and one that
// thousands hold costs bits.
//
// A slot that goes from entry to bit keeps its entry (a shadow), and its bit is
// set before the entry changes; from bit to entry, the entry is written first.
// So a reader that looks at the bit and then at the entry never misses a slot
// that holds something throughout. moves counts changes after which one that
// lists all holders may have seen a slot twice. Entries never move within a
// block; one that holds nothing may be taken over by another slot.
const (
	extGeometry = 0
	extCounts   = 1
	extMoves    = 2
	extBits     = 3
)

// extShape is the geometry of a block.
type extShape struct {
	width  int // words of the bitset
	table  int // entries
	class  int // piece class
	prefix int // blocks that those in the bitset hold
}

func extShapeOf(w uint64) extShape {
	return extShape{width: int(uint16(w)), class: int(uint8(w >> 16)), table: int(w >> 24 & (1<<24 - 1)), prefix: int(w >> 48)}
}

func (g extShape) word() uint64 {
	return uint64(g.width) | uint64(g.class)<<16 | uint64(g.table)<<24 | uint64(g.prefix)<<48
}

// bit reports whether a holder of h may be in the bitset.
func (g extShape) bit(h holding) bool { return h.holes == 0 && h.prefix == g.prefix }

func (c *chainCore) extShape(ext uint32) extShape { return extShapeOf(*c.arena.w(ext, extGeometry)) }

// extHome is the first entry to look in for s, of table entries.
func extHome(s slot, table int) int {
	return int(uint64(uint32(s)*2654435761) * uint64(table) >> 32)
}

// extLimit is how many words of a table may be in use.
func extLimit(table int) int {
	if table <= lineWords {
		return table
	}
	return table * 3 / 4
}

// extCount returns how many slots hold something, by bit and by entry.
func (c *chainCore) extCount(ext uint32) (byBit, entries int) {
	w := *c.arena.w(ext, extCounts)
	return int(uint32(w)), int(w >> 32)
}

func (c *chainCore) addExtCount(ext uint32, byBit, entries int) {
	w := c.arena.w(ext, extCounts)
	storeWord(w, *w+uint64(byBit)+uint64(entries)<<32)
}

func (c *chainCore) addExtMoves(ext uint32, used int) {
	w := c.arena.w(ext, extMoves)
	storeWord(w, *w&^0xffffffff|uint64(uint32(*w)+1)+uint64(used)<<32)
}

// extFind returns s's entry, nil when it has none, and the first word that may
// take one, nil when there is none.
func (c *chainCore) extFind(ext uint32, g extShape, s slot) (own, free *uint64) {
	i := extHome(s, g.table)
	for range g.table {
		w := c.arena.w(ext, extBits+g.width+i)
		if *w == 0 {
			if free == nil {
				if used := int(*c.arena.w(ext, extMoves) >> 32); used < extLimit(g.table) {
					free = w
				}
			}
			return nil, free
		}
		if entrySlot(*w) == s {
			return w, nil
		}
		if free == nil && *w>>entryPrefix == 0 {
			free = w
		}
		if i++; i == g.table {
			i = 0
		}
	}
	return nil, free
}

// extHolding returns what s holds of a run by its block ext.
func (c *chainCore) extHolding(ext uint32, s slot) holding {
	g := c.extShape(ext)
	if int(s) < g.width*64 && *c.arena.w(ext, extBits+int(s)/64)>>(s%64)&1 != 0 {
		return holding{prefix: g.prefix}
	}
	if own, _ := c.extFind(ext, g, s); own != nil {
		return entryHolding(*own)
	}
	return holding{}
}

// setExtHolding publishes what s holds of the run at line by its block ext.
func (c *chainCore) setExtHolding(line, ext uint32, s slot, h holding) {
	g := c.extShape(ext)
	toBit := g.bit(h)
	own, free := c.extFind(ext, g, s)
	value := makeEntry(s, h.prefix, h.holes)
	if int(s) < g.width*64 {
		word := c.arena.w(ext, extBits+int(s)/64)
		bit := uint64(1) << (s % 64)
		byBit := *word&bit != 0
		switch {
		case byBit && toBit:
			return
		case toBit:
			storeWord(word, *word|bit)
			c.addExtCount(ext, 1, 0)
			if own != nil {
				if *own>>entryPrefix != 0 {
					c.addExtCount(ext, 0, -1)
				}
				storeWord(own, value)
			}
			c.addExtMoves(ext, 0)
			return
		case byBit:
			if own == nil && !h.empty() && free == nil {
				c.rebuildExt(line, s, h)
				return
			}
			used := 0
			if own == nil && !h.empty() {
				if *free == 0 {
					used = 1
				}
				own = free
			}
			if own != nil {
				storeWord(own, value)
			}
			if !h.empty() {
				c.addExtCount(ext, 0, 1)
			}
			storeWord(word, *word&^bit)
			c.addExtCount(ext, -1, 0)
			c.addExtMoves(ext, used)
			return
		}
	}
	if own == nil {
		if h.empty() {
			return
		}
		if free == nil {
			c.rebuildExt(line, s, h)
			return
		}
		used := 0
		if *free == 0 {
			used = 1
		}
		storeWord(free, value)
		c.addExtCount(ext, 0, 1)
		c.addExtMoves(ext, used)
		return
	}
	was, is := *own>>entryPrefix != 0, !h.empty()
	storeWord(own, value)
	if was != is {
		if is {
			c.addExtCount(ext, 0, 1)
		} else {
			c.addExtCount(ext, 0, -1)
		}
	}
}

// eachHolder calls fn for each slot that holds something of the run at line.
func (c *chainCore) eachHolder(line uint32, fn func(s slot, h holding)) {
	ext := c.ext(line)
	if ext == 0 {
		for k := range inlineHolders {
			if e := *c.arena.w(line, runEntry0+k); e != 0 {
				fn(entrySlot(e), entryHolding(e))
			}
		}
		return
	}
	g := c.extShape(ext)
	for w := range g.width {
		for m := *c.arena.w(ext, extBits+w); m != 0; m &= m - 1 {
			fn(slot(w*64+bits.TrailingZeros64(m)), holding{prefix: g.prefix})
		}
	}
	for i := range g.table {
		e := *c.arena.w(ext, extBits+g.width+i)
		if e>>entryPrefix == 0 {
			continue
		}
		s := entrySlot(e)
		if int(s) < g.width*64 && *c.arena.w(ext, extBits+int(s)/64)>>(s%64)&1 != 0 {
			continue // a shadow
		}
		fn(s, entryHolding(e))
	}
}

// holders returns how many slots hold something of the run at line.
func (c *chainCore) holders(line uint32) int {
	if ext := c.ext(line); ext != 0 {
		byBit, entries := c.extCount(ext)
		return byBit + entries
	}
	n := 0
	for k := range inlineHolders {
		if *c.arena.w(line, runEntry0+k) != 0 {
			n++
		}
	}
	return n
}

// extTableFor returns the entries that a table of n wants. Any larger table has
// room for them, too: the smallest with a limit takes six.
func extTableFor(n int) int {
	if n <= extLimit(lineWords+1) {
		return n + 1
	}
	return n*4/3 + 2
}

// chooseExt returns the smallest geometry for byBit holders that a bitset would take
// in, of which the largest is last, and others, with at least table entries in its
// table. A bitset takes in further slots up to top, the largest ever open, as far
// as that doubles it.
func chooseExt(byBit, others int, last, top slot, table int) extShape {
	only := max(extTableFor(byBit+others), table)
	width := int(last)/64 + 1
	with := max(extTableFor(others), table)
	if byBit == 0 || only < width+with {
		width, with = 0, only
	} else {
		width = max(width, min(2*width, int(top)/64+1, only-with))
	}
	words := extBits + width + with
	class := classExt
	for int(pieceLines[class])*lineWords < words {
		class++
	}
	return extShape{width: width, table: int(pieceLines[class])*lineWords - extBits - width, class: class}
}

// rebuildExt gives the run at line a new external block, in which s holds h. Where
// mostly shadows and dead entries were in the way, the table grows all the same,
// up to an entry for each holder, so that slots going to and fro rebuild ever less
// often.
func (c *chainCore) rebuildExt(line uint32, s slot, h holding) {
	each := func(fn func(slot, holding)) {
		c.eachHolder(line, func(o slot, oh holding) {
			if o != s {
				fn(o, oh)
			}
		})
		if !h.empty() {
			fn(s, h)
		}
	}
	var having [maxRun + 1]uint16 // holders without holes by their prefix
	holders, prefix := 0, 0
	each(func(_ slot, h holding) {
		holders++
		if h.holes != 0 {
			return
		}
		if having[h.prefix]++; having[h.prefix] >= having[prefix] {
			prefix = h.prefix
		}
	})
	byBit, last := int(having[prefix]), slot(0)
	each(func(s slot, h holding) {
		if h.holes == 0 && h.prefix == prefix {
			last = max(last, s)
		}
	})
	table := 0
	if old := c.ext(line); old != 0 {
		_, live := c.extCount(old)
		if used := int(*c.arena.w(old, extMoves) >> 32); used >= 2*live {
			table = min(2*c.extShape(old).table, extTableFor(holders))
		}
	}
	g := chooseExt(byBit, holders-byBit, last, c.maxOpen, table)
	g.prefix = prefix
	ext := c.arena.take(g.class)
	storeWord(c.arena.w(ext, extCounts), 0)
	storeWord(c.arena.w(ext, extMoves), 0)
	for i := range g.width + g.table {
		storeWord(c.arena.w(ext, extBits+i), 0)
	}
	storeWord(c.arena.w(ext, extGeometry), g.word())
	each(func(s slot, h holding) { c.putExt(ext, g, s, h) })
	c.replaceExt(line, ext)
}

// putExt adds a holder to a block that is not published yet.
func (c *chainCore) putExt(ext uint32, g extShape, s slot, h holding) {
	if g.bit(h) && int(s) < g.width*64 {
		w := c.arena.w(ext, extBits+int(s)/64)
		storeWord(w, *w|1<<(s%64))
		c.addExtCount(ext, 1, 0)
		return
	}
	_, free := c.extFind(ext, g, s)
	storeWord(free, makeEntry(s, h.prefix, h.holes))
	c.addExtCount(ext, 0, 1)
	c.addExtMoves(ext, 1)
}

// replaceExt publishes ext (0: holders are inline) as the block of the run at
// line and gives the old one back.
func (c *chainCore) replaceExt(line, ext uint32) {
	old := c.ext(line)
	c.begin(line)
	if ext != 0 {
		for k := range inlineHolders {
			storeWord(c.arena.w(line, runEntry0+k), 0)
		}
	}
	c.setExt(line, ext)
	c.end(line)
	if old != 0 {
		c.arena.give(c.extShape(old).class, old)
	}
}

// extTopTable is the largest table that extTop looks through: what an event may
// well spend. Chosen.
const extTopTable = 64

// extTop returns one more than the last block that anybody holds of a run of length
// blocks by its block ext; length where that takes too long to say.
func (c *chainCore) extTop(ext uint32, length int) (top int) {
	g := c.extShape(ext)
	if byBit, _ := c.extCount(ext); byBit > 0 {
		top = g.prefix
	}
	if g.table > extTopTable {
		return length
	}
	for _, e := range c.arena.words(ext, extBits+g.width, g.table) { // shadows are as high as bits
		if top >= length {
			break
		}
		top = max(top, c.top(entryHolding(e)))
	}
	return top
}

// slimExt takes the run at line back to inline holders when two or fewer are
// left, and to a smaller block when the one it has is far too large.
func (c *chainCore) slimExt(line, ext uint32) {
	byBit, entries := c.extCount(ext)
	g := c.extShape(ext)
	if byBit+entries > 2 {
		if g.table > 4*extTableFor(byBit+entries+lineWords) || g.width > 4*extTableFor(byBit+lineWords) {
			c.rebuildExt(line, 0, holding{})
		}
		return
	}
	var keep [2]uint64
	n := 0
	c.eachHolder(line, func(s slot, h holding) {
		keep[n] = makeEntry(s, h.prefix, h.holes)
		n++
	})
	c.begin(line)
	for k := range inlineHolders {
		var e uint64
		if k < n {
			e = keep[k]
		}
		storeWord(c.arena.w(line, runEntry0+k), e)
	}
	c.setExt(line, 0)
	c.end(line)
	c.arena.give(g.class, ext)
}
