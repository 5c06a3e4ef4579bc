// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"math/rand/v2"
	"unsafe"
)

// head returns n words right behind the lower guard.
func (f fence) head(n int) []uint64 { return f[:n:n] }

// tail returns n words right before the upper guard.
func (f fence) tail(n int) []uint64 { return f[len(f)-n:] }

// sides calls fn with n words at each guard.
func (f fence) sides(n int, fn func(words []uint64)) {
	fn(f.head(n))
	fn(f.tail(n))
}

func fill(r *rand.Rand, words []uint64) {
	for i := range words {
		words[i] = r.Uint64()
	}
}

// halves returns words as twice as many words of 32 bits.
func halves(words []uint64) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(words))), 2*len(words))
}

// firstDifference is where got and want differ first, for messages.
func firstDifference[E comparable](got, want []E) int {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return i
		}
	}
	return min(len(got), len(want))
}

// sparse fills words with bits of one density: none, few, half, most or all.
func sparse(r *rand.Rand, words []uint64) {
	density := r.IntN(5)
	for i := range words {
		switch density {
		case 0:
			words[i] = 0
		case 1:
			words[i] = 1<<r.IntN(64) | 1<<r.IntN(64)&r.Uint64()
		case 2:
			words[i] = r.Uint64()
		case 3:
			words[i] = r.Uint64() | r.Uint64() | r.Uint64()
		default:
			words[i] = ^uint64(0)
		}
	}
}
