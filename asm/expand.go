// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's lookup, with the slots that hold a chain.
// Hop after: the caller's matches.

package asm

import "kindex/asm/internal/cpu"

// ExpandWords is the words of one element that [ExpandSlots] writes.
const ExpandWords = 4

// ExpandSlots writes for each bit i that is set in both set and mask, ascending,
// the four words ids[i], depth, depth, depth to dst, and returns how many bits
// those are. It writes nothing past dst, but perhaps past what it returns.
//
// Shape: len(mask) >= len(set), len(ids) >= 64*len(set), len(dst) >= 4 for each bit
// of both.
func ExpandSlots(dst, ids []uint32, set, mask []uint64, depth uint32) (n int) {
	if len(set) == 0 {
		return 0
	}
	mask, ids = mask[:len(set)], ids[:64*len(set)]
	room := len(dst) / ExpandWords
	switch {
	case room == 0:
		n = expandSlots(nil, ids, set, mask, depth)
	case cpu.AVX512:
		n = expandSlotsAVX512(&dst[0], room, &ids[0], &set[0], &mask[0], len(set), depth)
	case cpu.AVX2:
		n = expandSlotsAVX2(&dst[0], room, &ids[0], &set[0], &mask[0], len(set), depth, &byteLists)
	default:
		n = expandSlots(dst, ids, set, mask, depth)
	}
	if n > room {
		panic("BUG: asm: ExpandSlots: dst is too short")
	}
	return n
}
