// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// A small heap gets room for a while of batches, a large one a small share of it.
func TestHeadroom(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 100, 1 << 20: 100, 8 << 20: 50, 20 << 20: 20, 100 << 20: headroomPercent, 1 << 34: headroomPercent,
	} {
		if got := headroomOf(live); got != want {
			t.Errorf("%d live bytes: room of %d %%, want %d", live, got, want)
		}
	}
}

// Every collection sets the room anew, until the end.
func TestHeadroomFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	percent := func() int {
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	wait := func(what string, ok func(int) bool) {
		t.Helper()
		for end := time.Now().Add(testTime); !ok(percent()); runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("%s: the room is %d %%", what, percent())
			}
		}
	}
	var m memory
	m.limitHeadroom()
	func() {
		large := make([]byte, 200<<20)
		runtime.GC()
		wait("beside 200 MiB", func(p int) bool { return p == headroomPercent })
		runtime.KeepAlive(large)
	}()
	runtime.GC()
	wait("without them", func(p int) bool { return p > headroomPercent })
	m.close()
}

// What snapshots leave is given back once, however many end, and not after the end.
func TestGivesBack(t *testing.T) {
	var none *memory
	none.freed() // an engine that is no program's
	var m memory
	for range 3 {
		m.freed()
	}
	m.giveBack()
	if m.last.IsZero() {
		t.Error("nothing was given back")
	}
	m.close()
	if m.timer.Stop() {
		t.Error("the timer runs after the end")
	}
	m.freed()
	if m.timer.Stop() {
		t.Error("the timer was started after the end")
	}
}
