// SPDX-License-Identifier: Apache-2.0

package trial

import "kindex/numa"

// ThreadClockCost measures one read of the thread's CPU clock, in nanoseconds of it: the
// least of some rounds. Call it on a goroutine locked to its thread.
func ThreadClockCost() float64 {
	const reads = 2_000
	best := int64(1 << 62)
	for range 20 {
		began := numa.ThreadCPU()
		for range reads {
			numa.ThreadCPU()
		}
		best = min(best, numa.ThreadCPU()-began)
	}
	return float64(best) / reads
}
