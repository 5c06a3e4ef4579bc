// SPDX-License-Identifier: Apache-2.0

package asm

import "math/bits"

// expandSlots is [ExpandSlots] in Go.
func expandSlots(dst, ids []uint32, set, mask []uint64, depth uint32) (n int) {
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

// byteLists holds for each byte the numbers of its set bits, ascending, one byte
// each: what the AVX2 variant picks ids by.
var byteLists = func() (t [256]uint64) {
	for b := range t {
		shift := 0
		for m := uint(b); m != 0; m &= m - 1 {
			t[b] |= uint64(bits.TrailingZeros(m)) << shift
			shift += 8
		}
	}
	return t
}()
