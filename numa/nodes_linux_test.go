// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"errors"
	"slices"
	"testing"
)

// TestEachNode pins a goroutine to each node in turn: it runs there, and what
// it touches first lies there; without memory there, what is placed near it does.
func TestEachNode(t *testing.T) {
	mayPlace(t)
	top := here(t)
	for _, n := range top.Workplaces() {
		unpin, err := LockAndPin(n.CPUs)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if cpu, node, err := CurrentNode(); err != nil || node != n.ID || !slices.Contains(n.CPUs, cpu) {
				t.Fatalf("runs on CPU %d of node %d, %v; pinned to node %d, CPUs %v", cpu, node, err, n.ID, n.CPUs)
			}
		}
		r, err := Reserve(1<<30, top.Local(n.ID))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Commit(8 * HugePage); err != nil {
			t.Fatal(err)
		}
		touch(r)
		pages, err := r.PagesByNode(4096)
		if err != nil || !slices.Equal(nodesOf(pages), []int{n.Home}) {
			t.Errorf("node %d, placed %s: pages %v, %v; want node %d", n.ID, top.Local(n.ID), pages, err, n.Home)
		}
		b, err := NewBlock(4*HugePage/8, Placement{})
		if err != nil {
			t.Fatal(err)
		}
		pages, err = b.PagesByNode(4096)
		if err != nil || n.Memory && !slices.Equal(nodesOf(pages), []int{n.ID}) {
			t.Errorf("node %d, placed anywhere: pages %v, %v; want its own", n.ID, pages, err)
		}
		if err := errors.Join(r.Release(), b.Release()); err != nil {
			t.Error(err)
		}
		unpin()
	}
}

// TestFullNode fills a small node past its end: the rest goes elsewhere, and is
// told.
func TestFullNode(t *testing.T) {
	mayPlace(t)
	const small = 768 << 20
	top := here(t)
	nodes := top.MemoryNodes()
	var full Node
	for _, id := range nodes {
		if n, _ := top.Node(id); n.Total < small && id != nodes[0] {
			full = n
		}
	}
	if full.Total == 0 {
		t.Skip("no second node small enough to fill: this wants the emulated machine (make test-numa)")
	}
	first, _ := top.Node(nodes[0])
	bytes := roundUp(full.Total+min(64<<20, first.Free/4), HugePage)
	r, err := Reserve(bytes, OnNode(full.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Release() }()
	var spilt uint64 // where it turned from bound to preferred
	for off := uint64(HugePage); off <= bytes; off += HugePage {
		if err := r.Commit(off); err != nil {
			t.Fatalf("%d MiB: %v", off>>20, err)
		}
		if p := r.Placed(); spilt == 0 && p.Policy == PolicyPreferred {
			spilt = off
			if pages, err := r.PagesByNode(4096); err != nil || OnNode(full.ID).RemoteShare(pages) != 0 {
				t.Errorf("%d MiB, all bound so far: pages %v, %v", off>>20, pages, err)
			}
		}
	}
	touch(r)
	got := r.Placed()
	pages, err := r.PagesByNode(1 << 16)
	share := OnNode(full.ID).RemoteShare(pages)
	t.Logf("node %d, %d of %d MiB free: %d MiB taken, bound up to %d; pages %v; %s: %s", full.ID, full.Free>>20, full.Total>>20, bytes>>20, spilt>>20, pages, got.Policy, got.Why)
	if spilt < full.Free/2 || spilt > full.Free {
		t.Errorf("bound up to %d MiB of %d free", spilt>>20, full.Free>>20)
	}
	// What is not on the node is at least what it does not have.
	least := float64(bytes-full.Total) / float64(bytes)
	if err != nil || share < least || share > 0.6 || got.RemoteShare() < least/2 {
		t.Errorf("remote share %.2f of the pages, %v, %.2f as taken; want %.2f at least", share, err, got.RemoteShare(), least)
	}

	// What was bound is given back, the node fills up with others' memory, and it is
	// touched again.
	const again = 24 << 20
	if err := r.Discard(8*HugePage, again); err != nil {
		t.Fatal(err)
	}
	other, err := Reserve(again+lazyPrefix, OnNode(full.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Release() }()
	if err := other.Commit(other.Reserved()); err != nil {
		t.Fatal(err)
	}
	touch(r)
	if got, err := r.Resident(); err != nil || got != bytes {
		t.Errorf("%d bytes in memory after all was touched again, %v; want %d", got, err, bytes)
	}
}
