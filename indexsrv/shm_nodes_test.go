// SPDX-License-Identifier: Apache-2.0

//go:build linux

package indexsrv

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"kindex/indexclient"
	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/numa"
)

// TestNodeHostShm: the rings of each shard lie on the shard's node, whoever writes
// there, and its thread runs there; what the client unites is one shard's answer.
func TestNodeHostShm(t *testing.T) {
	topo, err := numa.Discover("/")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	all := newNodeHost(t, func(c *Config) {
		c.Shm.Listen, c.Shm.Clients = socket, 4
		if len(topo.Workplaces()) == 1 {
			c.ShardsPerNode = 2
		}
	})
	const batches, keep = 20, 10
	ps := steadyBatches(batches, keep)
	streams := 2 * all.pool.Shards()
	all.feed(t, streams, ps)
	places := topo.Workplaces()
	one := newNodeHost(t, func(c *Config) { c.Node, c.MaxStreams, c.ShardsPerNode = places[0].ID, streams, 1 })
	one.feed(t, streams, ps)
	if err := all.shm.listen(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- all.shm.serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := all.shm.drain(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	c, err := indexclient.Dial(t.Context(), "unix:"+socket, indexclient.Options{Timeout: time.Minute, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	// From a thread of each node in turn: whoever touches the memory first does not
	// decide.
	found := 0
	for _, from := range places {
		unpin, err := numa.LockAndPin(from.CPUs)
		if err != nil {
			t.Fatal(err)
		}
		var want, got lookup.Answer
		for i := range uint64(batches + keep) {
			var chain []uint64
			for b := range uint64(24) {
				chain = append(chain, i*120+1+b)
			}
			q := &lookup.Query{Model: "m", Hashes: chainOf(kv.HashSeed, chain...)}
			if err := c.Lookup(t.Context(), q, &got); err != nil {
				t.Fatal(err)
			}
			if err := one.Lookup(t.Context(), q, &want); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Matches, want.Matches) {
				t.Fatalf("chain %d: got %+v\nwant %+v", i, got.Matches, want.Matches)
			}
			found += len(got.Matches)
		}
		unpin()
	}
	if found < streams {
		t.Errorf("%d matches: nothing was compared", found)
	}
	parts := 0
	all.shm.srv.Parts(func(i int, part []byte) {
		parts++
		pages, err := numa.PagesOf(part, len(part))
		if err != nil {
			t.Logf("shard %d: the kernel does not say where its rings lie: %v", i, err)
			return
		}
		want, _ := topo.Node(all.pool.NodeOf(i))
		t.Logf("shard %d of node %d: rings of %d KiB, pages %v", i, want.ID, len(part)>>10, pages)
		if !topo.Flat && (len(pages) != 1 || pages[0].Node != want.Home || pages[0].Pages != uint64(len(part)/4096)) {
			t.Errorf("shard %d: pages %v, want all on node %d", i, pages, want.Home)
		}
		if host, _ := topo.Node(want.Host); !slices.Equal(all.shm.waits.cpus[i], host.CPUs) {
			t.Errorf("shard %d: its thread runs on CPUs %v, want %v", i, all.shm.waits.cpus[i], host.CPUs)
		}
	})
	if parts != all.pool.Shards() {
		t.Errorf("%d parts, want %d", parts, all.pool.Shards())
	}
}
