// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

// Times below are nanoseconds a call for the twin, AVX2 and AVX-512, measured as
// those of match_amd64.go; ListBits with so many bits of 128 or of 1,024 set.
//
//	AndWords, words   4             8             16             64
//	                  5.3 4.7 4.7   8.0 5.0 4.8   13 5.8 5.4     46 12 9
//	ListBits, bits    16 of 128     128 of 128    128 of 1,024   1,024 of 1,024
//	                  14 11 11      89 13 12      93 66 66       705 77 77

// andWordsAVX512 is [AndWords] for n words of cand and m of bits. Saves 3 ns at 8
// words, 37 at 64.
//
//go:noescape
func andWordsAVX512(keep, cand *uint64, n int, bits *uint64, m int) (all bool)

// andWordsAVX2 is [AndWords] for n words of cand and m of bits. Saves 3 ns at 8
// words, 34 at 64.
//
//go:noescape
func andWordsAVX2(keep, cand *uint64, n int, bits *uint64, m int) (all bool)

// listBitsAVX512 is [ListBits] for n elements of dst and m >= 1 words of bits. Saves
// 77 ns for 128 bits of 128, none for fewer than 10 a word.
//
//go:noescape
func listBitsAVX512(dst *uint64, n int, bits *uint64, m int, add uint64, lists *[256]uint64) int

// listBitsAVX2 is [ListBits] for n elements of dst and m >= 1 words of bits. Saves
// 76 ns for 128 bits of 128, none for fewer than 10 a word.
//
//go:noescape
func listBitsAVX2(dst *uint64, n int, bits *uint64, m int, add uint64, lists *[256]uint64) int
