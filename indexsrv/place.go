// SPDX-License-Identifier: Apache-2.0

// Before: the configuration and the machine's topology. After: the host, which
// makes shards and lanes as planned here.

package indexsrv

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"kindex/lanes"
	"kindex/numa"
	"kindex/shard"
)

// allNodes is Config.Node's value for all.
const allNodes = -1

// Bounds of the counts of a node. Chosen: wide of every machine seen.
const (
	maxShardsPerNode = 16
	maxLanesPerNode  = 1_024
	// autoLanes bounds how many lanes a shard gets where nobody says: about as many
	// as keep its writer busy.
	autoLanes = 16
	// minArenaBytes is the least memory of a shard: it holds some thousand blocks.
	minArenaBytes = 1 << 20
	// spareCPUs are left to sockets, lookups and the runtime.
	spareCPUs = 2
)

// nodePlan is what one memory node carries.
type nodePlan struct {
	node   int
	host   int // the node whose CPUs work here
	shards int
	lanes  int
	cpus   []int // lanes are pinned to; empty: they are plain goroutines
	memory numa.Placement
	why    string // of the pinning
}

// place plans the nodes that this process works on, one or more. procs is
// runtime.GOMAXPROCS(0).
//
// A node of its own has memory and CPUs. One with memory alone (named by --node) is
// worked on by the CPUs of the nearest node that has some, one with CPUs alone
// works on the nearest memory. Unless named they carry nothing, but where no node
// has both.
//
// Errors: one line that names the option.
func (c *Config) place(t *numa.Topology, procs int) ([]nodePlan, error) {
	nodes, err := c.nodes(t)
	if err != nil {
		return nil, err
	}
	shards := len(nodes) * c.ShardsPerNode
	if b, n := c.Memory, int64(shards); b != 0 && (b < n*minArenaBytes || b > n*shard.MaxArenaBytes) {
		return nil, fmt.Errorf("memory: %d for %d shards: must be 0 or %d to %d bytes a shard", b, shards, minArenaBytes, int64(shard.MaxArenaBytes))
	}
	plans := make([]nodePlan, len(nodes))
	most := 1
	for i, n := range nodes {
		p := nodePlan{node: n.ID, host: n.ID, shards: c.ShardsPerNode, lanes: c.LanesPerNode, memory: t.Local(n.ID)}
		cpus := len(n.CPUs)
		if cpus == 0 {
			p.host = n.Host
			host, _ := t.Node(n.Host)
			cpus = len(host.CPUs)
			p.memory = numa.OnNode(n.ID)
		}
		if c.Interleave {
			p.memory = t.Interleaved()
		}
		if p.lanes == 0 {
			p.lanes = min(lanesFor(cpus), autoLanes*p.shards)
		}
		most = max(most, p.lanes)
		plans[i] = p
	}
	for _, pin := range numa.PlanPins(t, c.Pin, most, procs) {
		for i := range plans {
			if plans[i].host == pin.Node {
				plans[i].cpus, plans[i].why = pin.CPUs, pin.Why
			}
		}
	}

	if shards > shard.MaxShards {
		return nil, fmt.Errorf("shards-per-node: %d on %d nodes are %d shards: at most %d", c.ShardsPerNode, len(plans), shards, shard.MaxShards)
	}
	if room := shards * shard.MaxHolders; c.MaxStreams > room {
		return nil, fmt.Errorf("max-streams: %d is more than the index takes: %s of %d", c.MaxStreams, plural(shards, "shard"), shard.MaxHolders)
	}
	return plans, nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// lanesFor returns how many lanes so many CPUs carry.
func lanesFor(cpus int) int {
	if cpus <= 2*spareCPUs {
		return max(cpus, 1) // nobody is pinned there: whoever has work has a CPU
	}
	return cpus - spareCPUs
}

// nodes returns the nodes that carry shards.
func (c *Config) nodes(t *numa.Topology) ([]numa.Node, error) {
	if c.Node != allNodes {
		n, ok := t.Node(c.Node)
		if !ok {
			ids := make([]string, len(t.Nodes))
			for i := range t.Nodes {
				ids[i] = strconv.Itoa(t.Nodes[i].ID)
			}
			return nil, fmt.Errorf("node: %d is no node that this process may use: must be all or one of %s", c.Node, strings.Join(ids, ", "))
		}
		return []numa.Node{n}, nil
	}
	var whole []numa.Node
	for _, n := range t.Workplaces() {
		if n.Memory || t.Flat {
			whole = append(whole, n)
		}
	}
	if len(whole) == 0 {
		whole = t.Workplaces()
	}
	if len(whole) == 0 {
		return nil, errors.New("node: this process may use no CPU")
	}
	return whole, nil
}

// plan is place on this machine.
func (c *Config) plan() ([]nodePlan, error) {
	t, err := numa.Discover(orDefault(c.SysRoot, "/"))
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return c.place(t, runtime.GOMAXPROCS(0))
}

// settle puts the process on the one node that it is to work on, if it is told
// one: all threads, those of sockets and lookups too. It may start the program
// anew, see [numa.ReexecOn].
func (c *Config) settle() error {
	if c.Node == allNodes {
		return nil
	}
	t, err := numa.Discover(orDefault(c.SysRoot, "/"))
	if err != nil {
		return err
	}
	n, ok := t.Node(c.Node)
	if !ok {
		return fmt.Errorf("%d is gone", c.Node)
	}
	return numa.ReexecOn(t, n.Host)
}

// build makes the index and the lanes as planned.
func build(cfg *Config, plans []nodePlan) (*shard.Sharded, *lanes.Pool, error) {
	var opts []shard.Options
	var o lanes.Options
	for _, p := range plans {
		for range p.shards {
			so := cfg.shardOptions(len(plans) * cfg.ShardsPerNode)
			so.Placement = p.memory
			opts = append(opts, so)
		}
		o.Nodes = append(o.Nodes, lanes.Node{ID: p.node, Shards: p.shards, Lanes: p.lanes, CPUs: p.cpus})
	}
	idx, err := shard.NewSharded(cfg.KVIndex, opts...)
	if err != nil {
		return nil, nil, fmt.Errorf("kv-index: %w", err)
	}
	pool, err := lanes.New(o)
	if err != nil {
		return nil, nil, fmt.Errorf("pin: %w", err)
	}
	return idx, pool, nil
}

// logPlaces says what each node carries, and what is not where it should be.
func (h *Host) logPlaces() {
	for _, p := range h.plans {
		h.log.Info("node", "node", p.node, "cpus_of", p.host, "shards", p.shards, "lanes", p.lanes,
			"memory", p.memory.String(), "threads", p.why)
	}
	for _, a := range numa.Accounts(0) {
		if a.Why != "" {
			h.log.Warn("memory is not where it should be", "wanted", a.Want.String(), "why", a.Why)
		}
	}
}
