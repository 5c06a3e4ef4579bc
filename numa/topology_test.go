// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// nodeFile and allowedFile name files of a tree.
func nodeFile(id int, name string) string { return fmt.Sprintf("%s/node%d/%s", nodeDir, id, name) }

func allowed(cpus, mems string) map[string]string {
	return map[string]string{status: "Cpus_allowed_list:\t" + cpus + "\nMems_allowed_list:\t" + mems + "\n"}
}

// outline writes what a topology says, a node to a line.
func outline(top *Topology) string {
	var b strings.Builder
	for _, n := range top.Nodes {
		cpus, memory := formatList(n.CPUs), "no memory"
		if n.Memory {
			memory = "memory"
		}
		fmt.Fprintf(&b, "%d: cpus %s, %s, home %d, host %d\n", n.ID, cpus, memory, n.Home, n.Host)
	}
	return b.String()
}

// TestDiscover reads captured trees.
func TestDiscover(t *testing.T) {
	f := func(name, tree string, edits map[string]string, places, mems []int, want string) {
		t.Helper()
		top, err := Discover(plantTree(t, tree, edits))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if got, want := outline(top), strings.ReplaceAll(strings.TrimSpace(want), "\t", "")+"\n"; got != want {
			t.Errorf("%s: got\n%swant\n%s", name, got, want)
		}
		var got []int
		for _, n := range top.Workplaces() {
			got = append(got, n.ID)
		}
		if !slices.Equal(got, places) {
			t.Errorf("%s: workplaces %v, want %v", name, got, places)
		}
		if got := top.MemoryNodes(); !slices.Equal(got, mems) {
			t.Errorf("%s: nodes with memory %v, want %v", name, got, mems)
		}
		for _, n := range top.Nodes {
			if n.Memory != (n.Total > 0) || n.Free > n.Total {
				t.Errorf("%s: node %d: %d of %d bytes free, memory %v", name, n.ID, n.Free, n.Total, n.Memory)
			}
		}
	}

	f("one node", "nodes1", nil, []int{0}, []int{0}, `0: cpus 0-1, memory, home 0, host 0`)
	f("two", "nodes2", nil, []int{0, 1}, []int{0, 1}, `
		0: cpus 0-1, memory, home 0, host 0
		1: cpus 2-3, memory, home 1, host 1`)
	f("four", "nodes4", nil, []int{0, 1, 2, 3}, []int{0, 1, 2, 3}, `
		0: cpus 0-1, memory, home 0, host 0
		1: cpus 2-3, memory, home 1, host 1
		2: cpus 4-5, memory, home 2, host 2
		3: cpus 6-7, memory, home 3, host 3`)
	f("eight", "nodes8", nil, []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{0, 1, 2, 3, 4, 5, 6, 7}, `
		0: cpus 0-1, memory, home 0, host 0
		1: cpus 2-3, memory, home 1, host 1
		2: cpus 4-5, memory, home 2, host 2
		3: cpus 6-7, memory, home 3, host 3
		4: cpus 8-9, memory, home 4, host 4
		5: cpus 10-11, memory, home 5, host 5
		6: cpus 12-13, memory, home 6, host 6
		7: cpus 14-15, memory, home 7, host 7`)
	f("nodes of memory alone", "cpuless", nil, []int{0, 1}, []int{0, 1, 2, 3}, `
		0: cpus 0-1, memory, home 0, host 0
		1: cpus 2-3, memory, home 1, host 1
		2: cpus none, memory, home 2, host 1
		3: cpus none, memory, home 3, host 0`)
	f("a node without memory", "memoryless", nil, []int{0, 1, 2}, []int{0, 2}, `
		0: cpus 0-1, memory, home 0, host 0
		1: cpus 2-3, no memory, home 2, host 1
		2: cpus 4-5, memory, home 2, host 2`)
	f("gaps in the numbers", "sparse", nil, []int{0, 8}, []int{0, 8, 252, 253, 254, 255}, `
		0: cpus 0-3, memory, home 0, host 0
		8: cpus 4-7, memory, home 8, host 8
		252: cpus none, memory, home 252, host 8
		253: cpus none, memory, home 253, host 8
		254: cpus none, memory, home 254, host 0
		255: cpus none, memory, home 255, host 0`)
	f("all CPUs of a node offline", "offline", nil, []int{0}, []int{0, 1}, `
		0: cpus 0, memory, home 0, host 0
		1: cpus none, memory, home 1, host 0`)
	f("a kernel that lists CPUs offline", "nodes2", map[string]string{cpuOnline: "0,2-3\n"}, []int{0, 1}, []int{0, 1}, `
		0: cpus 0, memory, home 0, host 0
		1: cpus 2-3, memory, home 1, host 1`)
	f("a container on one node", "nodes4", allowed("4-5", "2"), []int{2}, []int{2}, `2: cpus 4-5, memory, home 2, host 2`)
	f("a container with far memory", "nodes4", allowed("0,6", "1-2"), []int{0, 3}, []int{1, 2}, `
		0: cpus 0, no memory, home 1, host 0
		1: cpus none, memory, home 1, host 0
		2: cpus none, memory, home 2, host 3
		3: cpus 6, no memory, home 2, host 3`)
	f("an old kernel", "nodes2", map[string]string{
		nodeDir + "/has_cpu": gone, nodeDir + "/has_memory": gone, nodeDir + "/has_normal_memory": gone,
		nodeFile(0, "distance"): gone, nodeFile(1, "distance"): gone, status: gone, cpuOnline: gone,
	}, []int{0, 1}, []int{0, 1}, `
		0: cpus 0-1, memory, home 0, host 0
		1: cpus 2-3, memory, home 1, host 1`)
	f("a kernel without nodes", "", map[string]string{
		cpuOnline: "0-2\n", status: "Cpus_allowed_list:\t1-7\n",
		"proc/meminfo": "MemTotal:       1000 kB\nMemFree:        500 kB\n",
	}, []int{0}, []int{0}, `0: cpus 1-2, memory, home 0, host 0`)
}

// TestDiscoverFaults holds the one line that each fault gives.
func TestDiscoverFaults(t *testing.T) {
	f := func(name, tree string, edits map[string]string, want string) {
		t.Helper()
		top, err := Discover(plantTree(t, tree, edits))
		if err == nil {
			t.Errorf("%s: no error, but\n%s", name, outline(top))
			return
		}
		if got := err.Error(); !strings.Contains(got, want) || strings.Contains(got, "\n") || !strings.HasPrefix(got, "numa: ") {
			t.Errorf("%s: got %q, want a line with %q", name, got, want)
		}
	}
	f("garbage for nodes", "nodes2", map[string]string{nodeDir + "/online": "zero to\none"}, `"zero to\none" is no list of numbers such as 0-3,8`)
	f("a range backwards", "nodes2", map[string]string{nodeDir + "/online": "3-1"}, "node/online: ")
	f("a node of no machine", "nodes2", map[string]string{nodeDir + "/online": "0-99999999"}, "0 to 8191")
	f("a node past the last", "nodes2", map[string]string{nodeDir + "/online": "0-1,1024"}, "names node 1024: the last there can be is 1023")
	f("no nodes", "nodes2", map[string]string{nodeDir + "/online": ""}, "no node below")
	f("a node without folder", "nodes2", map[string]string{nodeDir + "/online": "0-2", nodeFile(0, "distance"): gone, nodeFile(1, "distance"): gone}, "node2/cpulist")
	f("garbage for CPUs", "nodes2", map[string]string{nodeFile(1, "cpulist"): "2-3,x"}, "node1/cpulist: ")
	f("garbage for CPUs online", "nodes2", map[string]string{cpuOnline: "-1"}, "cpu/online: ")
	f("garbage for memory", "nodes2", map[string]string{nodeFile(1, "meminfo"): "no numbers"}, `node1/meminfo has no line "MemTotal:"`)
	f("a size of no machine", "nodes2", map[string]string{nodeFile(1, "meminfo"): "MemTotal: 99999999999999999999 kB\nMemFree: 1 kB"}, "is not a number of kB")
	f("garbage for who has memory", "nodes2", map[string]string{nodeDir + "/has_memory": "?"}, "node/has_memory: ")
	f("garbage for distances", "nodes2", map[string]string{nodeFile(0, "distance"): "10 far"}, `node0/distance: "far" is not a number`)
	f("too few distances", "nodes2", map[string]string{nodeFile(0, "distance"): "10"}, "1 distances for 2 nodes")
	f("garbage for what is allowed", "nodes2", map[string]string{status: "Cpus_allowed_list:\tmany\n"}, "Cpus_allowed_list: ")
	f("a huge file", "nodes2", map[string]string{nodeDir + "/online": strings.Repeat("0,", maxFile)}, "has over")
	f("no CPU allowed", "nodes2", allowed("9", "0-1"), "has a CPU that this process may use (allowed: 9)")
	f("no memory allowed", "nodes2", allowed("0-3", "7"), "has memory that this process may use (allowed: 7)")
	f("no CPU allowed, no nodes", "", map[string]string{cpuOnline: "0-1", status: "Cpus_allowed_list:\t5\n"}, "names no CPU online")
	f("no CPUs and no nodes", "", nil, "cpu/online")
}

// TestDistances reads them as firmware gave them.
func TestDistances(t *testing.T) {
	top, err := Discover(plantTree(t, "cpuless", nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ a, b, want int }{{0, 0, 10}, {0, 1, 20}, {0, 2, 24}, {1, 2, 14}, {3, 0, 14}, {0, 9, 20}} {
		if got := top.Distance(c.a, c.b); got != c.want {
			t.Errorf("distance %d to %d: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestPlacements says where what works on a node keeps its memory.
func TestPlacements(t *testing.T) {
	f := func(tree string, edits map[string]string, id int, local, spread string) {
		t.Helper()
		top, err := Discover(plantTree(t, tree, edits))
		if err != nil {
			t.Fatal(err)
		}
		if got := top.Local(id).String(); got != local {
			t.Errorf("%s: local to %d: got %s, want %s", tree, id, got, local)
		}
		if got := top.Interleaved().String(); got != spread {
			t.Errorf("%s: interleaved: got %s, want %s", tree, got, spread)
		}
	}
	f("nodes2", nil, 1, "node 1", "interleaved over nodes 0-1")
	f("memoryless", nil, 1, "node 2", "interleaved over nodes 0,2")
	f("sparse", nil, 8, "node 8", "interleaved over nodes 0,8,252-255")
	f("nodes2", nil, 5, "anywhere", "interleaved over nodes 0-1")
	f("", map[string]string{cpuOnline: "0"}, 0, "anywhere", "anywhere")
}

// TestDiscoverHere reads this machine, whatever it is.
func TestDiscoverHere(t *testing.T) {
	top, err := Discover("/")
	if err != nil {
		t.Fatal(err)
	}
	cpus := 0
	for _, n := range top.Workplaces() {
		cpus += len(n.CPUs)
		if home, ok := top.Node(n.Home); !ok || runtime.GOOS == "linux" && home.Free == 0 {
			t.Errorf("node %d: %+v, %v", n.Home, home, ok)
		}
	}
	if got := runtime.NumCPU(); cpus != got {
		t.Errorf("%d CPUs on all nodes, the runtime has %d", cpus, got)
	}
	if len(top.MemoryNodes()) == 0 {
		t.Error("no node with memory")
	}
}

// FuzzDiscover puts anything into one file of a tree: it gives a topology that
// hangs together or one line.
func FuzzDiscover(f *testing.F) {
	files := []string{
		cpuOnline, status, nodeDir + "/online", nodeDir + "/has_memory",
		nodeFile(0, "cpulist"), nodeFile(1, "meminfo"), nodeFile(1, "distance"),
	}
	for i := range files {
		f.Add(uint8(i), "0-1,4\n")
		f.Add(uint8(i), "Node 0 MemTotal: 12 kB\nNode 0 MemFree: 3 kB\n")
		f.Add(uint8(i), "Cpus_allowed_list: 1\nMems_allowed_list: 0")
		f.Add(uint8(i), "20 10")
	}
	root, whole := plantTree(f, "nodes2", nil), readTree(f, "nodes2")
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		file := files[int(which)%len(files)]
		plant := func(text string) {
			if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		plant(text)
		defer plant(whole[file])
		top, err := Discover(root)
		if err != nil {
			if got := err.Error(); strings.Contains(got, "\n") || !strings.HasPrefix(got, "numa: ") {
				t.Errorf("%q is not one line of ours", got)
			}
			return
		}
		if len(top.Workplaces()) == 0 || len(top.MemoryNodes()) == 0 {
			t.Errorf("nothing to run on or no memory:\n%s", outline(top))
		}
		for _, n := range top.Nodes {
			home, ok := top.Node(n.Home)
			host, ok2 := top.Node(n.Host)
			if !ok || !ok2 || !home.Memory || len(host.CPUs) == 0 || len(n.CPUs) == 0 && !n.Memory {
				t.Errorf("node %d hangs in the air:\n%s", n.ID, outline(top))
			}
		}
	})
}
