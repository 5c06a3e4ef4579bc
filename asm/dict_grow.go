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
	t.Lines = lines
	t.Rest = math.MaxUint64
	if t.Old == 0 {
		t.Old = lines // nothing was there
	}
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
		t.Old = t.Lines
	} else {
		least, rest := bits.Div64(s.lo, 0, t.Old)
		if rest != 0 {
			least++
		}
		t.Rest = least - 1 // below the least hash with its home in s.lo
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

// place enters few entries, one by one. What it knows of the last lines' free slots
// saves a look at each: entries that had one home mostly go to two.
func (t *DictTable) place(entries []dictEntry) {
	var known [4]uint64 // line + 1
	var free [4]uint32
	for i := range entries {
		h := entries[i].hash
		line := t.home(h)
		for {
			l, k := t.line(line), line%4
			if known[k] != line+1 {
				known[k], free[k] = line+1, l.free()
			}
			if m := free[k]; m != 0 {
				free[k] = m & (m - 1)
				l.put(uint64(bits.TrailingZeros32(m)), dictTag(h), entries[i].position)
				break
			}
			l.count(1)
			line++
		}
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
				l.put(slot, dictTag(entries[from].hash), entries[from].position)
				from++
			}
			if from == to {
				break
			}
			l.count(uint64(to - from))
		}
	}
}
