// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

// Times below are nanoseconds a call for the twin, AVX2 and AVX-512, Zen 4, data in
// the first cache, minima of interleaved repeats in one process. From 64 words on
// both variants are bound by the same 32 bytes a cycle there.
//
//	words     8             16            64             376             512
//	forward   6.9 4.4 4.4   11  4.5 4.3   13  7.5 7.7    72  29.9 30.4   85  39 41
//	reverse   6.7 5.1 4.8   11  5.0 5.0   37  8.3 8.1   212  30.5 31.4  285  40 42

// matchForwardAVX512 is [MatchForward] for two windows of n words, n >= 0. Saves 5
// ns at 64 words, 42 at 376.
//
//go:noescape
func matchForwardAVX512(a, b *uint64, n int) int

// matchForwardAVX2 is [MatchForward] for two windows of n words, n >= 4. Saves 5 ns
// at 64 words, 42 at 376.
//
//go:noescape
func matchForwardAVX2(a, b *uint64, n int) int

// matchReverseAVX512 is [MatchReverse] for two windows of n words, n >= 0. Saves 29
// ns at 64 words, 180 at 376.
//
//go:noescape
func matchReverseAVX512(a, b *uint64, n int) int

// matchReverseAVX2 is [MatchReverse] for two windows of n words, n >= 4. Saves 29
// ns at 64 words, 181 at 376.
//
//go:noescape
func matchReverseAVX2(a, b *uint64, n int) int
