// SPDX-License-Identifier: Apache-2.0

//go:build linux

package numa

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes of kernel bit masks, in words: 8,192 CPUs and 1,024 nodes.
const (
	cpuWords  = (maxID + 1) / 64
	nodeWords = maxNodes / 64
)

// nodeMask is a set of nodes as the kernel takes it.
type nodeMask [nodeWords]uint64

func (m *nodeMask) add(id int) { m[id/64] |= 1 << (id % 64) }

// maskNumbers returns the bits set in words, ascending.
func maskNumbers(words []uint64) set {
	out := set{}
	for i, w := range words {
		for b := range 64 {
			if w>>b&1 != 0 {
				out = append(out, i*64+b)
			}
		}
	}
	return out
}

// processAllowed returns what the calling thread may run on and take memory
// from. mems is nil, all, where a container hides it.
func processAllowed() (cpus, mems set, err error) {
	cpus, err = affinity()
	if err != nil {
		return nil, nil, err
	}
	return cpus, memsAllowed(), nil
}

// memsAllowed returns the nodes that the calling thread may take memory from;
// nil, all, where a container hides it.
func memsAllowed() set {
	var mask nodeMask
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, 0, uintptr(unsafe.Pointer(&mask[0])), maxNodes, 0, unix.MPOL_F_MEMS_ALLOWED, 0)
	if errno != 0 {
		return nil
	}
	return maskNumbers(mask[:])
}

// affinity returns the CPUs that the calling thread may run on.
func affinity() (set, error) {
	var mask [cpuWords]uint64
	_, _, errno := unix.Syscall(unix.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask[0])))
	if errno != 0 {
		return nil, fmt.Errorf("numa: sched_getaffinity: %w", errno)
	}
	return maskNumbers(mask[:]), nil
}

// setAffinity lets the calling thread run on cpus only.
func setAffinity(cpus []int) error {
	var mask [cpuWords]uint64
	for _, cpu := range cpus {
		if cpu < 0 || cpu > maxID {
			return fmt.Errorf("numa: CPU %d: must be 0 to %d", cpu, maxID)
		}
		mask[cpu/64] |= 1 << (cpu % 64)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask[0]))); errno != 0 {
		return fmt.Errorf("numa: pin to CPUs %s: %w", formatList(cpus), errno)
	}
	return nil
}

// currentCPU returns where the calling thread runs.
func currentCPU() (cpu, node int, err error) {
	var c, n uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&c)), uintptr(unsafe.Pointer(&n)), 0); errno != 0 {
		return 0, 0, fmt.Errorf("numa: getcpu: %w", errno)
	}
	return int(c), int(n), nil
}

// setProcessPolicy sets the policy of the calling thread, which what it starts
// inherits.
func setProcessPolicy(mode uintptr, nodes []int) error {
	var mask nodeMask
	for _, id := range nodes {
		mask.add(id)
	}
	// One more than there are: the kernel takes a bit off.
	if _, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, mode, uintptr(unsafe.Pointer(&mask[0])), maxNodes+1); errno != 0 {
		return fmt.Errorf("numa: set_mempolicy: %w", errno)
	}
	return nil
}
