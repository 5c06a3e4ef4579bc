// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Discard gives the memory of n bytes at off of the usable prefix back to the
// system, but for small pages that are only partly within; the address space stays.
// What was given back reads as zeros, and is memory again once it is written to.
// Others may be reading it meanwhile: they see the old words or zeros.
//
// Of a huge page that is only partly within, the rest stays where it is, in small
// pages, and the kernel is asked not to make it huge again: it would take back what
// was given, as it does by default as soon as one small page of 512 is in use. See
// [Region.AdviseHuge].
//
// Errors: the kernel's; memory that is locked, for one, stays.
// Cost: 5 to 50 us for a huge page or a part of it, and the answers of all CPUs that
// run threads of this process, for which it is not the caller who keeps its CPU busy.
func (r *Region) Discard(off, n uint64) error {
	page := uint64(os.Getpagesize())
	from, to := roundUp(off, page), (off+n)&^(page-1)
	if to > r.committed.Load() {
		return fmt.Errorf("numa: discard of %d bytes at %d, past the %d that are usable", n, off, r.committed.Load())
	}
	if to <= from {
		return nil
	}
	first, last := from&^(HugePage-1), roundUp(to, HugePage)
	err := aside(func() error {
		if first != from {
			r.adviseSmall(first)
		}
		if last != to && (first == from || last-HugePage != first) {
			r.adviseSmall(last - HugePage)
		}
		return unix.Madvise(r.bytes(from, to-from), unix.MADV_DONTNEED)
	})
	if err != nil {
		return fmt.Errorf("numa: discard %d bytes: %w", to-from, err)
	}
	return nil
}

// AdviseHuge lets the kernel make one huge page of the HugePage bytes at off, a
// multiple of it, again, in its own time, after [Region.Discard] had parts of it.
func (r *Region) AdviseHuge(off uint64) {
	if off >= HugePage {
		adviseHuge(r.at(off), HugePage)
	}
}

// adviseSmall asks the kernel to make no huge page of those at off. A kernel without
// huge pages refuses, and has none.
func (r *Region) adviseSmall(off uint64) {
	if off >= HugePage {
		_ = unix.Madvise(r.bytes(off, HugePage), unix.MADV_NOHUGEPAGE)
	}
}

func (r *Region) bytes(off, n uint64) []byte {
	return unsafe.Slice((*byte)(r.at(off)), n)
}
