// SPDX-License-Identifier: Apache-2.0

// Hop before: shard's lookup, with a run and the rest of a chain.
// Hop after: none.

package asm

import (
	"sync/atomic"
	"unsafe"
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
const (
	RunHeaderWords = 8
	runLength      = 1
	runLengthShift = 32
	runLengthMask  = 0xffff
)

// ReadRun copies the header at run to out and returns how many leading words of
// chain equal the run's content, all under the run's version: when ok, there was
// no structural change while it read. Words that the writer may change without
// a version (length, entries, stamp) are each read once, the entries before the
// stamp, as the protocol of shard's gap stamps wants.
//
// Shape: run points to a header in memory that stays a run's header for ever,
// with room behind it for any length that stood there.
// Concurrency: any number of readers against one writer. Neither blocks nor
// retries: ok is false when the version was odd or changed.
func ReadRun(run *uint64, chain []uint64, out *[RunHeaderWords]uint64) (match int, ok bool) {
	base := unsafe.Pointer(run)
	version := atomic.LoadUint64(run)
	if version&1 != 0 {
		return 0, false
	}
	out[0] = version
	for _, k := range [...]uintptr{1, 2, 3, 5, 6, 7, 4} {
		out[k] = atomic.LoadUint64((*uint64)(unsafe.Add(base, k*8)))
	}
	n := min(int(out[runLength]>>runLengthShift&runLengthMask), len(chain))
	match = matchShared(unsafe.Add(base, RunHeaderWords*8), chain[:n])
	return match, atomic.LoadUint64(run) == version
}
