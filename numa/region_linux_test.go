// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import "testing"

// TestRegion reserves far more than a machine has, uses a little, and shows that
// only the touched part becomes resident.
func TestRegion(t *testing.T) {
	const size = 64 << 30
	before := Used()
	r, err := Reserve(size, Placement{})
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	if uintptr(r.Base())%HugePage != 0 {
		t.Errorf("base %p is not aligned to %d", r.Base(), HugePage)
	}
	if got := Used().Reserved - before.Reserved; got != size {
		t.Errorf("accounted %d bytes reserved, want %d", got, uint64(size))
	}
	if err := r.Commit(1); err != nil {
		t.Fatalf("Commit(1): %v", err)
	}
	if got := r.Committed(); got != HugePage {
		t.Errorf("Commit(1) made %d bytes usable, want %d", got, HugePage)
	}
	if got, err := r.Resident(); err != nil || got != 0 {
		t.Errorf("resident before a touch: %d bytes, %v; want 0", got, err)
	}
	first, last := (*uint64)(r.Base()), 4*HugePage-8
	*first = 7
	if got, err := r.Resident(); err != nil || got == 0 || got > HugePage {
		t.Errorf("resident after one touch: %d bytes, %v; want a page", got, err)
	}
	if err := r.Commit(3*HugePage + 1); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	if got := *(*uint64)(r.at(uint64(last))); got != 0 || *first != 7 {
		t.Errorf("after growth: first %d, last %d; want 7, 0", *first, got)
	}
	if err := r.Commit(size + 1); err == nil {
		t.Error("Commit past the reservation: no error")
	}
	if err := r.Release(); err != nil {
		t.Errorf("Release: %v", err)
	}
	if got := Used(); got != before {
		t.Errorf("after Release: %+v, want %+v", got, before)
	}
}
