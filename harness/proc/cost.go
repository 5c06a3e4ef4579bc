// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Cost is what a process has used so far.
type Cost struct {
	CPU time.Duration // of its living threads: the scheduler's own count, in ns
	RSS uint64        // resident bytes
}

// CostOf reads what process pid has used. What ended threads used is not in it: programs
// that keep their threads are meant.
//
// Source: /proc/PID/task/TID/schedstat, first field; VmRSS of /proc/PID/status.
func CostOf(pid int) (Cost, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return Cost{}, fmt.Errorf("process %d: %w", pid, err)
	}
	var c Cost
	for _, t := range tasks {
		b, err := os.ReadFile(filepath.Join(dir, "task", t.Name(), "schedstat"))
		if err != nil {
			continue // ended between the two reads
		}
		first, _, _ := strings.Cut(string(b), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return Cost{}, fmt.Errorf("schedstat of process %d: %w", pid, err)
		}
		c.CPU += time.Duration(ns)
	}
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return Cost{}, fmt.Errorf("process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return Cost{}, fmt.Errorf("VmRSS of process %d: %w", pid, err)
			}
			c.RSS = kib << 10
		}
	}
	return c, nil
}

// Waited reads how long each living thread of process pid stood ready to run and had no
// CPU, since it began.
//
// Source: /proc/PID/task/TID/schedstat, second field.
func Waited(pid int) (map[int]time.Duration, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	out := make(map[int]time.Duration, len(tasks))
	for _, t := range tasks {
		b, err := os.ReadFile(filepath.Join(dir, t.Name(), "schedstat"))
		if err != nil {
			continue // ended between the two reads
		}
		var ns [2]int64
		if n, err := fmt.Sscan(string(b), &ns[0], &ns[1]); n < len(ns) {
			return nil, fmt.Errorf("schedstat of process %d: %w", pid, err)
		}
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			out[tid] = time.Duration(ns[1])
		}
	}
	return out, nil
}
