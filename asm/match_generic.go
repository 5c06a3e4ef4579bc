// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's writer, with an event's hashes and a window of a run.
// Hop after: none.

package asm

// matchChunk is the words compared at once; the runtime's own compare of such
// an array uses what vector instructions the machine has. Chosen by measurement:
// 16 and 64 are slower for windows of 20 to 400.
const matchChunk = 32

// MatchForward returns how many leading words a and b have in common.
func MatchForward(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	i := 0
	for ; i+matchChunk <= n; i += matchChunk {
		if *(*[matchChunk]uint64)(a[i:]) != *(*[matchChunk]uint64)(b[i:]) {
			break
		}
	}
	for ; i < n; i++ {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// MatchReverse returns how many words of b, from its beginning, equal those of
// a from its end backwards: b[i] == a[len(a)-1-i].
func MatchReverse(a, b []uint64) int {
	n := min(len(a), len(b))
	a = a[len(a)-n:]
	for i, w := range b[:n] {
		if a[n-1-i] != w {
			return i
		}
	}
	return n
}
