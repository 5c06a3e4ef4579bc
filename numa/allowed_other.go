// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package numa

import (
	"errors"
	"runtime"
)

var errLinuxOnly = errors.New("numa: threads are pinned on Linux only")

// processAllowed says that all CPUs are allowed.
func processAllowed() (cpus, mems set, err error) {
	cpus = set{}
	for i := range runtime.NumCPU() {
		cpus = append(cpus, i)
	}
	return cpus, nil, nil
}

func affinity() (set, error) { return nil, errLinuxOnly }

func setAffinity([]int) error { return errLinuxOnly }

func currentCPU() (cpu, node int, err error) { return 0, 0, errLinuxOnly }
