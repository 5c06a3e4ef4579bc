// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's lookup, with a bitset of slots.
// Hop after: shard's lookup, with slots one by one.

package asm

import (
	"unsafe"

	"kindex/asm/internal/cpu"
)

// MaxAndWords is the longest bitset that [ReadRunAnd] and [AndWords] take: all slots
// of a core.
const MaxAndWords = 1 << 10

// AndWords makes keep the bits that cand and bits share, and reports whether those
// are all of cand's. What bits lacks counts as zeros.
//
// Shape: len(keep) >= len(cand); keep may be cand.
// Concurrency: bits may be changing: each word is loaded once.
func AndWords(keep, cand, bits []uint64) (all bool) {
	if len(keep) < len(cand) || len(cand) > MaxAndWords {
		panic("BUG: asm: AndWords: keep is shorter than cand, or cand too long")
	}
	switch {
	case len(cand) <= andShort:
	case cpu.AVX512:
		return andWordsAVX512(unsafe.SliceData(keep), unsafe.SliceData(cand), len(cand), unsafe.SliceData(bits), len(bits))
	case cpu.AVX2:
		return andWordsAVX2(unsafe.SliceData(keep), unsafe.SliceData(cand), len(cand), unsafe.SliceData(bits), len(bits))
	}
	return andShared(keep, cand, bits)
}

// andShort is the bitset up to which the twin is as fast.
const andShort = 2

// ListBits writes add+i to dst for each bit i that is set in bits, ascending, and
// returns how many those are, which may be more than dst has room for.
//
// The caller picks what an element of dst is by add: with the low half 0 and the
// high half a depth, it is slot and depth as two halves of one word.
//
// Shape: elements of dst past the result mean nothing. Fastest where dst has room
// for 8 more than are listed.
// Concurrency: bits may be changing: each word is loaded once.
func ListBits(dst, bits []uint64, add uint64) int {
	switch {
	case len(bits) == 0:
		return 0
	case cpu.AVX512:
		return listBitsAVX512(unsafe.SliceData(dst), len(dst), &bits[0], len(bits), add, &byteLists)
	case cpu.AVX2:
		return listBitsAVX2(unsafe.SliceData(dst), len(dst), &bits[0], len(bits), add, &byteLists)
	}
	return listBits(dst, bits, add)
}
