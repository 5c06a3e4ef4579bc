// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"unsafe"

	"kindex/internal/kv"
)

// A match is four words of 32 bits, as [kindex/asm.ExpandSlots] writes them.
var _ [16]byte = [unsafe.Sizeof(kv.Match{})]byte{}

// matchWords returns matches as plain words, aliasing them.
func matchWords(m []kv.Match) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(m))), 4*len(m))
}
