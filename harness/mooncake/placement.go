// SPDX-License-Identifier: Apache-2.0

package mooncake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"kindex/numa"
	"kindex/shard"
)

// place says where each shard's memory lies and what CPUs each lane runs on: with
// local memory a lane and its shards share a node, interleaved nothing is pinned. On one
// memory node there is nothing to choose.
func place(o *Options, t *numa.Topology) (shards []shard.Options, pins [][]int) {
	shards = make([]shard.Options, o.shards())
	nodes := t.MemoryNodes()
	if len(nodes) < 2 {
		return shards, nil
	}
	places := t.Workplaces()
	for i := range shards {
		if o.Memory == "interleave" {
			shards[i].Placement = numa.Interleave(nodes...)
		} else {
			shards[i].Placement = numa.OnNode(places[i%o.Lanes%len(places)].Home)
		}
	}
	if o.Memory == "interleave" {
		return shards, nil
	}
	for i := range o.Lanes {
		pins = append(pins, places[i%len(places)].CPUs)
	}
	return shards, pins
}

// Placed is where this process's memory lies that the kernel was told a policy for.
type Placed struct {
	Policy string           `json:"policy"` // the kernel's words
	Bytes  map[string]int64 `json:"bytes_by_node"`
}

// remoteMost is the share of memory that may lie off its node: what was taken before
// the policy was told.
const remoteMost = 0.01

// placed reads where memory lies, and refuses what is not as asked.
func placed(o *Options, nodes int) ([]Placed, error) {
	if nodes < 2 {
		return nil, nil
	}
	f, err := os.Open("/proc/self/numa_maps")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	all, err := parseMaps(f)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("placement: no memory of this process has a policy")
	}
	for _, p := range all {
		if err := p.check(o.Memory == "interleave"); err != nil {
			return all, err
		}
	}
	return all, nil
}

// parseMaps sums the kernel's table by policy, leaving out its default.
func parseMaps(r io.Reader) ([]Placed, error) {
	sums := map[string]map[string]int64{}
	in := bufio.NewScanner(r)
	for in.Scan() {
		f := strings.Fields(in.Text())
		if len(f) < 2 || f[1] == "default" {
			continue
		}
		size := int64(4 << 10)
		pages := map[string]int64{}
		for _, x := range f[2:] {
			name, value, ok := strings.Cut(x, "=")
			n, err := strconv.ParseInt(value, 10, 64)
			switch {
			case !ok || err != nil:
			case name == "kernelpagesize_kB":
				size = n << 10
			case len(name) > 1 && name[0] == 'N':
				pages[name[1:]] = n
			}
		}
		if len(pages) == 0 {
			continue
		}
		if sums[f[1]] == nil {
			sums[f[1]] = map[string]int64{}
		}
		for node, n := range pages {
			sums[f[1]][node] += n * size
		}
	}
	var out []Placed
	for _, policy := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, Placed{policy, sums[policy]})
	}
	return out, in.Err()
}

// check refuses memory that does not lie as its policy says: local on one node,
// interleaved in about equal parts on all.
func (p *Placed) check(interleaved bool) error {
	how, where, ok := strings.Cut(p.Policy, ":")
	if strings.HasPrefix(how, "interleave") != interleaved || !ok {
		return fmt.Errorf("placement: memory is %s, which was not asked for", p.Policy)
	}
	nodes, err := numa.ParseList(where)
	if err != nil {
		return fmt.Errorf("placement: %s: %w", p.Policy, err)
	}
	all, on := int64(0), int64(0)
	for node, n := range p.Bytes {
		all += n
		if id, err := strconv.Atoi(node); err == nil && slices.Contains(nodes, id) {
			on += n
		}
	}
	if float64(all-on) > remoteMost*float64(all) {
		return fmt.Errorf("placement: %d of %d bytes of %s lie elsewhere: %v", all-on, all, p.Policy, p.Bytes)
	}
	for _, id := range nodes {
		if n := p.Bytes[strconv.Itoa(id)]; interleaved && float64(n) < float64(all)/float64(2*len(nodes)) {
			return fmt.Errorf("placement: node %d has %d of %d bytes of %s", id, n, all, p.Policy)
		}
	}
	return nil
}
