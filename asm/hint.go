// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's batched lookups and its sweeps, between two stages.
// Hop after: the cache. Hints to the processor, which change no result.

package asm

import (
	"unsafe"

	"kindex/asm/internal/cpu"
)

// PrefetchRange asks for n lines of 64 bytes from the one that p is in, which need
// not be mapped.
//
// The generic twins of all hints do nothing: Go has no way to say them, and a plain
// load would wait for what is only a wish.
func PrefetchRange(p unsafe.Pointer, n int) {
	if cpu.AVX2 && n > 0 {
		prefetchRangeAVX2(p, n)
	}
}

// PrefetchLines asks for the lines of 64 bytes with the numbers lines from base, into
// the second cache: it has room for more requests under way than the first.
func PrefetchLines(base unsafe.Pointer, lines []uint32) {
	if cpu.AVX2 && len(lines) > 0 {
		prefetchLinesAVX2(base, &lines[0], len(lines))
	}
}

// Pause tells the processor that the caller waits for another one's store. It takes
// some 25 ns on Zen 4 and 5.
func Pause() {
	if cpu.AVX2 {
		pauseAVX2()
	}
}
