// SPDX-License-Identifier: Apache-2.0

// Hop before: the chain core's store, with where its blocks lie and what the
// worker names them.
// Hop after: the dictionary; then coverage.

package shard

import "kindex/asm"

// A row is an array of engine hashes for a run's leading positions. Each run has
// its own row behind its content; alias rows, pieces of the arena, are for slots
// that name the run's blocks by other hashes: workers with hash seeds of their
// own. A row has an index among those of the runs, so that a dictionary entry
// names a row and an offset; the run's own row has the run's index.
//
// A slot names what it holds of a run by one row, but for its exceptions: by the
// run's own unless slotState.rows says which. It chooses when it stores there and
// holds nothing of the run, and the choice ends when it holds nothing any more.
// Slots of one seed share a row, and so do a holder's tiers. What a row has at an
// offset stays until the run is cut off there or the row loses its last user.

// rowUseBytes is what one entry of slotState.rows takes: an estimate from a map's
// load of 7/16 to 7/8 and slots of 8 bytes.
const rowUseBytes = 16

// rowOf returns the index of the row by which the slot names what it holds of run
// idx.
func (st *slotState) rowOf(idx uint32) uint32 {
	if row, ok := st.rows[idx]; ok {
		return row
	}
	return idx
}

// basePosition returns the position in its run of position p of any row.
func (c *chainCore) basePosition(p uint32) uint32 {
	if base := c.runs.at(p >> offsetBits).base; base != 0 {
		return base<<offsetBits | p&posOffset
	}
	return p
}

// names is the engine hashes in [lo, hi) of a row.
func (c *chainCore) names(row uint32, lo, hi int) []uint64 {
	info := c.runs.at(row)
	return c.arena.words(info.line, info.firstName()+lo, hi-lo)
}

// firstName is the word of the row's piece at which its hashes begin.
func (info *runInfo) firstName() int {
	if info.base != 0 {
		return 0
	}
	return runContent + int(runCap[info.class])
}

// engineOf is the engine hash that the dictionary has p for. p is a position
// within its row's capacity, not necessarily filled: the hashes of a batch stand
// there before they are entered.
func (c *chainCore) engineOf(p uint32) uint64 {
	info := c.runs.at(p >> offsetBits)
	return *c.arena.w(info.line, info.firstName()+int(p&posOffset))
}

// fill adds engines to a row with room for them.
func (c *chainCore) fill(row uint32, engines []uint64) {
	info := c.runs.at(row)
	from := int(info.filled)
	copyWords(c.names(row, from, from+len(engines)), engines)
	c.enter(row, from, engines)
	info.filled += uint16(len(engines))
}

// cut shortens a row to n hashes.
func (c *chainCore) cut(row uint32, n int) {
	info := c.runs.at(row)
	if have := int(info.filled); n < have {
		c.leave(row, n, c.names(row, n, have))
		info.filled = uint16(n)
	}
}

// naming is how a slot will name the blocks of one segment.
type naming uint8

const (
	nameNot   naming = iota // what its row has not is an exception each
	nameByRow               // by the row it uses, which may have to be filled further
	nameByUse               // by another row of the run, which it will use
	nameByNew               // by a row to be made
	nameByOwn               // by the run's own row, emptied first: nobody uses it
)

// need is what naming takes.
type need struct {
	entries int    // of the dictionary
	rows    int    // to be made
	lines   uint64 // of the arena, but for pieces that are free
	pieces  [numRunClasses]uint16
}

// piece adds a piece for a row of class.
func (n *need) piece(a *arena, class uint8) {
	if n.pieces[class]++; a.classes[classRow+int(class)].free < uint32(n.pieces[class]) {
		n.lines += uint64(pieceLines[classRow+int(class)])
	}
}

// plan decides by which row s will name each of c.segs, and returns what that
// takes. It changes nothing else.
//
// Cost: a comparison; where that fails and s holds nothing of the run, a line of
// the dictionary and another comparison.
func (c *chainCore) plan(s slot, st *slotState, engines []uint64) (want need) {
	for i := range c.segs {
		g := &c.segs[i]
		idx := c.index(g.line)
		g.row = st.rowOf(idx)
		overlap, fits := c.fits(g.row, g, engines)
		switch {
		case fits && overlap > 0 || g.row != idx || !c.holding(g.line, s).empty():
			g.naming = nameNot
			if fits {
				g.naming = nameByRow
			}
		default:
			c.choose(idx, g, engines, fits)
		}
		switch g.naming {
		case nameNot:
		case nameByNew:
			want.entries += g.hi
			want.rows++
			want.piece(&c.arena, rowClass(g.hi))
		case nameByOwn:
			want.entries += g.hi
		case nameByRow, nameByUse:
			want.entries += max(0, g.hi-int(c.runs.at(g.row).filled))
			if g.row != idx && g.hi > c.rowCap(g.row) {
				want.piece(&c.arena, c.widerRow(idx, g.hi))
			}
		}
	}
	return want
}

// fits reports whether engines are what the row has of the segment, or can be once
// it is filled further, and how many it has.
func (c *chainCore) fits(row uint32, g *segment, engines []uint64) (overlap int, ok bool) {
	filled := int(c.runs.at(row).filled)
	if g.lo >= filled {
		return 0, g.lo == filled
	}
	n := min(g.hi, filled) - g.lo
	return n, asm.MatchForward(c.names(row, g.lo, g.lo+n), engines[g.first:]) >= n
}

// choose decides by which row of run idx the segment will be named by a slot that
// holds nothing of the run, and with whose blocks the run's own row has none in
// common. next says that they could follow in that.
func (c *chainCore) choose(idx uint32, g *segment, engines []uint64, next bool) {
	g.naming = nameNot
	for _, p := range c.candidates(engines[g.first]) {
		if p>>offsetBits == idx || c.basePosition(p) != idx<<offsetBits|uint32(g.lo) {
			continue
		}
		if overlap, ok := c.fits(p>>offsetBits, g, engines); ok && overlap > 0 {
			g.row, g.naming = p>>offsetBits, nameByUse
			return
		}
	}
	switch {
	case next:
		g.naming = nameByRow
	case g.lo > 0:
	case c.ownUsers(idx) == 0:
		g.naming = nameByOwn
	default:
		g.naming = nameByNew
	}
}

// ownUsers returns how many slots hold something of run idx and name it by its own
// row.
func (c *chainCore) ownUsers(idx uint32) int {
	info := c.runs.at(idx)
	return c.holders(info.line) - int(info.users)
}

// addUser counts one more user of an alias row.
func (c *chainCore) addUser(row uint32) {
	info := c.runs.at(row)
	info.users++
	c.runs.at(info.base).users++
}

// rowCap is how many blocks the piece of an alias row has room for.
func (c *chainCore) rowCap(row uint32) int { return int(runCap[c.runs.at(row).class]) }

// widerRow is the class of an alias row of run idx that grows to n hashes: with
// room for a quarter more, as far as the run has.
func (c *chainCore) widerRow(idx uint32, n int) uint8 {
	return rowClass(min(n+n/4, int(runCap[c.runs.at(idx).class])))
}

// rowClass is the smallest class of alias rows with room for n hashes.
func rowClass(n int) uint8 { return runClassFor[(n+3)/4] }

// name does what was planned for c.segs, whose blocks are there by now, and
// reports whether all of them are named by s's rows.
func (c *chainCore) name(st *slotState, engines []uint64) (all bool) {
	all = true
	for i := range c.segs {
		g := &c.segs[i]
		idx := c.index(g.line)
		switch g.naming {
		case nameNot:
			all = false
			continue
		case nameByRow:
		case nameByNew:
			g.row = c.newRow(idx, rowClass(g.hi))
			c.use(st, idx, g.row)
		case nameByUse:
			c.use(st, idx, g.row)
			c.touched = append(c.touched, idx)
		case nameByOwn:
			c.cut(idx, 0)
		}
		if have := int(c.runs.at(g.row).filled); g.hi > have {
			if g.row != idx && g.hi > c.rowCap(g.row) {
				c.widenRow(g.row, c.widerRow(idx, g.hi))
			}
			c.fill(g.row, engines[g.first+have-g.lo:g.first+g.hi-g.lo])
			if c.runs.at(idx).next != 0 { // s may hold nothing of the run in the end
				c.touched = append(c.touched, idx)
			}
		}
	}
	return all
}

// use makes the slot use a row of run idx. It holds nothing of the run yet, and
// [chainCore.settle] ends the use if it never does.
func (c *chainCore) use(st *slotState, idx, row uint32) {
	if st.rows == nil {
		st.rows = map[uint32]uint32{}
	}
	st.rows[idx] = row
	c.addUser(row)
}

// newRow makes an empty row for run idx.
func (c *chainCore) newRow(idx uint32, class uint8) uint32 {
	row := c.runs.take()
	c.runs.rows++
	c.rowsMade++
	base := c.runs.at(idx)
	*c.runs.at(row) = runInfo{line: c.arena.take(classRow + int(class)), base: idx, next: base.next, class: class}
	base.next = row
	return row
}

// widenRow moves a row to a piece of a larger class. Nobody but the writer sees
// rows.
func (c *chainCore) widenRow(row uint32, class uint8) {
	info := c.runs.at(row)
	line := c.arena.take(classRow + int(class))
	copyWords(c.arena.words(line, 0, int(info.filled)), c.names(row, 0, int(info.filled)))
	c.arena.give(classRow+int(info.class), info.line)
	info.line, info.class = line, class
}

// freeRow takes away a row of run idx that nobody uses.
func (c *chainCore) freeRow(idx, row uint32) {
	c.cut(row, 0)
	info := c.runs.at(row)
	before := c.runs.at(idx)
	for before.next != row {
		before = c.runs.at(before.next)
	}
	before.next = info.next
	c.arena.give(classRow+int(info.class), info.line)
	c.runs.give(row)
	c.runs.rows--
}

// settleRows ends s's use of a row of run idx when it holds nothing of the run any
// more, and empties or frees what nobody uses then.
func (c *chainCore) settleRows(s slot, st *slotState, idx uint32) {
	if row, ok := st.rows[idx]; ok && c.holding(c.runs.at(idx).line, s).empty() {
		if delete(st.rows, idx); len(st.rows) == 0 {
			st.rows = nil
		}
		c.runs.at(idx).users--
		info := c.runs.at(row)
		if info.users--; info.users == 0 {
			c.freeRow(idx, row)
		}
	}
	if c.runs.at(idx).next != 0 && c.ownUsers(idx) == 0 {
		c.cut(idx, 0)
	}
}
