// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

// andWordsAVX512 is [AndWords] for n words of cand and m of bits.
//
//go:noescape
func andWordsAVX512(keep, cand *uint64, n int, bits *uint64, m int) (all bool)

// andWordsAVX2 is [AndWords] for n words of cand and m of bits.
//
//go:noescape
func andWordsAVX2(keep, cand *uint64, n int, bits *uint64, m int) (all bool)

// listBitsAVX512 is [ListBits] for n elements of dst and m >= 1 words of bits.
//
//go:noescape
func listBitsAVX512(dst *uint64, n int, bits *uint64, m int, add uint64) int

// listBitsAVX2 is [ListBits] for n elements of dst and m >= 1 words of bits.
//
//go:noescape
func listBitsAVX2(dst *uint64, n int, bits *uint64, m int, add uint64, lists *[256]uint64) int
