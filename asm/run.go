// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's lookup, with a run and the rest of a chain.
// Hop after: none.

package asm

import (
	"unsafe"

	"kindex/asm/internal/cpu"
)

// A run's header is one line of 64 bytes; content hashes follow it.
//
//	word 0   version, odd while the structure changes
//	word 1   generation 32, length 16 (bits 32-47), flags and class 16
//	word 2   key: what the run hangs below
//	word 3   line of the external holder block 32 (0: none), index 32
//	word 4   gap stamp
//	word 5-7 inline holder entries
//	word 8.. content hashes, as many as the length says at least
//
// An external holder block begins with
//
//	word 0   words of its bitset 16, anything 48
//	word 1-2 counters
//	word 3.. the bitset: who holds the whole run
const (
	// MaxSlotWords is the longest bitset of slots: all of a core.
	MaxSlotWords     = 1 << 10
	RunHeaderWords   = 8
	HolderBlockWords = 3 // before the bitset

	runLength      = 1
	runLengthShift = 32
	runLengthMask  = 0xffff
	runHolders     = 3
	runGap         = 4
	lineBytes      = 64
)

// RunRead is what was seen of a run.
type RunRead struct {
	Header [RunHeaderWords]uint64
	// Block is the beginning of the external holder block, seen before its bitset
	// was; word 3 means nothing. Only [ReadRunAnd] fills it in, and only for a run
	// that has one and matches.
	Block [HolderBlockWords + 1]uint64
}

// ReadRun copies the header at run to out and returns how many leading words of
// chain equal the run's content, all under the run's version: when ok, there was
// no structural change while it read. Words that the writer may change without
// a version (length, entries, stamp) are each read once, the entries before the
// stamp, as the protocol of shard's gap stamps wants.
//
// Shape: run points to a header in memory that stays a run's header for ever,
// with room behind it for any length that stood there.
// Concurrency: any number of readers against one writer. Neither blocks nor
// retries: ok is false when the version was odd or changed, and out and match
// then mean nothing.
func ReadRun(run *uint64, chain []uint64, out *[RunHeaderWords]uint64) (match int, ok bool) {
	switch {
	case cpu.AVX512:
		return readRunAVX512(run, unsafe.SliceData(chain), len(chain), out)
	case cpu.AVX2:
		return readRunAVX2(run, unsafe.SliceData(chain), len(chain), out)
	}
	return readRun(run, chain, out)
}

// ReadRunAnd is [ReadRun], and takes in the coverage of a run with an external
// holder block: keep becomes the slots of cand that hold the whole run, and all
// says that none of cand was lost. The block's beginning is read before its
// bitset, the gap stamp in out after it, and the version after that.
//
// Without such a block, or when nothing matches, keep is as it was and all false.
//
// Shape: blocks lie at lines of 64 bytes from lines, which may be nil when no run
// has one; len(keep) >= len(cand), and both have at most [MaxSlotWords] words. Of
// the bitset and cand, what the other lacks counts as zeros. keep may be cand.
// Concurrency, result: as [ReadRun]; when not ok, keep means nothing either.
func ReadRunAnd(run *uint64, chain []uint64, out *RunRead, lines unsafe.Pointer, cand, keep []uint64) (match int, all, ok bool) {
	if len(keep) < len(cand) || len(cand) > MaxSlotWords {
		panic("BUG: asm: ReadRunAnd: keep is shorter than cand, or cand too long")
	}
	switch {
	case cpu.AVX512:
		return readRunAndAVX512(run, unsafe.SliceData(chain), len(chain), out, lines, unsafe.SliceData(cand), unsafe.SliceData(keep), len(cand))
	case cpu.AVX2:
		return readRunAndAVX2(run, unsafe.SliceData(chain), len(chain), out, lines, unsafe.SliceData(cand), unsafe.SliceData(keep), len(cand))
	}
	return readRunAnd(run, chain, out, lines, cand, keep)
}
