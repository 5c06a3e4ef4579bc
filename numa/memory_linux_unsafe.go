// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is address space whose usable prefix grows.
//
// Concurrency: one owner calls Ahead, AdviseHuge, Commit, Discard, Refill and
// Release. Committed, Taken, Resident, Placed and PagesByNode are anybody's until
// Release. The memory itself is whoever's the owner says; Commit never moves it.
type Region struct {
	base      unsafe.Pointer
	reserved  uint64        // bytes
	committed atomic.Uint64 // bytes, the usable prefix; written by the owner
	binding
	taker
}

// Reserve takes bytes of address space, rounded up to whole huge pages, whose
// memory is to lie where p says. It costs no memory: pages are mapped without
// access until Commit. What the kernel does not allow of p is no error, see
// [Region.Placed].
//
// Errors: the kernel's, when the address space or its limit does not allow it.
func Reserve(bytes uint64, p Placement) (*Region, error) {
	bytes = roundUp(max(bytes, 1), HugePage)
	// One huge page more, so that the base can be aligned to one.
	m, err := unix.MmapPtr(-1, 0, nil, uintptr(bytes+HugePage), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("numa: reserve %d bytes of address space: %w", bytes, err)
	}
	skip := roundUp(uint64(uintptr(m)), HugePage) - uint64(uintptr(m))
	base := unsafe.Add(m, skip)
	if skip > 0 {
		_ = unix.MunmapPtr(m, uintptr(skip)) // best effort: it is address space only
	}
	if rest := HugePage - skip; rest > 0 {
		_ = unix.MunmapPtr(unsafe.Add(base, bytes), uintptr(rest))
	}
	r := &Region{base: base, reserved: bytes}
	// Advice and policy belong to the address space and come before any touch:
	// afterwards they would move nothing. A small owner takes small pages.
	if bytes > HugePage {
		adviseHuge(r.at(HugePage), bytes-HugePage)
	}
	r.bind(base, bytes, p)
	r.loosen(base, min(bytes, lazyPrefix))
	usage.reserved.Add(int64(bytes))
	enlist(r, p)
	return r, nil
}

// Base returns the first byte. Aligned to a huge page.
func (r *Region) Base() unsafe.Pointer { return r.base }

// at returns the address off bytes into r.
func (r *Region) at(off uint64) unsafe.Pointer { return unsafe.Add(r.base, off) }

// Reserved returns the size of the address space in bytes.
func (r *Region) Reserved() uint64 { return r.reserved }

// Committed returns the size of the usable prefix in bytes.
func (r *Region) Committed() uint64 { return r.committed.Load() }

// lazyPrefix is how much of a region is left to the first touch: it stands for
// little, and a small owner may never use it.
const lazyPrefix = HugePage

// Commit makes at least the first bytes usable, zeroed where they were not
// before, in whole huge pages. All but the first huge page are advised to be
// huge. Past the first, memory is taken here and not at the touch, so that a
// system without any says so by an error and not by a signal.
//
// Errors: past the reservation, or the kernel's when it has no memory.
// Cost: two system calls a huge page, which a goroutine of its own makes while the
// caller waits, unless they were made already: see [Region.Ahead].
func (r *Region) Commit(bytes uint64) error {
	bytes = roundUp(bytes, HugePage)
	committed := r.committed.Load()
	if bytes <= committed {
		return nil
	}
	if bytes > r.reserved {
		return fmt.Errorf("numa: commit of %d bytes past the %d reserved", bytes, r.reserved)
	}
	if err := r.await(bytes); err != nil {
		return fmt.Errorf("numa: commit %d bytes: %w", bytes-committed, err)
	}
	usage.committed.Add(int64(bytes - committed))
	r.committed.Store(bytes)
	return nil
}

// PagesByNode counts resident pages of the usable prefix by node, of at most
// samples places spread evenly over it. Few: none is resident.
//
// Errors: the kernel's, where a container forbids to ask.
// Cost: about 0.2 us a sample, no lock; for metrics and tests.
func (r *Region) PagesByNode(samples int) ([]NodePages, error) {
	return pagesByNode(r.base, r.committed.Load(), samples)
}

func (r *Region) size() uint64 { return r.committed.Load() }

// Placed returns what became of the placement asked for.
func (r *Region) Placed() Placed { return r.placed() }

// Release gives everything back. Nobody may touch the memory any more.
func (r *Region) Release() error {
	if r.base == nil {
		return nil
	}
	delist(r)
	r.rest()
	usage.reserved.Add(-int64(r.reserved))
	usage.committed.Add(-int64(r.committed.Load()))
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
	committed := r.committed.Load()
	for off := uint64(0); off < committed; {
		n := min(committed-off, uint64(len(vec))*page)
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

// NewBlock returns a block of words uint64s, all of it in memory, where p says:
// whoever wants one is about to write everywhere in it. What the kernel does not
// allow of p is no error, see [Block.Placed].
//
// Errors: the kernel's when there is no memory to be had.
func NewBlock(words int, p Placement) (*Block, error) {
	size := roundUp(uint64(words)*8, uint64(os.Getpagesize()))
	raw, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("numa: map %d bytes: %w", size, err)
	}
	base := unsafe.Pointer(&raw[0])
	b := &Block{words: unsafe.Slice((*uint64)(base), words), raw: raw}
	if size >= HugePage {
		adviseHuge(base, size)
	}
	b.bind(base, size, p)
	for off := uint64(0); off < size; off += HugePage {
		step := min(HugePage, size-off)
		if err := b.take(unsafe.Add(base, off), step, size-off); err != nil {
			_ = unix.Munmap(raw)
			return nil, fmt.Errorf("numa: map %d bytes: %w", size, err)
		}
	}
	usage.blocks.Add(int64(words) * 8)
	enlist(b, p)
	return b, nil
}

// PagesByNode is [Region.PagesByNode] of the whole block.
func (b *Block) PagesByNode(samples int) ([]NodePages, error) {
	if b.raw == nil {
		return nil, nil
	}
	return pagesByNode(unsafe.Pointer(&b.raw[0]), uint64(len(b.raw)), samples)
}

// Placed returns what became of the placement asked for.
func (b *Block) Placed() Placed { return b.placed() }

// Release gives the block back. Nobody may touch its words any more.
func (b *Block) Release() error {
	if b.raw == nil {
		return nil
	}
	delist(b)
	usage.blocks.Add(-int64(len(b.words)) * 8)
	raw := b.raw
	b.raw, b.words = nil, nil
	if err := unix.Munmap(raw); err != nil {
		return fmt.Errorf("numa: unmap: %w", err)
	}
	return nil
}
