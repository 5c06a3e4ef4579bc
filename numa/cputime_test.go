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
