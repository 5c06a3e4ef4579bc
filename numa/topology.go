// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"cmp"
	"fmt"
	"slices"
)

// Node is one memory node as this process may use it.
type Node struct {
	ID int // the kernel's number; numbers may have gaps
	// CPUs are online and allowed to this process, ascending. Empty: nothing of
	// ours runs here.
	CPUs []int
	// Memory says that there is memory here that this process may use.
	Memory bool
	// Total and Free are bytes of memory at the time of [Discover]; 0 where
	// Memory is false or the kernel does not say.
	Total, Free uint64
	// Home is the node whose memory serves the CPUs here: this one, or, where it
	// has no memory, the nearest that has.
	Home int
	// Host is the node whose CPUs work on the memory here: this one, or, where it
	// has no CPUs, the nearest that has.
	Host int
}

// Topology is what a process may use of a machine's memory nodes.
//
// Concurrency: immutable.
type Topology struct {
	// Nodes are all online nodes with something to use, by ID.
	Nodes []Node
	// Flat says that the kernel knows no nodes: all stands as one node 0, and
	// placement has nothing to choose.
	Flat bool

	sys      sysTree
	distance map[[2]int]int
}

// localDistance and remoteDistance are what firmware says when it says nothing.
const (
	localDistance  = 10
	remoteDistance = 20
)

// Discover reads the topology below root, "/" for this machine, and what this
// process is allowed of it.
//
// It asks the calling thread: call it before any pinning. Below another root it
// believes the proc/self/status there, or allows all where there is none.
//
// Errors: one line that names the file and what is wrong in it. A kernel without
// nodes is no error, see [Topology.Flat].
func Discover(root string) (*Topology, error) {
	sys := newSysTree(root)
	cpus, mems, err := sys.allowed()
	if err != nil {
		return nil, err
	}
	ids, err := sys.list(nodeDir + "/online")
	switch {
	case isAbsent(err):
		return flat(sys, cpus)
	case err != nil:
		return nil, err
	case len(ids) > 0 && ids[len(ids)-1] >= maxNodes:
		return nil, fmt.Errorf("numa: %s names node %d: the last there can be is %d", sys.path(nodeDir+"/online"), ids[len(ids)-1], maxNodes-1)
	}
	t := &Topology{sys: sys, distance: map[[2]int]int{}}
	for _, id := range ids {
		n, err := sys.node(id, cpus, mems)
		if err != nil {
			return nil, err
		}
		if len(n.CPUs) > 0 || n.Memory {
			t.Nodes = append(t.Nodes, n)
		}
		if err := t.readDistances(id, ids); err != nil {
			return nil, err
		}
	}
	return t, t.join(cpus, mems)
}

// flat is the topology of a kernel without nodes.
func flat(sys sysTree, allowed set) (*Topology, error) {
	cpus, err := sys.onlineCPUs(allowed)
	if err != nil {
		return nil, err
	}
	if len(cpus) == 0 {
		return nil, fmt.Errorf("numa: %s names no CPU online that this process may use (%s)", sys.path(cpuOnline), allowed)
	}
	n := Node{CPUs: cpus, Memory: true}
	n.Total, n.Free, err = sys.meminfo("proc/meminfo")
	if err != nil && !isAbsent(err) {
		return nil, err
	}
	return &Topology{Nodes: []Node{n}, Flat: true, sys: sys}, nil
}

// readDistances reads the row of node id, which has one column for each of ids.
func (t *Topology) readDistances(id int, ids []int) error {
	row, err := t.sys.numbers(fmt.Sprintf("%s/node%d/distance", nodeDir, id))
	switch {
	case isAbsent(err):
		return nil
	case err != nil:
		return err
	case len(row) != len(ids):
		return fmt.Errorf("numa: %s has %d distances for %d nodes online", t.sys.path(fmt.Sprintf("%s/node%d/distance", nodeDir, id)), len(row), len(ids))
	}
	for i, d := range row {
		t.distance[[2]int{id, ids[i]}] = d
	}
	return nil
}

// join finds each node's Home and Host.
func (t *Topology) join(cpus, mems set) error {
	for i := range t.Nodes {
		n := &t.Nodes[i]
		home, ok := t.nearest(n.ID, func(m *Node) bool { return m.Memory })
		if !ok {
			return fmt.Errorf("numa: no node below %s has memory that this process may use (%s)", t.sys.path(nodeDir), mems)
		}
		host, ok := t.nearest(n.ID, func(m *Node) bool { return len(m.CPUs) > 0 })
		if !ok {
			return fmt.Errorf("numa: no node below %s has a CPU that this process may use (%s)", t.sys.path(nodeDir), cpus)
		}
		n.Home, n.Host = home, host
	}
	if len(t.Nodes) == 0 {
		return fmt.Errorf("numa: no node below %s has a CPU (%s) or memory (%s) that this process may use", t.sys.path(nodeDir), cpus, mems)
	}
	return nil
}

// nearest returns the node nearest to id that fits, id itself first, the lowest
// number among equals.
func (t *Topology) nearest(id int, fits func(*Node) bool) (int, bool) {
	best, found := 0, false
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if !fits(n) {
			continue
		}
		if n.ID == id {
			return id, true
		}
		if !found || t.Distance(id, n.ID) < t.Distance(id, best) {
			best, found = n.ID, true
		}
	}
	return best, found
}

// Node returns the node numbered id. It is false for one that is not online or
// of which this process may use nothing.
func (t *Topology) Node(id int) (Node, bool) {
	i, ok := slices.BinarySearchFunc(t.Nodes, id, func(n Node, id int) int { return cmp.Compare(n.ID, id) })
	if !ok {
		return Node{}, false
	}
	return t.Nodes[i], true
}

// Workplaces returns the nodes that threads can run on, by ID: never none. A
// node without CPUs is not among them; see [Node.Host].
func (t *Topology) Workplaces() []Node {
	var out []Node
	for i := range t.Nodes {
		if len(t.Nodes[i].CPUs) > 0 {
			out = append(out, t.Nodes[i])
		}
	}
	return out
}

// noPlace says why nothing can run on node id.
func (t *Topology) noPlace(id int) error {
	var places []int
	for _, n := range t.Workplaces() {
		places = append(places, n.ID)
	}
	if n, ok := t.Node(id); ok {
		return fmt.Errorf("node %d has no CPU for this process (its memory is nearest to node %d): must be one of %s", id, n.Host, formatList(places))
	}
	return fmt.Errorf("node %d is not there for this process: must be one of %s", id, formatList(places))
}

// MemoryNodes returns the numbers of the nodes with memory, ascending: never
// none.
func (t *Topology) MemoryNodes() []int {
	var out []int
	for i := range t.Nodes {
		if t.Nodes[i].Memory {
			out = append(out, t.Nodes[i].ID)
		}
	}
	return out
}

// Distance returns how far node b's memory is from node a's CPUs in firmware's
// measure: 10 is local. 20 where firmware does not say.
func (t *Topology) Distance(a, b int) int {
	if d, ok := t.distance[[2]int{a, b}]; ok {
		return d
	}
	if a == b {
		return localDistance
	}
	return remoteDistance
}

// Local returns the placement for what threads on node id use: on its Home.
// Anywhere where there are no nodes or no such node.
func (t *Topology) Local(id int) Placement {
	n, ok := t.Node(id)
	if t.Flat || !ok {
		return Placement{}
	}
	return OnNode(n.Home)
}

// Interleaved returns the placement that spreads pages over all nodes with
// memory. Anywhere where there are no nodes.
func (t *Topology) Interleaved() Placement {
	if t.Flat {
		return Placement{}
	}
	return Interleave(t.MemoryNodes()...)
}
