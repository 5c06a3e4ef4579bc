// SPDX-License-Identifier: Apache-2.0

// Before: a prompt's content hashes. After: table.go.

package overlay

import (
	"math/bits"

	"kindex/internal/kv"
)

// appendChain appends the prefix hashes of hashes, in the namespace of seed.
func appendChain(dst []uint64, seed uint64, hashes []kv.ContentHash) []uint64 {
	for _, c := range hashes {
		seed = link(seed, uint64(c))
		dst = append(dst, seed)
	}
	return dst
}

// link returns the prefix hash of one block more: a multiplication of 128 bits, folded,
// so that order counts and each bit moves all.
func link(prefix, content uint64) uint64 {
	hi, lo := bits.Mul64(prefix^0x9E37_79B9_7F4A_7C15, content^0xD6E8_FEB8_6659_FD93)
	return bits.RotateLeft64(prefix, 29) ^ hi ^ lo ^ content
}

// common returns how many blocks a and b begin with alike, given that at least the
// first known are.
func common(a, b []uint64, known int) int {
	lo, hi := known, min(len(a), len(b)) // equal at lo, not known at hi
	if hi <= lo || a[hi-1] == b[hi-1] {
		return hi
	}
	hi--
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if a[mid-1] == b[mid-1] {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// anchors is how many anchors a chain of n blocks has: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12,
// 14, 16, 20 and so on, up to n.
func anchors(n int) int {
	if n < 8 {
		return n
	}
	octave := bits.Len(uint(n)) - 1 // n is in [2^octave, 2^(octave+1))
	return 8 + 4*(octave-3) + (n >> (octave - 2) & 3)
}

// anchor returns the length of the i-th anchor, from 0 on.
func anchor(i int) int {
	if i < 8 {
		return i + 1
	}
	i -= 7 // steps after 8
	return (4 + i&3) << (i>>2 + 1)
}
