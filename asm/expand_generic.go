// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's lookup, with the slots that hold a chain.
// Hop after: the caller's matches.

package asm

import "math/bits"

// ExpandWords is the words of one element that [ExpandSlots] writes.
const ExpandWords = 4

// ExpandSlots writes for each bit i that is set in both set and mask, ascending,
// the four words ids[i], depth, depth, depth to dst, and returns how many bits
// those are. It writes nothing past them.
//
// Shape: len(mask) >= len(set), len(ids) >= 64*len(set), len(dst) >= 4 for each bit
// of both.
func ExpandSlots(dst, ids []uint32, set, mask []uint64, depth uint32) (n int) {
	mask = mask[:len(set)]
	for i, m := range set {
		names := ids[i*64:][:64]
		for m &= mask[i]; m != 0; m &= m - 1 {
			*(*[ExpandWords]uint32)(dst[n*ExpandWords:]) = [ExpandWords]uint32{names[bits.TrailingZeros64(m)&63], depth, depth, depth}
			n++
		}
	}
	return n
}
