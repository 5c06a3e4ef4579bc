// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"sync/atomic"
	"unsafe"
)

// readRun is [ReadRun] in Go.
func readRun(run *uint64, chain []uint64, out *[RunHeaderWords]uint64) (match int, ok bool) {
	version := atomic.LoadUint64(run)
	if version&1 != 0 {
		return 0, false
	}
	match = readHeader(run, version, chain, out)
	return match, atomic.LoadUint64(run) == version
}

// readHeader is what stands between the two looks at the version.
func readHeader(run *uint64, version uint64, chain []uint64, out *[RunHeaderWords]uint64) (match int) {
	base := unsafe.Pointer(run)
	out[0] = version
	for _, k := range [...]uintptr{1, 2, 3, 5, 6, 7, 4} {
		out[k] = atomic.LoadUint64((*uint64)(unsafe.Add(base, k*8)))
	}
	n := min(int(out[runLength]>>runLengthShift&runLengthMask), len(chain))
	return matchShared(unsafe.Add(base, RunHeaderWords*8), chain[:n])
}

// readRunAnd is [ReadRunAnd] in Go.
func readRunAnd(run *uint64, chain []uint64, out *RunRead, lines unsafe.Pointer, cand, keep []uint64) (match int, all, ok bool) {
	version := atomic.LoadUint64(run)
	if version&1 != 0 {
		return 0, false, false
	}
	match = readHeader(run, version, chain, &out.Header)
	if holders := uint32(out.Header[runHolders]); holders != 0 && match != 0 {
		block := unsafe.Add(lines, uintptr(holders)*lineBytes)
		for k := range out.Block {
			out.Block[k] = atomic.LoadUint64((*uint64)(unsafe.Add(block, k*8)))
		}
		width := int(uint16(out.Block[0]))
		all = andShared(keep, cand, unsafe.Slice((*uint64)(unsafe.Add(block, HolderBlockWords*8)), width))
		out.Header[runGap] = atomic.LoadUint64((*uint64)(unsafe.Add(unsafe.Pointer(run), runGap*8)))
	}
	return match, all, atomic.LoadUint64(run) == version
}

// andShared makes keep the bits that cand and words share, and reports whether those
// are all of cand's. What words lacks counts as zeros; each is loaded once.
func andShared(keep, cand, words []uint64) (all bool) {
	var lost uint64
	keep = keep[:len(cand)]
	for i, c := range cand {
		var w uint64
		if i < len(words) {
			w = atomic.LoadUint64(&words[i])
		}
		keep[i] = c & w
		lost |= c &^ w
	}
	return lost == 0
}
