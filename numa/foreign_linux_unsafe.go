// SPDX-License-Identifier: Apache-2.0

//go:build linux

package numa

import (
	"fmt"
	"unsafe"
)

// Place takes memory for all of mem, which is whole pages of the caller's mapping and
// which nobody has touched, where p says. Of memory that several processes share the
// place is the same for all. What the kernel does not allow of p is no error, see the
// result's Policy and Why.
//
// Errors: the kernel's, when there is no memory to be had.
func Place(mem []byte, p Placement) (Placed, error) {
	if len(mem) == 0 {
		return Placed{}, nil
	}
	var b binding
	base, size := unsafe.Pointer(&mem[0]), uint64(len(mem))
	b.bind(base, size, p)
	if err := b.take(base, size, size); err != nil {
		return b.placed(), fmt.Errorf("numa: take %d bytes of a mapping: %w", size, err)
	}
	return b.placed(), nil
}

// PagesOf is [Region.PagesByNode] of any mapped memory, whole pages.
func PagesOf(mem []byte, samples int) ([]NodePages, error) {
	if len(mem) == 0 {
		return nil, nil
	}
	return pagesByNode(unsafe.Pointer(&mem[0]), uint64(len(mem)), samples)
}
