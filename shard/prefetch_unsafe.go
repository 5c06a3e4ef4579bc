// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"unsafe"

	"kindex/asm"
)

// prefetch asks for n lines of 64 bytes from the one that w is in.
func prefetch(w *uint64, n int) { asm.PrefetchRange(unsafe.Pointer(w), n) }

// prefetch asks for lines of the arena.
func (a *arena) prefetch(lines []uint32) { asm.PrefetchLines(unsafe.Pointer(a.w(0, 0)), lines) }
