// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
)

// Machine is where figures were taken.
type Machine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	Nodes    int    `json:"memory_nodes"`
	L3       string `json:"l3"`
	Memory   string `json:"memory"`
	HugePage string `json:"transparent_huge_pages"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Arch     string `json:"arch"`
	Commit   string `json:"commit"`
	Load     string `json:"load"` // load averages when it began
}

// ThisMachine reads what this machine is.
func ThisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Arch: runtime.GOOS + "/" + runtime.GOARCH, Commit: "unknown"}
	m.CPU = field("/proc/cpuinfo", "model name")
	m.Memory = field("/proc/meminfo", "MemTotal")
	m.Kernel = word("/proc/sys/kernel/osrelease")
	m.Load = word("/proc/loadavg")
	m.L3 = word("/sys/devices/system/cpu/cpu0/cache/index3/size")
	m.HugePage = word("/sys/kernel/mm/transparent_hugepage/enabled")
	if nodes, err := filepath.Glob("/sys/devices/system/node/node[0-9]*"); err == nil {
		m.Nodes = max(1, len(nodes))
	}
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

// String is one line of Markdown.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d CPUs, %d memory nodes, L3 %s, memory %s, huge pages %s, Linux %s, %s %s, commit %s, load %s",
		m.CPU, m.CPUs, m.Nodes, m.L3, m.Memory, m.HugePage, m.Kernel, m.Go, m.Arch, m.Commit, m.Load)
}

// field returns the first value of a name in one of the kernel's tables.
func field(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return "unknown"
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		if n, value, ok := strings.Cut(in.Text(), ":"); ok && strings.TrimSpace(n) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// word returns a one-line file of the kernel's, "unknown" where there is none.
func word(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
