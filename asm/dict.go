// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's writer, with the engine hashes of one event.
// Hop after: the kernels of dict_generic.go and dict_amd64.s.

package asm

import (
	"math/bits"

	"kindex/asm/internal/cpu"
)

// DictTable is a dictionary: it maps 64-bit keys to 32-bit positions without
// storing the keys. A line holds 16 bits of each key and its position, and
// whoever asks verifies a candidate where the position lies. One key may stand at
// several positions.
//
//	word 0   tags 0-3      16 bits each; 0: the slot is free
//	word 1   tags 4-7
//	word 2   tags 8, 9, then the overflow count in bits 32-47
//	word 3   positions 0, 1 32 bits each
//	...
//	word 7   positions 8, 9
//
// A key's home line is the high half of its mixed hash times the number of
// lines: any number of lines works, and homes are in the order of the hashes.
// When a line is full the key goes to the next one, and the overflow count of the
// full line says that it did: a search ends at the first line whose count is 0.
// There is no way round: past the last home follow spill lines. A count that
// reached its maximum stays there; it costs searches a line.
//
// # Growth
//
// A table grows in place, from Old homes to Lines. While it does, keys whose mixed
// hash is at most Rest have their home among Old, the others among Lines; when it
// does not, Old is Lines. Since a home among more lines is never a smaller one, a
// sweep from the last old line down ([DictTable.Gather], [DictTable.Move]) never
// meets what it has moved.
//
// A tag is a window of 16 bits of the mixed hash that begins where the bits that a
// home tells end, or a bit before. So line and tag together tell the home among more
// lines, too, and most entries move without their keys ([DictTable.MoveKnown]). The
// more homes there are, the less a tag tells beyond them; before that is less than
// [dictTells] bits a growth needs the keys after all and sets the window anew.
//
// Concurrency: one owner.
type DictTable struct {
	Words []uint64 // the lines that may be touched: homes, then spill
	Lines uint64   // homes of keys above Rest
	Old   uint64   // homes of the others; at most Lines
	Rest  uint64
	// Window and OldWindow are the number of bits of the mixed hash below the tag's,
	// for keys above Rest and for the others.
	Window, OldWindow uint64
}

// Shape of a line.
const (
	DictLineWords = 8  // uint64 words in a line of 64 bytes
	DictSlots     = 10 // positions in a line
)

const (
	dictMix      = 0x9E3779B97F4A7C15 // 2^64 / golden ratio, odd
	dictFold     = 0xD6E8FEB86659FD93
	dictOnes     = 0x0001_0001_0001_0001
	dictHighs    = 0x8000_8000_8000_8000
	dictOverflow = 1 << 32    // one in word 2's overflow count
	dictFull     = 0xffff     // a count that no longer counts
	dictTail     = 0xffffffff // word 2: the bits of tags 8 and 9
)

// dictHash returns key's mixed hash.
func dictHash(key uint64) uint64 {
	hi, lo := bits.Mul64(key^dictMix, dictFold)
	return (hi ^ lo) * dictMix
}

// dictTells is the least number of bits that a tag tells beyond its line: of 2,048
// keys that meet a line with one entry, one takes it for its own. Chosen.
const dictTells = 11

// tag returns the tag of a mixed hash.
func (t *DictTable) tag(h uint64) uint64 {
	window := t.Window
	if h <= t.Rest {
		window = t.OldWindow
	}
	if tag := h >> window & 0xffff; tag != 0 {
		return tag
	}
	return 1
}

// home returns the home line of a mixed hash.
func (t *DictTable) home(h uint64) uint64 {
	lines := t.Lines
	if h <= t.Rest {
		lines = t.Old
	}
	line, _ := bits.Mul64(h, lines)
	return line
}

// dictLine is one line.
type dictLine [DictLineWords]uint64

// line returns line n.
func (t *DictTable) line(n uint64) *dictLine { return (*dictLine)(t.Words[n*DictLineWords:]) }

func (l *dictLine) tag(slot uint64) uint64      { return l[slot>>2] >> (16 * (slot & 3)) & 0xffff }
func (l *dictLine) position(slot uint64) uint32 { return uint32(l[3+slot>>1] >> (32 * (slot & 1))) }
func (l *dictLine) overflow() uint64            { return l[2] >> 32 & dictFull }

// free returns a bit for each free slot.
func (l *dictLine) free() uint32 {
	return zeroLanes(l[0]) | zeroLanes(l[1])<<4 | zeroLanes(l[2])&3<<8
}

// zeroLanes returns a bit for each 16-bit lane of w that is 0.
func zeroLanes(w uint64) uint32 {
	const low = dictHighs - dictOnes // all bits of a lane but the highest
	zero := ^(w&low + low | w) & dictHighs >> 15
	// One bit a lane, at 0, 16, 32 and 48, to 48 to 51.
	return uint32(zero * (1<<48 | 1<<33 | 1<<18 | 1<<3) >> 48 & 0xf)
}

// put fills a free slot.
func (l *dictLine) put(slot, tag uint64, position uint32) {
	l[slot>>2] |= tag << (16 * (slot & 3))
	w, shift := &l[3+slot>>1], 32*(slot&1)
	*w = *w&^(0xffffffff<<shift) | uint64(position)<<shift
}

// clear frees a slot.
func (l *dictLine) clear(slot uint64) { l[slot>>2] &^= 0xffff << (16 * (slot & 3)) }

// count and uncount add and take off n keys that went past the line.
func (l *dictLine) count(n uint64) {
	if was := l.overflow(); was != dictFull {
		l[2] += min(n, dictFull-was) * dictOverflow
	}
}

func (l *dictLine) uncount(n uint64) {
	if l.overflow() != dictFull {
		l[2] -= n * dictOverflow
	}
}

// DictInsert enters keys[i] at position first+i for each i, and writes to hits
// the indices whose tag stood in a searched line already: the keys that may have
// another position. It returns the number of hits.
//
// Shape: len(hits) >= len(keys); lines have free slots, see [DictTable]: when a
// key finds none up to the end of t.Words, DictInsert panics.
// Cost: one cache line a key while lines do not overflow.
func DictInsert(t *DictTable, keys []uint64, first uint32, hits []uint32) int {
	hits = hits[:len(keys)]
	var n int
	switch {
	case cpu.AVX512:
		n = dictInsertAVX512(t, keys, first, hits)
	case cpu.AVX2:
		n = dictInsertAVX2(t, keys, first, hits)
	default:
		n = dictInsertGeneric(t, keys, first, hits)
	}
	if n < 0 {
		panic("BUG: asm: insert past the end of a dictionary")
	}
	return n
}

// DictDelete takes out keys[i] at position first+i for each i, and returns how
// many it did not find, which is 0 unless the caller is wrong.
//
// Cost as in [DictInsert].
func DictDelete(t *DictTable, keys []uint64, first uint32) int {
	switch {
	case cpu.AVX512:
		return dictDeleteAVX512(t, keys, first)
	case cpu.AVX2:
		return dictDeleteAVX2(t, keys, first)
	}
	return dictDeleteGeneric(t, keys, first)
}

// DictProbe is [DictFind] for many keys, each of which is given one candidate:
// out[i] is the first position whose tag is keys[i]'s, 0 when there is none.
//
// Shape: len(out) >= len(keys).
func DictProbe(t *DictTable, keys []uint64, out []uint32) {
	out = out[:len(keys)]
	switch {
	case cpu.AVX512:
		dictProbeAVX512(t, keys, out)
	case cpu.AVX2:
		dictProbeAVX2(t, keys, out)
	default:
		dictProbeGeneric(t, keys, out)
	}
}

// DictPrefetch asks for the home lines of keys, which a DictInsert or DictDelete
// will soon want: what is done in between takes place while they come. The twin
// does nothing.
//
// Shape: at most some 128 keys, so that their lines stay in the cache.
func DictPrefetch(t *DictTable, keys []uint64) {
	if cpu.AVX2 && t.Lines > 0 {
		dictPrefetchAVX2(t, keys)
	}
}

// DictFind writes to out the positions whose tag is key's, in search order, and
// returns how many there are, which may be more than out has room for.
func DictFind(t *DictTable, key uint64, out []uint32) int {
	h := dictHash(key)
	return dictFind(t, t.home(h), t.tag(h), out)
}
