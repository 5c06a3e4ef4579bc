// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego && amd64

package asm

import "unsafe"

// matchShared returns how many words of chain, from its beginning, equal those
// at run, which the writer may be changing. Words are read whole and in some
// order; the version around the call tells whether that was one state. Saves
// about 60 % of the atomic form's time on 64 words.
func matchShared(run unsafe.Pointer, chain []uint64) int {
	return matchForward(unsafe.Slice((*uint64)(run), len(chain)), chain)
}
