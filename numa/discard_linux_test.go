// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"testing"
	"unsafe"
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
	words := unsafe.Slice((*uint64)(r.Base()), size/8)
	for i := range words {
		words[i] = uint64(i) + 1
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
			words[(c.zeroFrom+off)/8] += (c.zeroFrom+off)/8 + 1 // reads as zero: the sum is what stood there
		}
		want += c.zero
		if got := resident(); got != want {
			t.Errorf("%s, written again: %d bytes resident, want %d", c.name, got, want)
		}
		for i, w := range words {
			if w != uint64(i)+1 {
				t.Fatalf("%s: word %d is %d, want %d", c.name, i, w, i+1)
			}
		}
	}
	r.AdviseHuge(HugePage)
	if err := r.Discard(7*HugePage, 2*HugePage); err == nil {
		t.Error("a discard past the usable prefix: no error")
	}
}
