// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

import "unsafe"

// Every machine of this kind can prefetch; the level generic, which stands for
// plain Go, does not.

// prefetchAVX2 is [Prefetch].
//
//go:noescape
func prefetchAVX2(p unsafe.Pointer)

// prefetchLinesAVX2 is [PrefetchLines] for n >= 1 lines.
//
//go:noescape
func prefetchLinesAVX2(base unsafe.Pointer, lines *uint32, n int)

// prefetchRangeAVX2 is [PrefetchRange] for n >= 1 lines.
//
//go:noescape
func prefetchRangeAVX2(p unsafe.Pointer, n int)
