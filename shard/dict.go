// SPDX-License-Identifier: Apache-2.0

// Hop before: the chain core's store, removal and find.
// Hop after: asm's dictionary kernels.

package shard

import "kindex/asm"

// dict maps engine hashes to where they stand: one entry for each hash of each
// row, whoever uses it. A position is the row's index shifted by offsetBits, plus
// the offset. It keeps no keys; a candidate is verified in the row
// ([chainCore.engineOf]). One hash may have several positions.
//
// It grows in place and by steps ([chainCore.reserveDict], [chainCore.sweepDict]),
// so that no call pays for all entries.
//
// Concurrency: the writer's alone, so its words are plain.
type dict struct {
	memory  dictMemory
	table   asm.DictTable
	n       uint64 // entries
	goal    uint64 // homes that memory is being got for; 0: none
	pace    uint64 // lines, in eighths, that an insert pays the sweep of
	owed    uint64 // what is paid and not yet swept
	sweep   asm.DictSweep
	sizes   dictSizes
	lineBuf []uint32 // scratch of a sweep
}

// dictSizes are lines.
type dictSizes struct {
	first uint64 // of a new table
	// A table below small doubles, one below middle grows by half, others by a
	// quarter. A small step wastes little, but moves every entry more often: 1, 2 and
	// 4 times each until a table is full.
	small, middle uint64
	// step is swept at once: enough keys, at 4.5 a line, for their misses to
	// overlap, in 2-4 us.
	step uint64
	// ahead is swept for each insert at least, where no keys are needed: 4 lines are 18
	// entries, some 0.3 us. Chosen.
	ahead uint64
}

// dictDefault is for everything but tests that want growth to be under way.
var dictDefault = dictSizes{first: 64, small: 1 << 14, middle: 1 << 19, step: 32, ahead: 4}

const (
	// dictMaxLoad is the most entries per line in tenths, of 100: 4.5 of 10 slots.
	// From the prototype: slower above (an overflow is a miss of its own), no
	// faster below.
	dictMaxLoad = 45
	// dictUrgentLoad is where growth stops everything else rather than wait.
	dictUrgentLoad = 60
	// dictFullLoad is how full a table gets that there is no memory to grow for.
	// Chosen: one line in ten is full then, and the one bound that users set is met
	// by their blocks rather than by a step of the table.
	dictFullLoad = 70
	// candidates is the room for positions of one hash that usually suffices.
	candidates = 16
)

// homesFor returns the homes that the table should grow to for n entries, 0 when
// those at hand suffice.
func (d *dict) homesFor(n uint64) uint64 {
	homes := d.table.Lines
	load := uint64(dictMaxLoad)
	if d.table.Growing() {
		load = dictUrgentLoad // the next growth waits for this one's end
	}
	if n*10 <= homes*load {
		return 0
	}
	return max(d.nextHomes(), n*10/dictMaxLoad+1)
}

// nextHomes is the least that the table grows to.
func (d *dict) nextHomes() uint64 {
	homes := d.table.Lines
	grown := homes + homes/4
	switch {
	case homes < d.sizes.small:
		grown = 2 * homes
	case homes < d.sizes.middle:
		grown = homes + homes/2
	}
	return max(d.sizes.first, grown, d.goal)
}

// cost is how many lines of memory growth to homes takes for n more entries, beside
// those that the table has.
func (d *dict) cost(homes, n uint64) uint64 {
	lines := d.memory.takes(d.linesFor(homes, n))
	return lines - min(lines, d.lines())
}

// most is how many entries the table takes without growing.
func (d *dict) most() uint64 { return d.table.Lines * dictFullLoad / 10 }

// holds reports whether the table takes n more entries without growing.
func (d *dict) holds(n uint64) bool { return d.n+n <= d.most() }

// linesFor returns the lines that n more entries may touch in a table of homes, or of
// those at hand when it is 0: past the last home some may follow.
func (d *dict) linesFor(homes, n uint64) uint64 {
	lines := d.table.Extent()
	if homes > 0 {
		lines += homes - d.table.Lines
	}
	return lines + n/asm.DictSlots + 8
}

// reserveDict makes sure that n more entries can be had. homes is
// [dict.homesFor]'s answer. Memory for growth is got a piece at a time, one in each
// call, and growth begins when all is there.
//
// Errors: ErrArenaFull, with nothing changed that anybody sees.
func (c *chainCore) reserveDict(homes, n uint64) error {
	d := &c.dict
	lines := d.linesFor(homes, n)
	have := uint64(len(d.table.Words)) / asm.DictLineWords
	if lines > have {
		urgent := homes == 0 || (d.n+n)*10 > d.table.Lines*dictUrgentLoad
		words, ok := d.memory.commit(lines, urgent)
		if !ok {
			return ErrArenaFull
		}
		d.table.Words = words
		c.arena.outside = d.lines()
		have = uint64(len(words)) / asm.DictLineWords
	}
	switch {
	case homes == 0:
	case lines > have:
		d.goal = homes
	default:
		for d.table.Growing() {
			c.sweepLines(d.sizes.step)
		}
		d.begin(homes)
		c.arena.outside = d.lines()
	}
	return nil
}

// begin begins growth to homes. Until the table is full again 4.5 times as many
// keys come as it gets lines; they pay at least an eighth more than the sweep takes.
// A sweep that needs no keys is done sooner: while it lasts, the old lines go on
// filling up.
func (d *dict) begin(homes uint64) {
	old := d.table.Lines
	d.table.Grow(homes)
	if old > 0 {
		d.pace = 9*old*10/((homes-old)*dictMaxLoad) + 1
		if !d.table.Keyed() {
			d.pace = max(d.pace, 8*d.sizes.ahead)
		}
	}
	d.goal, d.owed = 0, 0
}

// lines is the memory in use, in lines.
func (d *dict) lines() uint64 {
	if d.table.Lines == 0 {
		return 0
	}
	return max(d.table.Extent(), d.memory.resident()/lineBytes)
}

// sweepDict moves the growth under way on, as n inserts pay for: it ends before
// the load is met again. Cost: up to 0.3 us an insert.
func (c *chainCore) sweepDict(n int) {
	d := &c.dict
	d.owed += uint64(n) * d.pace
	for step := d.sizes.step; d.owed >= 8*step && d.table.Growing(); d.owed -= 8 * step {
		c.sweepLines(step)
	}
}

// sweepLines moves what has its home in the next n lines: most without a look at its
// keys.
func (c *chainCore) sweepLines(n uint64) {
	t := &c.dict.table
	for n > 0 && t.Growing() {
		n -= t.MoveKnown(n)
		if n == 0 || !t.Growing() {
			return
		}
		lines := n
		if !t.Keyed() {
			lines = 1
		}
		c.sweepKeyed(lines)
		n -= lines
	}
}

// sweepKeyed is sweepLines with all keys. They come from the rows, whose lines are all
// asked for before the first is wanted.
func (c *chainCore) sweepKeyed(n uint64) {
	s := &c.dict.sweep
	c.dict.table.Gather(s, n)
	if cap(c.dict.lineBuf) < len(s.Keys) {
		c.dict.lineBuf = make([]uint32, 2*len(s.Keys))
	}
	lines := c.dict.lineBuf[:len(s.Keys)]
	for i, p := range s.Positions {
		info := c.runs.at(p >> offsetBits)
		word := uint64(info.line)*lineWords + uint64(info.firstName()) + uint64(p&posOffset)
		s.Keys[i], lines[i] = word, uint32(word/lineWords)
	}
	c.arena.prefetch(lines)
	for i, word := range s.Keys {
		s.Keys[i] = *c.arena.w(uint32(word/lineWords), int(word%lineWords))
	}
	c.dict.table.Move(s)
}

// hitsFor returns scratch for n hits.
func (c *chainCore) hitsFor(n int) []uint32 {
	if cap(c.hitBuf) < n {
		c.hitBuf = make([]uint32, max(n, maxRun))
	}
	return c.hitBuf[:n]
}

// enter adds the positions from off of a row to the dictionary, and marks the
// runs that share an engine hash.
func (c *chainCore) enter(row uint32, off int, engines []uint64) {
	if c.dict.table.Growing() {
		c.sweepDict(len(engines))
	}
	hits := c.hitsFor(len(engines))
	from := row<<offsetBits | uint32(off)
	base := c.basePosition(from)
	n := asm.DictInsert(&c.dict.table, engines, from, hits)
	c.dict.n += uint64(len(engines))
	for k, i := range hits[:n] {
		if k > 0 && engines[i] == engines[hits[k-1]] {
			continue // the whole batch is in: all places of this hash were marked
		}
		for _, p := range c.candidates(engines[i]) {
			// The position may be one of this very batch, not yet counted as filled.
			if q := c.basePosition(p); q != base+i && c.engineOf(p) == engines[i] {
				c.markDup(c.runs.at(base >> offsetBits).line)
				c.markDup(c.runs.at(q >> offsetBits).line)
			}
		}
	}
}

// leave takes the positions from off of a row out of the dictionary.
func (c *chainCore) leave(row uint32, off int, engines []uint64) {
	if missing := asm.DictDelete(&c.dict.table, engines, row<<offsetBits|uint32(off)); missing != 0 {
		panic("BUG: shard: position missing in the dictionary")
	}
	c.dict.n -= uint64(len(engines))
}

// candidates returns the positions that may have e as canonical hash. The slice
// is valid until the next call.
func (c *chainCore) candidates(e uint64) []uint32 {
	for {
		n := asm.DictFind(&c.dict.table, e, c.found)
		if n <= len(c.found) {
			return c.found[:n]
		}
		c.found = make([]uint32, 2*n)
	}
}
