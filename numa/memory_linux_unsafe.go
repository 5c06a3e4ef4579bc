// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is address space whose usable prefix grows.
//
// Concurrency: one owner calls Commit and Release. The memory itself is whoever's
// the owner says; Commit never moves it.
type Region struct {
	base      unsafe.Pointer
	reserved  uint64 // bytes
	committed uint64 // bytes, the usable prefix
}

// Reserve takes bytes of address space, rounded up to whole huge pages. It costs
// no memory: pages are mapped without access until Commit.
//
// Errors: the kernel's, when the address space or its limit does not allow it.
func Reserve(bytes uint64) (*Region, error) {
	bytes = roundUp(max(bytes, 1), HugePage)
	// One huge page more, so that the base can be aligned to one.
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(bytes+HugePage), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("numa: reserve %d bytes of address space: %w", bytes, err)
	}
	skip := roundUp(uint64(uintptr(p)), HugePage) - uint64(uintptr(p))
	base := unsafe.Add(p, skip)
	if skip > 0 {
		_ = unix.MunmapPtr(p, uintptr(skip)) // best effort: it is address space only
	}
	if rest := HugePage - skip; rest > 0 {
		_ = unix.MunmapPtr(unsafe.Add(base, bytes), uintptr(rest))
	}
	usage.reserved.Add(int64(bytes))
	return &Region{base: base, reserved: bytes}, nil
}

// Base returns the first byte. Aligned to a huge page.
func (r *Region) Base() unsafe.Pointer { return r.base }

// at returns the address off bytes into r.
func (r *Region) at(off uint64) unsafe.Pointer { return unsafe.Add(r.base, off) }

// Reserved returns the size of the address space in bytes.
func (r *Region) Reserved() uint64 { return r.reserved }

// Committed returns the size of the usable prefix in bytes.
func (r *Region) Committed() uint64 { return r.committed }

// Commit makes at least the first bytes usable, zeroed where they were not
// before, in whole huge pages. All but the first huge page are advised to be huge: a small owner takes small pages.
//
// Errors: past the reservation, or the kernel's when its commit limit is reached.
func (r *Region) Commit(bytes uint64) error {
	bytes = roundUp(bytes, HugePage)
	if bytes <= r.committed {
		return nil
	}
	if bytes > r.reserved {
		return fmt.Errorf("numa: commit of %d bytes past the %d reserved", bytes, r.reserved)
	}
	piece := unsafe.Slice((*byte)(r.at(r.committed)), bytes-r.committed)
	if err := unix.Mprotect(piece, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("numa: commit %d bytes: %w", len(piece), err)
	}
	if r.committed > 0 {
		adviseHuge(piece)
	} else if len(piece) > HugePage {
		adviseHuge(piece[HugePage:])
	}
	usage.committed.Add(int64(bytes - r.committed))
	r.committed = bytes
	return nil
}

// Release gives everything back. Nobody may touch the memory any more.
func (r *Region) Release() error {
	if r.base == nil {
		return nil
	}
	usage.reserved.Add(-int64(r.reserved))
	usage.committed.Add(-int64(r.committed))
	base := r.base
	r.base = nil
	if err := unix.MunmapPtr(base, uintptr(r.reserved)); err != nil {
		return fmt.Errorf("numa: release: %w", err)
	}
	return nil
}

// Resident returns how many bytes of the usable prefix lie in memory now.
//
// Cost: one system call per 128 MiB; for metrics and tests.
func (r *Region) Resident() (uint64, error) {
	page := uint64(os.Getpagesize())
	vec := make([]byte, 32<<10)
	var resident uint64
	for off := uint64(0); off < r.committed; {
		n := min(r.committed-off, uint64(len(vec))*page)
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(r.at(off)), uintptr(n), uintptr(unsafe.Pointer(&vec[0]))); errno != 0 {
			return 0, fmt.Errorf("numa: mincore: %w", errno)
		}
		for _, v := range vec[:(n+page-1)/page] {
			resident += uint64(v&1) * page
		}
		off += n
	}
	return resident, nil
}

// NewBlock returns a block of words uint64s, all of it in memory: whoever wants one
// is about to write everywhere in it.
//
// Errors: the kernel's when there is no memory to be had.
func NewBlock(words int) (*Block, error) {
	size := roundUp(uint64(words)*8, uint64(os.Getpagesize()))
	raw, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("numa: map %d bytes: %w", size, err)
	}
	if size >= HugePage {
		adviseHuge(raw)
	}
	// All pages at once cost a fraction of a fault for each. Kernels before 5.14 do
	// not know it and fault as they go.
	_ = unix.Madvise(raw, unix.MADV_POPULATE_WRITE)
	usage.blocks.Add(int64(words) * 8)
	return &Block{words: unsafe.Slice((*uint64)(unsafe.Pointer(&raw[0])), words), raw: raw}, nil
}

// Release gives the block back. Nobody may touch its words any more.
func (b *Block) Release() error {
	if b.raw == nil {
		return nil
	}
	usage.blocks.Add(-int64(len(b.words)) * 8)
	raw := b.raw
	b.raw, b.words = nil, nil
	if err := unix.Munmap(raw); err != nil {
		return fmt.Errorf("numa: unmap: %w", err)
	}
	return nil
}

// adviseHuge asks for huge pages. A kernel without them goes on with small ones.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
