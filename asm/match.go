// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's writer, with an event's hashes and a window of a run.
// Hop after: none.

package asm

import "kindex/asm/internal/cpu"

// matchShort is the window up to which the twin, which needs no call of assembly,
// is as fast. Measured: see the benchmarks of this package.
const matchShort = 4

// MatchForward returns how many leading words a and b have in common.
func MatchForward(a, b []uint64) int {
	n := min(len(a), len(b))
	switch {
	case n <= matchShort:
	case cpu.AVX512:
		return matchForwardAVX512(&a[0], &b[0], n)
	case cpu.AVX2:
		return matchForwardAVX2(&a[0], &b[0], n)
	}
	return matchForward(a[:n], b[:n])
}

// MatchReverse returns how many words of b, from its beginning, equal those of
// a from its end backwards: b[i] == a[len(a)-1-i].
func MatchReverse(a, b []uint64) int {
	n := min(len(a), len(b))
	a = a[len(a)-n:]
	switch {
	case n <= matchShort:
	case cpu.AVX512:
		return matchReverseAVX512(&a[0], &b[0], n)
	case cpu.AVX2:
		return matchReverseAVX2(&a[0], &b[0], n)
	}
	return matchReverse(a, b[:n])
}
