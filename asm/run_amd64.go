// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

import "unsafe"

// Times below are nanoseconds a call for the twin, AVX2 and AVX-512, measured as
// those of match_amd64.go, ReadRunAnd with 512 slots. Prefetching a run's contents
// from within gains nothing where they are far away: the machine sees by itself
// that they are read in a row.
//
//	words        1             8             64             376            512
//	ReadRun      18 4.5 4.9    24 5.2 4.9    33  8.3 8.3    79 30.6 31.5    96 40 42
//	ReadRunAnd   32 8.9 9.4    36 9.7 10.0   44 12.7 12.3   89 35.2 35.7   108 45 46

// readRunAVX512 is [ReadRun] for a chain of n words. Saves 24 ns at 64 words, 47 at
// 376.
//
//go:noescape
func readRunAVX512(run, chain *uint64, n int, out *[RunHeaderWords]uint64) (match int, ok bool)

// readRunAVX2 is [ReadRun] for a chain of n words. Saves 24 ns at 64 words, 48 at
// 376.
//
//go:noescape
func readRunAVX2(run, chain *uint64, n int, out *[RunHeaderWords]uint64) (match int, ok bool)

// readRunAndAVX512 is [ReadRunAnd] for a chain of n and bitsets of m words. Saves 31
// ns at 64 words, 53 at 376.
//
//go:noescape
func readRunAndAVX512(run, chain *uint64, n int, out *RunRead, lines unsafe.Pointer, cand, keep *uint64, m int) (match int, all, ok bool)

// readRunAndAVX2 is [ReadRunAnd] for a chain of n and bitsets of m words. Saves 31
// ns at 64 words, 53 at 376.
//
//go:noescape
func readRunAndAVX2(run, chain *uint64, n int, out *RunRead, lines unsafe.Pointer, cand, keep *uint64, m int) (match int, all, ok bool)
