// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestPlanPins holds the policy against trees of several shapes.
func TestPlanPins(t *testing.T) {
	f := func(tree string, edits map[string]string, mode PinMode, threads, procs int, want ...string) {
		t.Helper()
		top, err := Discover(plantTree(t, tree, edits))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range PlanPins(top, mode, threads, procs) {
			got = append(got, formatList([]int{p.Node})+": "+formatList(p.CPUs)+", "+p.Why)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s, %s, %d threads, %d processors:\ngot  %s\nwant %s", tree, mode, threads, procs, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	f("nodes1", nil, PinAuto, 1, 2, "0: none, not pinned: one node, nothing is far away")
	f("nodes1", nil, PinOn, 1, 2, "0: 0-1, pinned: switched on")
	f("nodes2", nil, PinAuto, 1, 4, "0: none, not pinned: 2 CPUs, 1 threads want 3", "1: none, not pinned: 2 CPUs, 1 threads want 3")
	f("nodes2", nil, PinOff, 1, 4, "0: none, not pinned: switched off", "1: none, not pinned: switched off")
	f("sparse", nil, PinAuto, 2, 8, "0: 0-3, pinned: CPUs to spare", "8: 4-7, pinned: CPUs to spare")
	f("sparse", nil, PinAuto, 3, 8, "0: none, not pinned: 4 CPUs, 3 threads want 5", "8: none, not pinned: 4 CPUs, 3 threads want 5")
	f("sparse", nil, PinAuto, 2, 4, "0: none, not pinned: GOMAXPROCS is 4, 2 threads on 2 nodes want 6", "8: none, not pinned: GOMAXPROCS is 4, 2 threads on 2 nodes want 6")
	f("sparse", map[string]string{cpuOnline: "0-5\n"}, PinAuto, 2, 8, "0: 0-3, pinned: CPUs to spare", "8: none, not pinned: 2 CPUs, 2 threads want 4")
	f("cpuless", nil, PinOn, 1, 4, "0: 0-1, pinned: switched on", "1: 2-3, pinned: switched on")
}

// TestPinModes holds names against their parser.
func TestPinModes(t *testing.T) {
	for _, m := range []PinMode{PinAuto, PinOn, PinOff} {
		if got, err := ParsePinMode(m.String()); err != nil || got != m {
			t.Errorf("%s: got %s, %v", m, got, err)
		}
	}
	if _, err := ParsePinMode("yes"); err == nil || !strings.Contains(err.Error(), "must be auto, on or off") {
		t.Errorf("yes: got %v", err)
	}
}

// TestLockAndPin pins a goroutine to the last CPU, sees it run there, sees that
// no thread made meanwhile has the mask, and that unpin takes it away.
func TestLockAndPin(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	all, err := affinity()
	if err != nil {
		t.Fatal(err)
	}
	last := all[len(all)-1:]
	unpin, err := LockAndPin(last)
	if err != nil {
		t.Fatal(err)
	}
	if cpu, _, err := CurrentNode(); err != nil || cpu != last[0] {
		t.Errorf("runs on CPU %d, %v; pinned to %d", cpu, err, last[0])
	}
	// Goroutines that hold their threads make the runtime start more.
	var held, done sync.WaitGroup
	release := make(chan struct{})
	for range 20 {
		held.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			held.Done()
			<-release
		})
	}
	held.Wait()
	want, masks := formatList(last), threadMasks(t)
	close(release)
	done.Wait()
	if masks[want] != 1 && len(all) > 1 {
		t.Errorf("threads by mask: %v; want one with %s", masks, want)
	}
	unpin()
	if got, err := affinity(); err != nil || !slices.Equal(got, all) {
		t.Errorf("after unpin: CPUs %v, %v; want %v", got, err, all)
	}
}

// threadMasks counts this process's threads by the CPUs that they may use.
func threadMasks(t testing.TB) map[string]int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	masks := map[string]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
		line, _, _ := strings.Cut(rest, "\n")
		masks[strings.TrimSpace(line)]++
	}
	return masks
}

// TestLockAndPinRefused shows that a refusal leaves nothing behind.
func TestLockAndPinRefused(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	before, err := affinity()
	if err != nil {
		t.Fatal(err)
	}
	for _, cpus := range [][]int{nil, {maxID}, {maxID + 1}, {-1}} {
		unpin, err := LockAndPin(cpus)
		if err == nil {
			unpin()
			t.Errorf("CPUs %v: no error", cpus)
		}
	}
	if got, err := affinity(); err != nil || !slices.Equal(got, before) {
		t.Errorf("CPUs afterwards: %v, %v; want %v", got, err, before)
	}
}
