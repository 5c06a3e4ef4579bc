// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kindex/lanes"
	"kindex/numa"
	"kindex/shard"
)

var (
	shardLabels = []string{"shard", "node"}
	laneLabels  = []string{"node", "lane"}

	descShardHolders     = desc("shard_holders", "(worker, rank) pairs that live in the shard.", shardLabels...)
	descShardMemberships = desc("shard_memberships", "Blocks held in the shard, each counted once for each holder.", shardLabels...)
	descShardBlocks      = desc("shard_blocks", "Distinct blocks held by any holder of the shard.", shardLabels...)
	descShardBytes       = desc("shard_bytes", "The shard's memory by purpose.", "shard", "node", "purpose")
	descShardApply       = desc("shard_apply_seconds", "Time that one message's operations take in the shard, which nobody else writes meanwhile.", shardLabels...)
	descMemoryUsed       = desc("memory_used_bytes", "Memory of the shard that counts against its bound.", shardLabels...)
	descMemoryBound      = desc("memory_bound_bytes", "The bound of the shard's memory.", shardLabels...)
	descMemoryRefused    = desc("memory_refused_workers", "Workers whose new blocks are refused because the shard nears its bound.", shardLabels...)
	descPlacedBytes      = desc("memory_placed_bytes", "Memory whose place was asked for, by where, and by how the kernel was told.", "wanted", "policy")
	descRemote           = desc("memory_remote_ratio", "Share of sampled pages, 0 to 1, that lie elsewhere than asked for.", "wanted")
	descShardWaits       = desc("shard_turn_waits_total", "Writers and walkers, lanes apart, that found another one writing the shard and waited.", shardLabels...)
)

// laneMetrics are what each lane counts.
var laneMetrics = [...]struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*lanes.LaneStats) uint64
}{
	{
		desc("lane_workers", "Streams at home on the lane.", laneLabels...), prometheus.GaugeValue,
		func(l *lanes.LaneStats) uint64 { return uint64(l.Workers) },
	},
	{
		desc("lane_queued_bursts", "Bursts of messages that wait for the lane or run on it.", laneLabels...), prometheus.GaugeValue,
		func(l *lanes.LaneStats) uint64 { return uint64(l.Queued) },
	},
	{
		desc("lane_pinned", "1 where the lane is locked to a thread and pinned to its node's CPUs, else 0.", laneLabels...), prometheus.GaugeValue,
		func(l *lanes.LaneStats) uint64 { return uint64(fromBool(l.Pinned)) },
	},
	{
		desc("lane_bursts_total", "Bursts of messages run.", laneLabels...), prometheus.CounterValue,
		func(l *lanes.LaneStats) uint64 { return l.Jobs },
	},
	{
		desc("lane_batches_total", "Batches applied.", laneLabels...), prometheus.CounterValue,
		func(l *lanes.LaneStats) uint64 { return l.Batches },
	},
	{
		desc("lane_put_aside_total", "Batches put aside because the shard was being written.", laneLabels...), prometheus.CounterValue,
		func(l *lanes.LaneStats) uint64 { return l.Aside },
	},
	{
		desc("lane_stolen_workers_total", "Streams taken over from another lane of the node.", laneLabels...), prometheus.CounterValue,
		func(l *lanes.LaneStats) uint64 { return l.Stolen },
	},
	{
		desc("lane_pushed_back_total", "Bursts that had to wait for room in a stream's queue.", laneLabels...), prometheus.CounterValue,
		func(l *lanes.LaneStats) uint64 { return l.PushedBack },
	},
}

func describeShards(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descShardHolders, descShardMemberships, descShardBlocks, descShardBytes, descShardApply, descShardWaits,
		descPlacedBytes, descRemote, descMemoryUsed, descMemoryBound, descMemoryRefused,
	} {
		ch <- d
	}
	for i := range laneMetrics {
		ch <- laneMetrics[i].desc
	}
}

// shardApply counts how long messages took in each shard.
type shardApply []histogram

// hook returns the [Burst.Shard] of a stream in shard i.
func (s shardApply) hook(i int) func(time.Duration) {
	return func(d time.Duration) { s[i].observe(0, d) } // one at a time: the writer
}

// shards emits what each shard holds, and what all of them do.
func (c *collector) shards(ch chan<- prometheus.Metric) {
	var sum shard.Stats
	byNode := map[string]*[shard.NumPurposes]uint64{}
	for i := range c.h.pool.Shards() {
		st := c.h.idx.shardStats(i)
		sum.Add(st)
		id, node := strconv.Itoa(i), strconv.Itoa(c.h.pool.NodeOf(i))
		ch <- gauge(descShardHolders, float64(st.Holders), id, node)
		ch <- gauge(descShardMemberships, float64(st.Memberships), id, node)
		ch <- gauge(descShardBlocks, float64(st.Blocks), id, node)
		ch <- c.h.met.shardApply[i].metric(descShardApply, id, node)
		ch <- counter(descShardWaits, c.h.pool.Turn(i).Waits(), id, node)
		if b := c.h.idx.budgets[i]; b != nil {
			ch <- gauge(descMemoryUsed, float64(b.used.Load()), id, node)
			ch <- gauge(descMemoryBound, float64(b.bound), id, node)
			ch <- gauge(descMemoryRefused, float64(b.refused.Load()), id, node)
		}
		if byNode[node] == nil {
			byNode[node] = new([shard.NumPurposes]uint64)
		}
		for p := range shard.NumPurposes {
			ch <- gauge(descShardBytes, float64(st.Bytes[p]), id, node, p.String())
			byNode[node][p] += st.Bytes[p]
		}
	}
	ch <- gauge(descHolders, float64(sum.Holders))
	ch <- gauge(descMemberships, float64(sum.Memberships))
	ch <- gauge(descBlocks, float64(sum.Blocks))
	ch <- gauge(descRuns, float64(sum.Runs))
	for node, bytes := range byNode {
		for p := range shard.NumPurposes {
			ch <- gauge(descBytes, float64(bytes[p]), p.String(), node)
		}
	}
}

// lanes emits what each lane does.
func (c *collector) lanes(ch chan<- prometheus.Metric) {
	for _, l := range c.h.pool.Stats() {
		node, lane := strconv.Itoa(l.Node), strconv.Itoa(l.Lane)
		for i := range laneMetrics {
			m := &laneMetrics[i]
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(m.value(&l)), node, lane)
		}
	}
}

// pageSamples is how many pages of each piece of memory a scrape looks at.
const pageSamples = 128

// memory emits where memory lies that was to lie somewhere.
func (c *collector) memory(ch chan<- prometheus.Metric) {
	for _, a := range numa.Accounts(pageSamples) {
		wanted := a.Want.String()
		for p, bytes := range a.ByPolicy {
			ch <- gauge(descPlacedBytes, float64(bytes), wanted, numa.Policy(p).String())
		}
		if a.Pages != nil {
			ch <- gauge(descRemote, a.Want.RemoteShare(a.Pages), wanted)
		}
	}
}
