// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"math/bits"
	"sync/atomic"
)

// andShared is [AndWords] in Go.
func andShared(keep, cand, words []uint64) (all bool) {
	var lost uint64
	keep = keep[:len(cand)]
	for i, c := range cand {
		var w uint64
		if i < len(words) {
			w = atomic.LoadUint64(&words[i])
		}
		keep[i] = c & w
		lost |= c &^ w
	}
	return lost == 0
}

// listBits is [ListBits] in Go.
func listBits(dst, words []uint64, add uint64) int {
	n := 0
	for i := range words {
		for m := atomic.LoadUint64(&words[i]); m != 0; m &= m - 1 {
			if n < len(dst) {
				dst[n] = add + uint64(i*64+bits.TrailingZeros64(m))
			}
			n++
		}
	}
	return n
}

// byteLists holds for each byte the numbers of its set bits, ascending, one byte
// each: what the variants of [ListBits] widen.
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
