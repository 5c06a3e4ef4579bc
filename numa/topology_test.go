// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"runtime"
	"testing"
)

// TestDiscoverHere reads this machine, whatever it is.
func TestDiscoverHere(t *testing.T) {
	top, err := Discover("/")
	if err != nil {
		if runtime.GOOS != "linux" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	cpus := 0
	for _, n := range top.Workplaces() {
		cpus += len(n.CPUs)
		if free, err := top.FreeBytes(n.Home); err != nil || free == 0 {
			t.Errorf("node %d: %d bytes free, %v", n.Home, free, err)
		}
	}
	if got := runtime.NumCPU(); cpus != got {
		t.Errorf("%d CPUs on all nodes, the runtime has %d", cpus, got)
	}
	if len(top.MemoryNodes()) == 0 {
		t.Error("no node with memory")
	}
}
