// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/numa"
	"kindex/relay/feed"
	"kindex/shard"
)

// A fleet on a host of all nodes, of one node and of interleaved memory.
const (
	nodeStreams = 8 // a shard
	nodeBatches = 60
	nodeKeep    = 20
)

// nodeHost is a host over streams whose sockets are this test.
type nodeHost struct {
	*Host
	strays atomic.Uint64 // messages applied on another node than the shard's
	seen   atomic.Uint64
}

func newNodeHost(t *testing.T, change func(*Config)) *nodeHost {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Pin, cfg.LanesPerNode = numa.PinOn, 2
	change(&cfg)
	h, err := newHost(cfg, &fakeSource{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	n := &nodeHost{Host: h}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// watch makes every stream registered from now on note where it is applied.
func (n *nodeHost) watch(t *testing.T, topo *numa.Topology) {
	n.reg.hooks = func(_ shard.Holder, i int) streamHooks {
		want, _ := topo.Node(n.pool.NodeOf(i))
		return streamHooks{Shard: func(time.Duration) {
			n.seen.Add(1)
			if _, at, err := numa.CurrentNode(); err != nil {
				t.Error(err)
			} else if at != want.Host {
				n.strays.Add(1)
			}
		}}
	}
}

// feed tells every stream the same batches, all at once, through their lanes.
func (n *nodeHost) feed(t *testing.T, streams int, ps [][]byte) []*rank {
	t.Helper()
	var ranks []*rank
	for k := range streams {
		r := Registration{
			Instance: NumberID(uint64(k)), Model: "m", BlockSize: testBlock,
			Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", 20_000+k),
		}
		if err := n.Register(context.Background(), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range n.reg.workers(nil) {
		ranks = append(ranks, *w.ranks.Load()...)
	}
	var told sync.WaitGroup
	for k, r := range ranks {
		told.Go(func() {
			now := time.Now()
			r.stream.admission.Connected(now)
			for i := range ps[:len(ps)-k%3] { // not all hold the same
				r.stream.admission.Live([]feed.Message{{Seq: uint64(i), Payload: ps[i]}}, now)
			}
		})
	}
	told.Wait()
	return ranks
}

// TestNodeHost: on a host over all nodes each shard is written by its node's lanes
// and lies there; its answers are those of a host on one node, and of one whose
// memory is interleaved.
func TestNodeHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	topo, err := numa.Discover("/")
	if err != nil {
		t.Fatal(err)
	}
	ps := steadyBatches(nodeBatches, nodeKeep)
	all := newNodeHost(t, func(c *Config) {
		if len(topo.Workplaces()) == 1 {
			c.ShardsPerNode = 2
		}
	})
	all.watch(t, topo)
	streams := nodeStreams * all.pool.Shards()
	ranks := all.feed(t, streams, ps)
	if n := all.strays.Load(); n > 0 || all.seen.Load() == 0 {
		t.Errorf("%d of %d messages were applied on another node than their shard's", n, all.seen.Load())
	}
	at := make([]int, all.pool.Shards())
	for _, r := range ranks {
		at[r.shard]++
		if r.node != all.pool.NodeOf(r.shard) {
			t.Errorf("a stream of shard %d says node %d, want %d", r.shard, r.node, all.pool.NodeOf(r.shard))
		}
	}
	if slices.Min(at) != nodeStreams || slices.Max(at) != nodeStreams {
		t.Errorf("streams by shard: %v, want %d each", at, nodeStreams)
	}
	for _, a := range numa.Accounts(1 << 12) {
		home, one := a.Want.Node()
		t.Logf("%s: %d KiB, pages %v", a.Want, a.Bytes>>10, a.Pages)
		if len(topo.MemoryNodes()) > 1 && (!one || a.Remote != 0 || len(a.Pages) != 1 || a.Pages[0].Node != home) {
			t.Errorf("memory for %s: %+v", a.Want, a)
		}
	}

	places := topo.Workplaces()
	last := newNodeHost(t, func(c *Config) { c.Node, c.MaxStreams = places[len(places)-1].ID, streams })
	spread := newNodeHost(t, func(c *Config) { c.Interleave, c.Pin = true, numa.PinOff })
	for what, h := range map[string]*nodeHost{"one node": last, "interleaved": spread} {
		others := h.feed(t, streams, ps)
		for i, r := range ranks {
			want, err := shard.Digest(all.idx, r.holder)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := shard.Digest(h.idx, others[i].holder); err != nil || got != want {
				t.Errorf("%s, stream %d: digest %x (%v), want %x", what, i, got, err, want)
			}
		}
		for i := range uint64(len(ps)) {
			var chain []uint64
			for b := range uint64(24) {
				chain = append(chain, i*120+1+b)
			}
			q := lookup.Query{Model: "m", Hashes: chainOf(kv.HashSeed, chain...)}
			var want, got lookup.Answer
			err1 := all.Lookup(t.Context(), &q, &want)
			err2 := h.Lookup(t.Context(), &q, &got)
			if err1 != nil || err2 != nil || !slices.Equal(got.Matches, want.Matches) {
				t.Fatalf("%s, chain %d: %v (%v), want %v (%v)", what, i, got, err2, want, err1)
			}
			if held := int(i) >= len(ps)-2-nodeKeep; held != (len(want.Matches) > 0) {
				t.Errorf("chain %d: %d instances hold it", i, len(want.Matches))
			}
		}
	}
}
