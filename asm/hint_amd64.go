// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

import "unsafe"

// Every machine of this kind has these; the level generic, which stands for plain
// Go, does without.

// prefetchRangeAVX2 is [PrefetchRange] for n >= 1 lines. Takes 1.5 ns for one line, 3.6
// for 8; a line that comes from memory meanwhile saves the 150 to 400 ns that
// waiting for it would take.
//
//go:noescape
func prefetchRangeAVX2(p unsafe.Pointer, n int)

// prefetchLinesAVX2 is [PrefetchLines] for n >= 1 lines. Takes 0.5 ns a line while they
// are at hand; a sweep of the dictionary takes a third less time with it.
//
//go:noescape
func prefetchLinesAVX2(base unsafe.Pointer, lines *uint32, n int)

// pauseAVX2 is [Pause]. Takes 25 ns, most of it on purpose.
//
//go:noescape
func pauseAVX2()
