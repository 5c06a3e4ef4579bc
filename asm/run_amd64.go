// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

import "unsafe"

// readRunAVX512 is [ReadRun] for a chain of n words.
//
//go:noescape
func readRunAVX512(run, chain *uint64, n int, out *[RunHeaderWords]uint64) (match int, ok bool)

// readRunAVX2 is [ReadRun] for a chain of n words.
//
//go:noescape
func readRunAVX2(run, chain *uint64, n int, out *[RunHeaderWords]uint64) (match int, ok bool)

// readRunAndAVX512 is [ReadRunAnd] for a chain of n and bitsets of m words.
//
//go:noescape
func readRunAndAVX512(run, chain *uint64, n int, out *RunRead, lines unsafe.Pointer, cand, keep *uint64, m int) (match int, all, ok bool)

// readRunAndAVX2 is [ReadRunAnd] for a chain of n and bitsets of m words.
//
//go:noescape
func readRunAndAVX2(run, chain *uint64, n int, out *RunRead, lines unsafe.Pointer, cand, keep *uint64, m int) (match int, all, ok bool)
