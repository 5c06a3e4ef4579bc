// SPDX-License-Identifier: Apache-2.0

package asm

// matchChunk is the words compared at once; the runtime's own compare of such
// an array uses what vector instructions the machine has. Chosen by measurement:
// 16 and 64 are slower for windows of 20 to 400.
const matchChunk = 32

// matchForward is [MatchForward] for two windows of one length.
func matchForward(a, b []uint64) int {
	i := 0
	for ; i+matchChunk <= len(a); i += matchChunk {
		if *(*[matchChunk]uint64)(a[i:]) != *(*[matchChunk]uint64)(b[i:]) {
			break
		}
	}
	for ; i < len(a); i++ {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// matchReverse is [MatchReverse] for two windows of one length.
func matchReverse(a, b []uint64) int {
	for i, w := range b {
		if a[len(a)-1-i] != w {
			return i
		}
	}
	return len(b)
}
