// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"encoding/binary"
	"testing"
)

// TestDiscard gives whole and partial huge pages back, and holds that what was
// given reads as zeros, that its neighbours keep their words, and that it takes no
// memory until it is written to.
func TestDiscard(t *testing.T) {
	const size = 8 * HugePage
	r, err := Reserve(size, Placement{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Release(); err != nil {
			t.Error(err)
		}
	}()
	if err := r.Commit(size); err != nil {
		t.Fatal(err)
	}
	memory := r.bytes(0, size)
	word := func(off uint64) uint64 { return binary.LittleEndian.Uint64(memory[off:]) }
	set := func(off, w uint64) { binary.LittleEndian.PutUint64(memory[off:], w) }
	for off := uint64(0); off < size; off += 8 {
		set(off, off+1)
	}
	resident := func() uint64 {
		n, err := r.Resident()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if got := resident(); got != size {
		t.Fatalf("%d bytes resident after all were written, want %d", got, size)
	}
	want := uint64(size)
	for _, c := range []struct {
		name           string
		off, n         uint64
		zeroFrom, zero uint64 // what is given back
	}{
		{"nothing", HugePage + 8, 4096, 0, 0},
		{"a small page", HugePage + 4096, 4096, HugePage + 4096, 4096},
		{"part of a huge page", HugePage + 65536 + 64, 65536, HugePage + 65536 + 4096, 65536 - 4096},
		{"a whole huge page", 3 * HugePage, HugePage, 3 * HugePage, HugePage},
		{"parts of two", 5*HugePage - 65536, 2 * 65536, 5*HugePage - 65536, 2 * 65536},
		{"the first huge page's end", HugePage - 8192, 8192, HugePage - 8192, 8192},
		{"to the end", 7*HugePage + 4096, HugePage - 4096, 7*HugePage + 4096, HugePage - 4096},
	} {
		if err := r.Discard(c.off, c.n); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		want -= c.zero
		if got := resident(); got != want {
			t.Errorf("%s: %d bytes resident, want %d", c.name, got, want)
		}
		for off := uint64(0); off < c.zero; off += 8 {
			at := c.zeroFrom + off
			set(at, word(at)+at+1) // it reads as zero: the sum is what stood there
		}
		want += c.zero
		if got := resident(); got != want {
			t.Errorf("%s, written again: %d bytes resident, want %d", c.name, got, want)
		}
		for off := uint64(0); off < size; off += 8 {
			if got := word(off); got != off+1 {
				t.Fatalf("%s: word at %d is %d, want %d", c.name, off, got, off+1)
			}
		}
	}
	r.AdviseHuge(HugePage)
	if err := r.Discard(7*HugePage, 2*HugePage); err == nil {
		t.Error("a discard past the usable prefix: no error")
	}
}
