// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package lanes

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"kindex/internal/kv"
	"kindex/numa"
	"kindex/shard"
)

// A small fleet whose workers store and remove prefixes of shared chains.
const (
	nodesModel   = kv.ModelKey(7)
	nodesChains  = 48
	nodesBlocks  = 320 // of a chain
	nodesWorkers = 6   // a shard
	nodesJobs    = 60
)

// nodesChain is chain c: its first half is shared by every fourth chain.
func nodesChain(c int) ([]kv.EngineHash, []kv.ContentHash) {
	engines, contents := make([]kv.EngineHash, nodesBlocks), make([]kv.ContentHash, nodesBlocks)
	for i := range nodesBlocks {
		id := c
		if i < nodesBlocks/2 {
			id = c % 4
		}
		n := uint64(id*nodesBlocks+i+1) * 0x9E3779B97F4A7C15
		engines[i], contents[i] = kv.EngineHash(n), kv.ContentHash(n^n>>31)
	}
	return engines, contents
}

// fleetEvents plays the events of worker k, batch by batch, on whatever index.
type fleetEvents struct {
	rand *rand.Rand
}

func newFleetEvents(k int) *fleetEvents {
	return &fleetEvents{rand.New(rand.NewPCG(11, uint64(k)))}
}

func (f *fleetEvents) next(idx shard.Index, h shard.Holder) error {
	engines, contents := nodesChain(f.rand.IntN(nodesChains))
	n := 1 + f.rand.IntN(nodesBlocks)
	switch f.rand.IntN(40) {
	case 0:
		return idx.Clear(h)
	case 1, 2, 3, 4, 5, 6, 7, 8:
		return idx.Remove(h, &shard.Remove{Engines: engines[n-1:]})
	}
	return idx.Store(h, &shard.Store{Namespace: nodesModel.Namespace(kv.HashSeed), Engines: engines[:n], Contents: contents[:n]})
}

// bulk gives shard i a holder of so much that its memory grows well past what is
// left to the first touch, and sees that all is there.
func bulk(t *testing.T, idx *shard.Sharded, i int) {
	t.Helper()
	const chains, blocks = 1200, 512
	h, err := idx.AddHolderTo(i, nodesModel)
	if err != nil {
		t.Fatal(err)
	}
	st := shard.Store{Namespace: nodesModel.Namespace(kv.HashSeed), Engines: make([]kv.EngineHash, blocks), Contents: make([]kv.ContentHash, blocks)}
	fill := func(c int) {
		for b := range blocks {
			n := (uint64(1+i)<<40 | uint64(c*blocks+b)) * 0x9E3779B97F4A7C15
			st.Engines[b], st.Contents[b] = kv.EngineHash(n), kv.ContentHash(n^n>>29)
		}
	}
	for c := range chains {
		fill(c)
		if err := idx.Store(h, &st); err != nil {
			t.Fatal(err)
		}
	}
	for c := range chains {
		fill(c)
		if ms := idx.Lookup(st.Namespace, st.Contents, nil); len(ms) != 1 || ms[0].Holder != uint32(h) || ms[0].Any != blocks {
			t.Fatalf("shard %d, chain %d: got %v, want holder %d with %d", i, c, ms, h, blocks)
		}
	}
}

// nodesUnderTest are this machine's nodes that threads can run on, with a shard
// each, or two where there is one node.
func nodesUnderTest(t *testing.T) (*numa.Topology, []Node, []shard.Options) {
	t.Helper()
	top, err := numa.Discover("/")
	if err != nil {
		t.Fatal(err)
	}
	var nodes []Node
	var opts []shard.Options
	for _, n := range top.Workplaces() {
		shards := 1
		if len(top.Workplaces()) == 1 {
			shards = 2
		}
		nodes = append(nodes, Node{ID: n.ID, Shards: shards, Lanes: 2, CPUs: n.CPUs})
		for range shards {
			opts = append(opts, shard.Options{Placement: top.Local(n.ID)})
		}
	}
	return top, nodes, opts
}

// TestNodes runs a fleet on all nodes of the machine: each worker's batches are
// prepared and applied on its shard's node and nowhere else, each shard's memory
// lies there, each node's query thread runs there, and the answers of all shards
// together are those of one shard and of the reference.
func TestNodes(t *testing.T) {
	top, nodes, opts := nodesUnderTest(t)
	p := newPool(t, Options{Nodes: nodes})
	idx, err := shard.NewSharded("chain", opts...)
	if err != nil {
		t.Fatal(err)
	}
	var strays atomic.Uint64 // seen on another node
	here := func(node int) {
		if _, at, err := numa.CurrentNode(); err != nil || at != node {
			strays.Add(1)
		}
	}
	var stop atomic.Bool
	var readers, writers sync.WaitGroup
	var reads atomic.Uint64
	for _, n := range nodes {
		readers.Go(func() {
			query(t, p, idx, n, &stop, func() { here(n.ID); reads.Add(1) })
		})
	}
	workers := nodesWorkers * p.Shards()
	holders := make([]shard.Holder, workers)
	ran := make([]atomic.Uint64, p.Shards())
	for k := range workers {
		w := add(t, p, k%p.Shards())
		if holders[k], err = idx.AddHolderTo(w.Shard(), nodesModel); err != nil {
			t.Fatal(err)
		}
		writers.Go(func() {
			events := newFleetEvents(k)
			j := &do{batches: 1, prepare: func(int) { here(w.Node()) }, apply: func(int) {
				here(w.Node())
				ran[w.Shard()].Add(1)
				if err := events.next(idx, holders[k]); err != nil {
					t.Error(err)
				}
			}}
			for range nodesJobs {
				j.i = 0
				if err := w.Do(j); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	for s := range ran {
		if got := ran[s].Load(); got != nodesWorkers*nodesJobs {
			t.Errorf("shard %d: %d batches, want %d", s, got, nodesWorkers*nodesJobs)
		}
	}
	if n := strays.Load(); n > 0 || reads.Load() == 0 {
		t.Errorf("%d times on another node than one's own; %d lookups meanwhile", n, reads.Load())
	}
	for i, n := range nodes {
		unpin, err := numa.LockAndPin(nodes[(i+1)%len(nodes)].CPUs) // not its own: the policy decides
		if err != nil {
			t.Fatal(err)
		}
		for s := range p.Shards() {
			if p.NodeOf(s) == n.ID {
				bulk(t, idx, s)
			}
		}
		unpin()
	}
	checkPlaces(t, top, nodes)
	checkUnion(t, idx, holders)
}

// query asks the shards of node n from a thread there until stop.
func query(t *testing.T, p *Pool, idx *shard.Sharded, n Node, stop *atomic.Bool, asked func()) {
	unpin, err := numa.LockAndPin(n.CPUs)
	if err != nil {
		t.Error(err)
		return
	}
	defer unpin()
	var dst []kv.Match
	for c := 0; !stop.Load(); c++ {
		_, contents := nodesChain(c % nodesChains)
		for s := range p.Shards() {
			if p.NodeOf(s) != n.ID {
				continue
			}
			dst = idx.LookupShard(s, nodesModel.Namespace(kv.HashSeed), contents, dst[:0])
			for _, m := range dst {
				if m.Any > nodesBlocks || idx.ShardOf(shard.Holder(m.Holder)) != s {
					t.Errorf("shard %d says %+v of a chain of %d blocks", s, m, nodesBlocks)
				}
			}
		}
		asked()
	}
}

// checkPlaces asks the kernel where the memory of each node's shards lies.
func checkPlaces(t *testing.T, top *numa.Topology, nodes []Node) {
	t.Helper()
	if top.Flat {
		t.Log("this kernel knows no nodes: nothing to look at")
		return
	}
	accounts := numa.Accounts(1 << 14)
	for _, n := range nodes {
		want := top.Local(n.ID)
		home, _ := want.Node()
		i := slices.IndexFunc(accounts, func(a numa.Account) bool { return a.Want.String() == want.String() })
		if i < 0 {
			t.Errorf("node %d: no memory for %s", n.ID, want)
			continue
		}
		a := accounts[i]
		if strings.HasPrefix(a.Why, "mbind") {
			t.Logf("node %d: placement is forbidden here: %s", n.ID, a.Why)
			continue
		}
		t.Logf("node %d: %d pieces, %d KiB usable for %s: sampled pages %v", n.ID, a.Pieces, a.Bytes>>10, want, a.Pages)
		if len(a.Pages) != 1 || a.Pages[0].Node != home || a.Remote != 0 || a.Why != "" || a.ByPolicy[numa.PolicyBound] != a.Bytes {
			t.Errorf("node %d: %+v, want all on node %d", n.ID, a, home)
		}
	}
}

// checkUnion plays the fleet again on one shard and on the reference, and
// compares all three on every chain.
func checkUnion(t *testing.T, idx *shard.Sharded, holders []shard.Holder) {
	t.Helper()
	one, err := shard.New("chain", shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := []shard.Index{idx, one, shard.NewReference(shard.Options{})}
	who := []map[uint32]int{{}, {}, {}} // worker by holder
	for k, h := range holders {
		who[0][uint32(h)] = k
		for i, idx := range all[1:] {
			h, err := idx.AddHolder(nodesModel)
			if err != nil {
				t.Fatal(err)
			}
			who[1+i][uint32(h)] = k
			for events, n := newFleetEvents(k), 0; n < nodesJobs; n++ {
				if err := events.next(idx, h); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	found := 0
	for c := range nodesChains {
		_, contents := nodesChain(c)
		var answers [3][]kv.Match
		for i, idx := range all {
			ms := idx.Lookup(nodesModel.Namespace(kv.HashSeed), contents, nil)
			for j := range ms {
				ms[j].Holder = uint32(who[i][ms[j].Holder])
			}
			slices.SortFunc(ms, func(a, b kv.Match) int { return cmp.Compare(a.Holder, b.Holder) })
			answers[i] = ms
		}
		found += len(answers[2])
		if !slices.Equal(answers[0], answers[2]) || !slices.Equal(answers[1], answers[2]) {
			t.Errorf("chain %d:\nshards    %v\none shard %v\nreference %v", c, answers[0], answers[1], answers[2])
		}
	}
	if found < len(holders) {
		t.Errorf("%d matches on %d chains: nothing was compared", found, nodesChains)
	}
}

// TestFullNodeIndex fills a small node and then keeps an index there: what its
// node has no room for lies elsewhere, is told, and answers are exact.
func TestFullNodeIndex(t *testing.T) {
	const small = 768 << 20
	top, _, _ := nodesUnderTest(t)
	memory := top.MemoryNodes()
	full, _ := top.Node(memory[len(memory)-1])
	if len(memory) < 2 || full.Total >= small {
		t.Skip("no second node small enough to fill: this wants the emulated machine (make test-numa)")
	}
	filler, err := numa.Reserve(full.Total, numa.OnNode(full.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := filler.Commit(filler.Reserved()); err != nil {
		t.Fatal(err)
	}
	idx, err := shard.NewSharded("chain", shard.Options{Placement: numa.OnNode(full.ID)})
	if err != nil {
		t.Fatal(err)
	}
	var holders []shard.Holder
	for k := range 2 * nodesWorkers {
		h, err := idx.AddHolder(nodesModel)
		if err != nil {
			t.Fatal(err)
		}
		holders = append(holders, h)
		for events, n := newFleetEvents(k), 0; n < nodesJobs; n++ {
			if err := events.next(idx, h); err != nil {
				t.Fatal(err)
			}
		}
	}
	bulk(t, idx, 0)
	accounts := numa.Accounts(1 << 14)
	i := slices.IndexFunc(accounts, func(a numa.Account) bool {
		return a.Want.String() == numa.OnNode(full.ID).String()
	})
	if i < 0 {
		t.Fatalf("no account of node %d: %+v", full.ID, accounts)
	}
	a := accounts[i]
	t.Logf("node %d filled: %d KiB usable, %d checked, %d elsewhere; pages %v; %s", full.ID, a.Bytes>>10, a.Checked>>10, a.Remote>>10, a.Pages, a.Why)
	if a.ByPolicy[numa.PolicyPreferred] == 0 || a.Remote == 0 || a.Want.RemoteShare(a.Pages) == 0 || !strings.Contains(a.Why, "the rest goes where there is room") {
		t.Errorf("got %+v, want some of it preferred and elsewhere, and a line that says why", a)
	}
	checkUnion(t, idx, holders)
	if err := filler.Release(); err != nil {
		t.Error(err)
	}
}
