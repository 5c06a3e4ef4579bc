// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package numa

// ThreadCPU returns 0: threads' CPU time is read on Linux only.
func ThreadCPU() int64 { return 0 }

// ProcessCPU returns 0 likewise.
func ProcessCPU() int64 { return 0 }

// ThreadSwitches returns 0 likewise.
func ThreadSwitches() (voluntary, involuntary int64) { return 0, 0 }
