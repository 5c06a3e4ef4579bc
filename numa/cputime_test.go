// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"runtime"
	"testing"
)

func TestThreadCPU(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, sum := ThreadCPU(), 0
	for i := range 50_000_000 {
		sum += i
	}
	if used := ThreadCPU() - before; used < 1_000_000 || used > 60_000_000_000 {
		t.Errorf("%d ns for a loop of 50 million rounds (sum %d)", used, sum)
	}
}

// TestProcessCPU: what another thread uses is counted, to the last of it.
func TestProcessCPU(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("CPU time is read on Linux only")
	}
	before, used := ProcessCPU(), make(chan int64)
	go func() {
		runtime.LockOSThread()
		began, sum := ThreadCPU(), 0
		for i := range 1 << 22 {
			sum += i * i
		}
		runtime.KeepAlive(sum)
		used <- ThreadCPU() - began
	}()
	if of := <-used; ProcessCPU()-before < of {
		t.Errorf("%d ns of the process, %d of one of its threads", ProcessCPU()-before, of)
	}
}
