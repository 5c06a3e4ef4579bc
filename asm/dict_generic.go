// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's writer, with the engine hashes of one event.
// Hop after: none; the dictionary's lines are written here.

package asm

import "math/bits"

// A dictionary maps 64-bit keys to 32-bit positions without storing the keys: a
// line holds 16 bits of each key and its position, and whoever asks verifies a
// candidate where the position lies. One key may stand at several positions.
//
//	word 0   tags 0-3      16 bits each; 0: the slot is free
//	word 1   tags 4-7
//	word 2   tags 8, 9, then the overflow count in bits 32-47
//	word 3   positions 0, 1 32 bits each
//	...
//	word 7   positions 8, 9
//
// A key's home line is the high half of its mixed hash times the number of
// lines, so that any number of lines works. When a line is full the key goes to
// the next one, and the overflow count of the full line says that it did: a
// search ends at the first line whose count is 0. A count that reached its
// maximum stays there until the table is rebuilt.
const (
	DictLineWords = 8  // uint64 words in a line of 64 bytes
	DictSlots     = 10 // positions in a line
)

const (
	dictMix      = 0x9E3779B97F4A7C15 // 2^64 / golden ratio, odd
	dictOnes     = 0x0001_0001_0001_0001
	dictHighs    = 0x8000_8000_8000_8000
	dictOverflow = 1 << 32    // one in word 2's overflow count
	dictFull     = 0xffff     // a count that no longer counts
	dictTail     = 0xffffffff // word 2: the bits of tags 8 and 9
	dictAhead    = 32         // keys whose lines are fetched together; chosen by measurement on one core: 16-64 are alike
)

// dictHash returns the line number among lines and the tag of key.
func dictHash(key uint64, lines uint64) (line uint64, tag uint64) {
	hi, lo := bits.Mul64(key^dictMix, 0xD6E8FEB86659FD93)
	h := (hi ^ lo) * dictMix
	line, _ = bits.Mul64(h, lines)
	tag = h & 0xffff
	if tag == 0 {
		tag = 1
	}
	return line, tag
}

// matches returns a word with the top bit of each 16-bit lane of w that equals
// the lane of tags, and perhaps of lanes above such a one.
func matches(w, tags uint64) uint64 {
	x := w ^ tags
	return (x - dictOnes) &^ x & dictHighs
}

// DictInsert enters keys[i] at position first+i for each i, and writes to hits
// the indices whose tag stood in a searched line already: the keys that may have
// another position. It returns the number of hits.
//
// Shape: len(dict) is a multiple of DictLineWords and at least one line has a
// free slot per key; len(hits) >= len(keys).
// Cost: one cache line a key while lines do not overflow.
func DictInsert(dict []uint64, keys []uint64, first uint32, hits []uint32) int {
	n := 0
	lines := uint64(len(dict) / DictLineWords)
	var at, tag [dictAhead]uint64
	for from := 0; from < len(keys); from += dictAhead {
		group := keys[from:min(from+dictAhead, len(keys))]
		dictHashes(group, lines, &at, &tag)
		dictTouch(dict, at[:len(group)])
		for i := range group {
			if dictInsert(dict, at[i], lines, tag[i], first+uint32(from+i)) {
				hits[n] = uint32(from + i)
				n++
			}
		}
	}
	return n
}

// dictHashes fills in the home lines and tags of up to dictAhead keys.
func dictHashes(keys []uint64, lines uint64, at, tag *[dictAhead]uint64) {
	for i, key := range keys {
		at[i], tag[i] = dictHash(key, lines)
	}
}

// dictTouch loads lines with nothing depending on the loads, so that their misses
// overlap.
func dictTouch(dict, lines []uint64) {
	if len(dict) < 1<<14 || len(lines) < 4 {
		return // the table fits the cache, or there is nothing to overlap
	}
	var sum uint64
	for _, line := range lines {
		sum |= dict[line*DictLineWords]
	}
	if sum == 0 {
		dictUnseen()
	}
}

// dictUnseen keeps the compiler from dropping dictTouch's loads.
//
//go:noinline
func dictUnseen() {}

// dictInsert enters one key and reports whether its tag stood there already.
func dictInsert(dict []uint64, line, lines, tag uint64, position uint32) bool {
	tags := tag * dictOnes
	placed, seen := false, false
	for range lines {
		l := (*[DictLineWords]uint64)(dict[line*DictLineWords:])
		w0, w1, w2 := l[0], l[1], l[2]
		t2 := w2 & dictTail
		// Lanes 2 and 3 of word 2 are no tags: there stands what cannot match.
		if matches(w0, tags)|matches(w1, tags)|matches(t2|^tags&^dictTail, tags) != 0 {
			seen = true
		}
		if !placed {
			if slot := dictFree(w0, w1, t2); slot < DictSlots {
				l[slot>>2] |= tag << (16 * (slot & 3))
				pw := &l[3+slot>>1]
				sh := 32 * (slot & 1)
				*pw = *pw&^(0xffffffff<<sh) | uint64(position)<<sh
				placed = true
			} else if w2>>32&dictFull != dictFull {
				l[2] += dictOverflow
				w2 += dictOverflow
			}
		}
		if placed && w2>>32&dictFull == 0 {
			return seen
		}
		if line++; line == lines {
			line = 0
		}
	}
	if !placed {
		panic("BUG: asm: insert into a full dictionary")
	}
	return seen
}

// dictFree returns the first free slot, DictSlots when there is none.
func dictFree(w0, w1, t2 uint64) uint64 {
	if m := matches(w0, 0); m != 0 {
		return uint64(bits.TrailingZeros64(m)) >> 4
	}
	if m := matches(w1, 0); m != 0 {
		return 4 + uint64(bits.TrailingZeros64(m))>>4
	}
	if m := matches(t2|^uint64(dictTail), 0); m != 0 {
		return 8 + uint64(bits.TrailingZeros64(m))>>4
	}
	return DictSlots
}

// DictDelete takes out keys[i] at position first+i for each i, and returns how
// many it did not find, which is 0 unless the caller is wrong.
//
// Shape and cost as in [DictInsert].
func DictDelete(dict []uint64, keys []uint64, first uint32) int {
	missing := 0
	lines := uint64(len(dict) / DictLineWords)
	var at, tag [dictAhead]uint64
	for from := 0; from < len(keys); from += dictAhead {
		group := keys[from:min(from+dictAhead, len(keys))]
		dictHashes(group, lines, &at, &tag)
		dictTouch(dict, at[:len(group)])
		for i := range group {
			if !dictDelete(dict, at[i], lines, tag[i], first+uint32(from+i)) {
				missing++
			}
		}
	}
	return missing
}

func dictDelete(dict []uint64, home, lines, tag uint64, position uint32) bool {
	tags := tag * dictOnes
	for line, passed := home, uint64(0); passed < lines; passed++ {
		l := (*[DictLineWords]uint64)(dict[line*DictLineWords:])
		for w := range 3 {
			tw := l[w]
			if w == 2 {
				tw = tw&dictTail | ^tags&^dictTail
			}
			for m := matches(tw, tags); m != 0; m &= m - 1 {
				lane := bits.TrailingZeros64(m) >> 4
				slot := w*4 + lane
				if uint32(l[3+slot>>1]>>(32*(slot&1))) != position || uint16(tw>>(16*lane)) != uint16(tag) {
					continue
				}
				l[w] &^= 0xffff << (16 * lane)
				dictUncount(dict, home, passed, lines)
				return true
			}
		}
		if l[2]>>32&dictFull == 0 {
			return false
		}
		if line++; line == lines {
			line = 0
		}
	}
	return false
}

// dictUncount takes one key off the overflow counts of the lines it passed.
func dictUncount(dict []uint64, line, passed, lines uint64) {
	for ; passed > 0; passed-- {
		if w := &dict[line*DictLineWords+2]; *w>>32&dictFull != dictFull {
			*w -= dictOverflow
		}
		if line++; line == lines {
			line = 0
		}
	}
}

// DictFind writes to out the positions whose tag is key's, in search order, and
// returns how many there are, which may be more than out has room for.
func DictFind(dict []uint64, key uint64, out []uint32) int {
	lines := uint64(len(dict) / DictLineWords)
	line, tag := dictHash(key, lines)
	return dictFind(dict, line, lines, tag, out)
}

func dictFind(dict []uint64, line, lines, tag uint64, out []uint32) int {
	n := 0
	tags := tag * dictOnes
	for range lines {
		l := (*[DictLineWords]uint64)(dict[line*DictLineWords:])
		for w := range 3 {
			tw := l[w]
			if w == 2 {
				tw = tw&dictTail | ^tags&^dictTail
			}
			for m := matches(tw, tags); m != 0; m &= m - 1 {
				lane := bits.TrailingZeros64(m) >> 4
				if uint16(tw>>(16*lane)) != uint16(tag) {
					continue
				}
				if n < len(out) {
					slot := w*4 + lane
					out[n] = uint32(l[3+slot>>1] >> (32 * (slot & 1)))
				}
				n++
			}
		}
		if l[2]>>32&dictFull == 0 {
			break
		}
		if line++; line == lines {
			line = 0
		}
	}
	return n
}

// DictProbe is [DictFind] for many keys, each of which is given one candidate:
// out[i] is the first position whose tag is keys[i]'s, 0 when there is none.
//
// Shape: len(out) >= len(keys).
func DictProbe(dict []uint64, keys []uint64, out []uint32) {
	lines := uint64(len(dict) / DictLineWords)
	var at, tag [dictAhead]uint64
	for from := 0; from < len(keys); from += dictAhead {
		group := keys[from:min(from+dictAhead, len(keys))]
		dictHashes(group, lines, &at, &tag)
		dictTouch(dict, at[:len(group)])
		for i := range group {
			out[from+i] = 0
			dictFind(dict, at[i], lines, tag[i], out[from+i:from+i+1])
		}
	}
}
