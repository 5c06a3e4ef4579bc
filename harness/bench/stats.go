// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"kindex/asm"
)

// Figure is one measured quantity over all repeats.
type Figure struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func figure(samples []float64) Figure {
	if len(samples) == 0 {
		return Figure{}
	}
	s := slices.Sorted(slices.Values(samples))
	return Figure{Median: s[len(s)/2], Min: s[0], Max: s[len(s)-1]}
}

// quantile returns the p-th part of sorted durations, in nanoseconds.
func quantile(sorted []int64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)])
}

// Machine is where the figures were taken.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Arch   string `json:"arch"`
	Commit string `json:"commit"`
	Level  string `json:"cpu_features"` // what the index's kernels use
	Load   string `json:"load"`         // the machine's load averages when it began
}

func machine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Arch: runtime.GOOS + "/" + runtime.GOARCH, Level: asm.Level(), CPU: "unknown", Commit: "unknown"}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		for in := bufio.NewScanner(f); in.Scan(); {
			if name, value, ok := strings.Cut(in.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
		_ = f.Close()
	}
	m.Kernel = word("/proc/sys/kernel/osrelease")
	m.Load = word("/proc/loadavg")
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				m.Commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				m.Commit += " with changes"
			}
		}
	}
	return m
}

// word returns a one-line file of the kernel's, "unknown" where there is none.
func word(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
