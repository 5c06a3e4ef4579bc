// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's batched lookups and its sweeps, between two stages.
// Hop after: the cache. Hints to the processor, which change no result.

package asm

import (
	"unsafe"

	"kindex/asm/internal/cpu"
)

// Prefetch asks for the cache line at p, which need not be mapped.
//
// The generic twins of all hints do nothing: Go has no way to say them, and a plain
// load would wait for what is only a wish.
func Prefetch(p unsafe.Pointer) {
	if cpu.AVX2 {
		prefetchAVX2(p)
	}
}

// PrefetchLines asks for the lines of 64 bytes with the numbers lines from base.
func PrefetchLines(base unsafe.Pointer, lines []uint32) {
	if cpu.AVX2 && len(lines) > 0 {
		prefetchLinesAVX2(base, &lines[0], len(lines))
	}
}

// PrefetchRange asks for n lines of 64 bytes from the one that p is in.
func PrefetchRange(p unsafe.Pointer, n int) {
	if cpu.AVX2 && n > 0 {
		prefetchRangeAVX2(p, n)
	}
}

// Pause tells the processor that the caller waits for another one's store. It takes
// some 25 ns on Zen 4 and 5.
func Pause() {
	if cpu.AVX2 {
		pauseAVX2()
	}
}
