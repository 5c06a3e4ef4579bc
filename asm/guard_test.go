// SPDX-License-Identifier: Apache-2.0

//go:build unix

package asm

import (
	"syscall"
	"testing"
	"unsafe"
)

// fence is memory between two pages that nobody may touch: a kernel that reads or
// writes past its end or before its beginning faults.
type fence []uint64

func newFence(tb testing.TB, words int) fence {
	tb.Helper()
	page := syscall.Getpagesize()
	size := (words*8 + page - 1) / page * page
	all, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		tb.Fatalf("mapping %d bytes: %v", size+2*page, err)
	}
	tb.Cleanup(func() { _ = syscall.Munmap(all) })
	for _, guard := range [][]byte{all[:page], all[page+size:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			tb.Fatalf("guarding a page: %v", err)
		}
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&all[page])), size/8)
}
