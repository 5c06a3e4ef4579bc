// SPDX-License-Identifier: Apache-2.0

package numa

import "golang.org/x/sys/unix"

// ThreadCPU returns the CPU time that the calling thread has used, in
// nanoseconds. A difference means something only on a goroutine locked to its
// thread. Cost: one system call, about 200 ns.
func ThreadCPU() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}
