// SPDX-License-Identifier: Apache-2.0

// Hop before: the exported kernels of dict_amd64.go or dict_noasm.go.
// Hop after: none; the dictionary's lines are written here.

package asm

import "math/bits"

// dictAhead is the keys whose lines the twin fetches together. Chosen by
// measurement on one core: 16-64 are alike.
const dictAhead = 32

// matches returns a word with the top bit of each 16-bit lane of w that equals
// the lane of tags, and perhaps of lanes above such a one.
func matches(w, tags uint64) uint64 {
	x := w ^ tags
	return (x - dictOnes) &^ x & dictHighs
}

// dictInsertGeneric is [DictInsert]'s twin.
func dictInsertGeneric(t *DictTable, keys []uint64, first uint32, hits []uint32) int {
	n := 0
	var at, tag [dictAhead]uint64
	for from := 0; from < len(keys); from += dictAhead {
		group := keys[from:min(from+dictAhead, len(keys))]
		dictHashes(t, group, &at, &tag)
		for i := range group {
			seen, placed := dictInsert(t, at[i], tag[i], first+uint32(from+i))
			if !placed {
				return -1
			}
			if seen {
				hits[n] = uint32(from + i)
				n++
			}
		}
	}
	return n
}

// dictHashes fills in the home lines and tags of up to dictAhead keys, and loads
// the lines with nothing depending on the loads, so that their misses overlap.
func dictHashes(t *DictTable, keys []uint64, at, tag *[dictAhead]uint64) {
	for i, key := range keys {
		h := dictHash(key)
		at[i], tag[i] = t.home(h), t.tag(h)
	}
	if len(t.Words) < 1<<14 || len(keys) < 4 {
		return // the table fits the cache, or there is nothing to overlap
	}
	var sum uint64
	for i := range keys {
		sum |= t.Words[at[i]*DictLineWords]
	}
	if sum == 0 {
		dictUnseen()
	}
}

// dictUnseen keeps the compiler from dropping dictHashes's loads.
//
//go:noinline
func dictUnseen() {}

// dictInsert enters one key. It reports whether its tag stood there already, and
// whether there was a free slot before the end of the table.
func dictInsert(t *DictTable, line, tag uint64, position uint32) (seen, placed bool) {
	tags := tag * dictOnes
	for ; line < uint64(len(t.Words)/DictLineWords); line++ {
		l := t.line(line)
		w0, w1, w2 := l[0], l[1], l[2]
		t2 := w2 & dictTail
		// Lanes 2 and 3 of word 2 are no tags: there stands what cannot match.
		if matches(w0, tags)|matches(w1, tags)|matches(t2|^tags&^dictTail, tags) != 0 {
			seen = true
		}
		if !placed {
			if slot := dictFree(w0, w1, t2); slot < DictSlots {
				l.put(slot, tag, position)
				placed = true
			} else if w2>>32&dictFull != dictFull {
				l[2] += dictOverflow
				w2 += dictOverflow
			}
		}
		if placed && w2>>32&dictFull == 0 {
			break
		}
	}
	return seen, placed
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

// dictDeleteGeneric is [DictDelete]'s twin.
func dictDeleteGeneric(t *DictTable, keys []uint64, first uint32) int {
	missing := 0
	var at, tag [dictAhead]uint64
	for from := 0; from < len(keys); from += dictAhead {
		group := keys[from:min(from+dictAhead, len(keys))]
		dictHashes(t, group, &at, &tag)
		for i := range group {
			if !dictDelete(t, at[i], tag[i], first+uint32(from+i)) {
				missing++
			}
		}
	}
	return missing
}

func dictDelete(t *DictTable, home, tag uint64, position uint32) bool {
	tags := tag * dictOnes
	for line := home; line < uint64(len(t.Words)/DictLineWords); line++ {
		l := t.line(line)
		for w := range 3 {
			tw := l[w]
			if w == 2 {
				tw = tw&dictTail | ^tags&^dictTail
			}
			for m := matches(tw, tags); m != 0; m &= m - 1 {
				lane := bits.TrailingZeros64(m) >> 4
				slot := uint64(w*4 + lane)
				if l.position(slot) != position || uint16(tw>>(16*lane)) != uint16(tag) {
					continue
				}
				l[w] &^= 0xffff << (16 * lane)
				for ; home < line; home++ {
					t.line(home).uncount(1)
				}
				return true
			}
		}
		if l.overflow() == 0 {
			return false
		}
	}
	return false
}

func dictFind(t *DictTable, line, tag uint64, out []uint32) int {
	n := 0
	tags := tag * dictOnes
	for ; line < uint64(len(t.Words)/DictLineWords); line++ {
		l := t.line(line)
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
					out[n] = l.position(uint64(w*4 + lane))
				}
				n++
			}
		}
		if l.overflow() == 0 {
			break
		}
	}
	return n
}

// dictProbeGeneric is [DictProbe]'s twin.
func dictProbeGeneric(t *DictTable, keys []uint64, out []uint32) {
	var at, tag [dictAhead]uint64
	for from := 0; from < len(keys); from += dictAhead {
		group := keys[from:min(from+dictAhead, len(keys))]
		dictHashes(t, group, &at, &tag)
		for i := range group {
			out[from+i] = 0
			dictFind(t, at[i], tag[i], out[from+i:from+i+1])
		}
	}
}
