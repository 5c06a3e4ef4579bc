// SPDX-License-Identifier: Apache-2.0

//go:build linux

package numa

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bind tells the kernel where the untouched memory of size bytes at base is to
// lie: p's nodes. It holds for address space, too, that gets memory later.
func (b *binding) bind(base unsafe.Pointer, size uint64, p Placement) {
	if p.Anywhere() {
		return
	}
	mode, policy := uintptr(unix.MPOL_INTERLEAVE), PolicyInterleaved
	if _, one := p.Node(); one {
		mode, policy = unix.MPOL_BIND, PolicyBound
	}
	if err := mbind(base, size, mode, p.nodes); err != nil {
		// It goes on near the thread that touches it first: its owner's, which is
		// pinned where it should lie.
		b.set(p, PolicyFirstTouch, err.Error())
		return
	}
	b.set(p, policy, "")
}

// take gets memory for step bytes at where, of which rest are to come, and looks
// where it came to lie. When the node that they are bound to is short of memory,
// they and all to come are merely preferred there from now on.
func (b *binding) take(where unsafe.Pointer, step, rest uint64) error {
	p := b.state.Load()
	if p == nil {
		return populate(where, step)
	}
	node, _ := p.Want.Node()
	bound := p.Policy == PolicyBound
	if bound {
		if ok, why := b.fits(node, step); !ok {
			b.loosen(where, rest)
			b.set(p.Want, PolicyPreferred, why)
			bound = false
		}
	}
	if err := populate(where, step); err != nil {
		return err
	}
	if bound {
		b.loosen(where, step)
	}
	if id, ok := nodeOf(where); ok {
		b.checked.Add(step)
		if !p.Want.holds(id) {
			b.remote.Add(step)
		}
	}
	return nil
}

// loosen lets size bytes at where lie elsewhere when their node is full. Memory is
// bound only while it is taken, when it was seen that there is some: what is
// given back to the system and touched again, or left to the first touch, finds
// no one to look, and on a full node would meet the out-of-memory killer.
func (b *binding) loosen(where unsafe.Pointer, size uint64) {
	p := b.placed()
	if p.Policy == PolicyBound {
		// What may be bound may be preferred; the kernel has no other reason to refuse.
		_ = mbind(where, size, unix.MPOL_PREFERRED, p.Want.nodes)
	}
}

// nodeOf returns the node that the page at p lies on, false when it lies nowhere
// or the kernel does not say.
func nodeOf(p unsafe.Pointer) (int, bool) {
	on := int32(-1)
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, 1, uintptr(unsafe.Pointer(&p)), 0, uintptr(unsafe.Pointer(&on)), 0)
	return int(on), errno == 0 && on >= 0
}

// mbind sets the policy of address space.
func mbind(base unsafe.Pointer, size uint64, mode uintptr, nodes []int) error {
	var mask nodeMask
	for _, id := range nodes {
		mask.add(id)
	}
	// One more than there are: the kernel takes a bit off.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(base), uintptr(size), mode, uintptr(unsafe.Pointer(&mask[0])), maxNodes+1, 0)
	if errno != 0 {
		return fmt.Errorf("mbind to nodes %s: %w", formatList(nodes), errno)
	}
	return nil
}

// populate takes memory for size bytes at base. All pages at once cost a
// fraction of a fault for each. Kernels before 5.14 do not know it and fault as
// they go.
func populate(base unsafe.Pointer, size uint64) error {
	err := unix.Madvise(unsafe.Slice((*byte)(base), size), unix.MADV_POPULATE_WRITE)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// adviseHuge asks for huge pages. A kernel without them goes on with small ones.
func adviseHuge(base unsafe.Pointer, size uint64) {
	_ = unix.Madvise(unsafe.Slice((*byte)(base), size), unix.MADV_HUGEPAGE)
}

// pagesByNode asks the kernel where samples places of size bytes at base lie.
// Places without memory are not counted.
func pagesByNode(base unsafe.Pointer, size uint64, samples int) ([]NodePages, error) {
	page := uint64(os.Getpagesize())
	n := min(uint64(max(samples, 1)), size/page)
	if n == 0 {
		return nil, nil
	}
	at, on := make([]unsafe.Pointer, n), make([]int32, n)
	for i := range at {
		at[i] = unsafe.Add(base, size/page*uint64(i)/n*page)
	}
	// Without a list of nodes it moves nothing and says where each page is.
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, uintptr(n), uintptr(unsafe.Pointer(&at[0])), 0, uintptr(unsafe.Pointer(&on[0])), 0)
	if errno != 0 {
		return nil, fmt.Errorf("numa: move_pages: %w", errno)
	}
	var out []NodePages
	for _, id := range on {
		if id < 0 {
			continue
		}
		out = addPages(out, int(id), 1)
	}
	return out, nil
}
