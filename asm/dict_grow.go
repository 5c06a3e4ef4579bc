// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's writer, which looks keys up where positions lie.
// Hop after: none; the dictionary's lines are written here.

package asm

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// DictSweep is the scratch of a table's growth. The zero value is ready.
type DictSweep struct {
	// Positions and Keys are entries met: [DictTable.Gather] writes the positions,
	// the caller the key of each, [DictTable.Move] reads both.
	Positions []uint32
	Keys      []uint64

	lo, end uint64   // lines gathered
	slots   []uint32 // by entry: line from lo on * 16 + slot
	moved   []dictEntry
	passed  []int32
}

// dictEntry is an entry on its way to another home.
type dictEntry struct {
	hash     uint64
	position uint32
}

// dictCrowd is the number of entries from which they are put in all together, so
// that many keys with one home do not each go past the others.
const dictCrowd = 400

// Growing reports whether some keys still have their home among t.Old.
func (t *DictTable) Growing() bool { return t.Old != t.Lines }

// Grow begins growth to lines, which t.Words has room for. No growth is under way.
func (t *DictTable) Grow(lines uint64) {
	t.OldWindow = t.Window
	told := uint64(bits.Len64(lines)) - 1 // leading bits that a home tells
	if !t.windowed() || 64-t.Window-told < dictTells {
		t.Window = 48 - (max(told, 1) - 1)
	}
	t.Lines = lines
	t.Rest = math.MaxUint64
	if t.Old == 0 { // nothing was there
		t.Old, t.OldWindow = lines, t.Window
	}
}

// windowed reports whether an old home tells all bits above its entries' tags: it
// tells the first log2(Old), and one less where Old is no power of two.
func (t *DictTable) windowed() bool {
	above := 48 - t.OldWindow
	return t.Old > 1 && above+1 < uint64(bits.Len64(t.Old))
}

// Keyed reports whether the growth under way needs all keys.
func (t *DictTable) Keyed() bool { return t.Window != t.OldWindow || !t.windowed() }

// MoveKnown gives the entries on the last old lines, up to n of them, their new homes
// as far as lines and tags tell them, and returns how many lines it did. It ends at a
// line that keys went past or on to, or one of whose tags leaves two homes open, which
// is the next one for [DictTable.Gather].
//
// Cost: some 15 ns an entry in a table of 24 MiB, by profile; the old lines and the new
// ones, both in a row.
func (t *DictTable) MoveKnown(n uint64) (lines uint64) {
	if t.Keyed() {
		return 0
	}
	line, _ := bits.Mul64(t.Rest, t.Old)
	p := dictPlacer{t: t}
	for last := t.Rest; lines < n; lines++ {
		l := t.line(line)
		if l.overflow() != 0 || line > 0 && t.line(line-1).overflow() != 0 {
			break
		}
		first := t.leastOld(line)
		if !p.moveLine(l, first, last) {
			break
		}
		if line == 0 {
			t.grown()
			return lines + 1
		}
		last = first - 1
		t.Rest = last
		line--
	}
	return lines
}

// leastOld returns the least mixed hash with its home in an old line.
func (t *DictTable) leastOld(line uint64) uint64 {
	least, rest := bits.Div64(line, 0, t.Old)
	if rest != 0 {
		least++
	}
	return least
}

// grown ends growth.
func (t *DictTable) grown() { t.Old, t.OldWindow = t.Lines, t.Window }

// dictPlacer puts entries into lines. What it knows of the last lines' free slots
// saves a look at each: entries that had one home mostly go to two.
type dictPlacer struct {
	t     *DictTable
	known [4]uint64 // line + 1
	free  [4]uint32
}

func (p *dictPlacer) place(line, tag uint64, position uint32) {
	for {
		l, k := p.t.line(line), line%4
		if p.known[k] != line+1 {
			p.known[k], p.free[k] = line+1, l.free()
		}
		if m := p.free[k]; m != 0 {
			p.free[k] = m & (m - 1)
			l.put(uint64(bits.TrailingZeros32(m)), tag, position)
			return
		}
		l.count(1)
		line++
	}
}

// moveLine moves all entries of l, whose mixed hashes are from first to last. It
// returns false, with nothing done, when a new home is not certain.
func (p *dictPlacer) moveLine(l *dictLine, first, last uint64) bool {
	var at [DictSlots]struct {
		line, tag uint64
		position  uint32
	}
	window, lines, n := p.t.Window, p.t.Lines, 0
	above := first >> (window + 16) << (window + 16)
	for m := ^l.free() & (1<<DictSlots - 1); m != 0; m &= m - 1 {
		slot := uint64(bits.TrailingZeros32(m))
		tag := l.tag(slot)
		if tag == 1 {
			return false // it stands for 0, too
		}
		lo := above | tag<<window
		hi := lo + 1<<window - 1
		if hi < first {
			lo, hi = lo+1<<(window+16), hi+1<<(window+16)
		}
		line, _ := bits.Mul64(max(lo, first), lines)
		if other, _ := bits.Mul64(min(hi, last), lines); line != other {
			return false
		}
		at[n].line, at[n].tag, at[n].position = line, tag, l.position(slot)
		n++
	}
	l[0], l[1], l[2] = 0, 0, l[2]&^dictTail
	for _, e := range at[:n] {
		p.place(e.line, e.tag, e.position)
	}
	return true
}

// Extent returns the number of lines from the first to the last that any search
// may go to: t.Lines, or more when keys went past the last home.
func (t *DictTable) Extent() uint64 {
	n := t.Lines
	for n > 0 && n < uint64(len(t.Words)/DictLineWords) && t.line(n-1).overflow() != 0 {
		n++
	}
	return n
}

// Gather fills s.Positions with all entries that keys with a home in the last n
// old lines of those not yet moved may have, and makes room for as many keys.
// t is growing. Nothing may change the table until [DictTable.Move].
//
// Cost: the lines, which lie in a row.
func (t *DictTable) Gather(s *DictSweep, n uint64) {
	front, _ := bits.Mul64(t.Rest, t.Old)
	s.lo = front + 1 - min(n, front+1)
	s.end = front + 1
	for t.line(s.end-1).overflow() != 0 {
		s.end++
	}
	n = (s.end - s.lo) * DictSlots
	s.Positions = slices.Grow(s.Positions[:0], int(n))[:n]
	s.slots = slices.Grow(s.slots[:0], int(n))[:n]
	k := 0
	for line := s.lo; line < s.end; line++ {
		l := t.line(line)
		at := uint32(line-s.lo) * 16
		for slot := range uint64(DictSlots) {
			s.Positions[k] = l.position(slot)
			s.slots[k] = at + uint32(slot)
			k += int((l.tag(slot) + 0xffff) >> 16) // 1 unless it is free: no branch to be guessed
		}
	}
	s.Positions, s.slots = s.Positions[:k], s.slots[:k]
	s.Keys = slices.Grow(s.Keys[:0], k)[:k]
}

// Move gives the keys with a home in the lines gathered their new home.
//
// Cost: the lines and their new ones, each once, however many keys share a home.
func (t *DictTable) Move(s *DictSweep) {
	t.takeOut(s)
	if s.lo == 0 {
		t.grown()
	} else {
		t.Rest = t.leastOld(s.lo) - 1
	}
	if len(s.moved) < dictCrowd {
		t.place(s.moved)
		return
	}
	slices.SortFunc(s.moved, func(a, b dictEntry) int { return cmp.Compare(a.hash, b.hash) })
	t.putIn(s.moved)
}

// takeOut takes the entries to be moved out of the table, into s.moved.
func (t *DictTable) takeOut(s *DictSweep) {
	s.moved = slices.Grow(s.moved[:0], len(s.Keys))
	s.passed = s.passed[:0]
	for i, key := range s.Keys {
		h := dictHash(key)
		home, _ := bits.Mul64(h, t.Old)
		if h > t.Rest || home < s.lo {
			continue
		}
		s.moved = append(s.moved, dictEntry{h, s.Positions[i]})
		line := uint64(s.slots[i] / 16)
		t.line(s.lo + line).clear(uint64(s.slots[i] % 16))
		if home -= s.lo; home == line {
			continue
		}
		if len(s.passed) == 0 {
			s.passed = slices.Grow(s.passed, int(s.end-s.lo))[:s.end-s.lo]
			clear(s.passed)
		}
		s.passed[home]++
		s.passed[line]--
	}
	passed := uint64(0)
	for k, n := range s.passed {
		if passed += uint64(int64(n)); passed != 0 {
			t.line(s.lo + uint64(k)).uncount(passed)
		}
	}
}

// place enters few entries, one by one.
func (t *DictTable) place(entries []dictEntry) {
	p := dictPlacer{t: t}
	for i := range entries {
		h := entries[i].hash
		p.place(t.home(h), t.tag(h), entries[i].position)
	}
}

// putIn enters many entries, in the order of their hashes: each line takes what it has
// room for of those with a home there or before.
func (t *DictTable) putIn(entries []dictEntry) {
	for from := 0; from < len(entries); {
		line := t.home(entries[from].hash)
		for to := from; from < len(entries); line++ {
			for to < len(entries) && t.home(entries[to].hash) <= line {
				to++
			}
			l := t.line(line)
			for from < to {
				slot := dictFree(l[0], l[1], l[2]&dictTail)
				if slot == DictSlots {
					break
				}
				l.put(slot, t.tag(entries[from].hash), entries[from].position)
				from++
			}
			if from == to {
				break
			}
			l.count(uint64(to - from))
		}
	}
}
