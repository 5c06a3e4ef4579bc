// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// here is this machine's topology.
func here(t testing.TB) *Topology {
	t.Helper()
	top, err := Discover("/")
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// mayPlace skips t where the kernel may not be told where memory should lie: there
// [TestForbidden] says what then holds.
func mayPlace(t *testing.T) {
	t.Helper()
	b, err := NewBlock(512, OnNode(here(t).MemoryNodes()[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Release() }()
	if p := b.Placed(); p.Policy != PolicyBound {
		t.Skipf("placement is forbidden here: %s", p.Why)
	}
	if _, err := b.PagesByNode(1); err != nil {
		t.Skipf("nobody says where pages are: %v", err)
	}
}

// touch writes a word to each page of r's usable prefix.
func touch(r *Region) {
	for off := uint64(0); off < r.Committed(); off += 4096 {
		*(*uint64)(r.at(off)) = off + 1
	}
}

// nodesOf names the nodes that pages lie on.
func nodesOf(pages []NodePages) []int {
	var ids []int
	for _, p := range pages {
		ids = append(ids, p.Node)
	}
	return ids
}

// TestPlaced puts a region and a block on each node with memory, and all over
// them, and asks the kernel where they lie.
func TestPlaced(t *testing.T) {
	mayPlace(t)
	top := here(t)
	places := []Placement{top.Interleaved()}
	for _, id := range top.MemoryNodes() {
		places = append(places, OnNode(id))
	}
	for _, p := range places {
		r, err := Reserve(1<<30, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Commit(12 * HugePage); err != nil {
			t.Fatal(err)
		}
		touch(r)
		b, err := NewBlock(8*HugePage/8, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []interface {
			PagesByNode(samples int) ([]NodePages, error)
			Placed() Placed
		}{r, b} {
			pages, err := m.PagesByNode(4096)
			if err != nil {
				t.Fatal(err)
			}
			got := m.Placed()
			if want := p.Nodes(); !slices.Equal(nodesOf(pages), want) || p.RemoteShare(pages) != 0 {
				t.Errorf("%s: %T lies on %v (%+v)", p, m, pages, got)
			}
			want := PolicyBound
			if _, one := p.Node(); !one {
				want = PolicyInterleaved
			}
			if got.Policy != want || got.Why != "" || got.Checked < 8*HugePage || got.Remote != 0 || got.RemoteShare() != 0 {
				t.Errorf("%s: %T became %+v, want policy %s", p, m, got, want)
			}
		}
		if err := errors.Join(r.Release(), b.Release()); err != nil {
			t.Error(err)
		}
	}
}

// TestCommitTakes shows that memory past the first huge page is there before a
// touch, and that of the first nothing is.
func TestCommitTakes(t *testing.T) {
	r, err := Reserve(1<<30, Placement{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Release() }()
	for _, c := range []struct{ commit, resident uint64 }{{1, 0}, {2, 1}, {3, 2}, {5, 4}, {5, 4}} {
		if err := r.Commit(c.commit * HugePage); err != nil {
			t.Fatal(err)
		}
		if got, err := r.Resident(); err != nil || got != c.resident*HugePage {
			t.Errorf("%d huge pages usable: %d bytes in memory, %v; want %d", c.commit, got, err, c.resident*HugePage)
		}
	}
	if got := r.Placed(); got.Policy != PolicyFirstTouch || got.Why != "" || !got.Want.Anywhere() {
		t.Errorf("nothing was asked, and it became %+v", got)
	}
}

// TestAhead has memory taken ahead, waits for it by committing it, and releases a
// region while more is under way.
func TestAhead(t *testing.T) {
	for range 20 {
		r, err := Reserve(1<<30, Placement{})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Ahead(4 * HugePage) {
			t.Fatal("Ahead: not for memory that may lie anywhere")
		}
		if got := r.Committed(); got != 0 {
			t.Errorf("%d bytes usable after Ahead, want 0", got)
		}
		for k := range uint64(6) {
			if err := r.Commit((k + 1) * HugePage); err != nil {
				t.Fatal(err)
			}
			*(*uint64)(r.at((k+1)*HugePage - 8)) = k
			if got := r.Taken(); got < (k+1)*HugePage {
				t.Errorf("%d bytes usable, %d taken", r.Committed(), got)
			}
		}
		if got, err := r.Resident(); err != nil || got < 5*HugePage {
			t.Errorf("%d bytes resident of 6 huge pages, %v", got, err)
		}
		if err := r.Discard(3*HugePage, 2*HugePage); err != nil {
			t.Fatal(err)
		}
		if err := r.Refill(3*HugePage, HugePage); err != nil {
			t.Fatal(err)
		}
		if got, err := r.Resident(); err != nil || got > 5*HugePage {
			t.Errorf("%d bytes resident of 6 huge pages after one was given back, %v", got, err)
		}
		r.Ahead(1 << 40) // up to the end, in some time
		if err := r.Release(); err != nil {
			t.Error(err)
		}
	}
}

// TestAheadPlaced has memory taken ahead on each node: the policy decides where it
// lies, and not the goroutine that takes it. Where the kernel may not be told, only
// the owner's thread takes memory.
func TestAheadPlaced(t *testing.T) {
	mayPlace(t)
	for _, id := range here(t).MemoryNodes() {
		r, err := Reserve(1<<30, OnNode(id))
		if err != nil {
			t.Fatal(err)
		}
		if !r.Ahead(12 * HugePage) {
			t.Fatalf("node %d: Ahead: only for its owner", id)
		}
		if err := r.Commit(12 * HugePage); err != nil {
			t.Fatal(err)
		}
		pages, err := r.PagesByNode(4096)
		if got := r.Placed(); err != nil || !slices.Equal(nodesOf(pages), []int{id}) || got.Policy != PolicyBound || got.Checked != 12*HugePage-lazyPrefix {
			t.Errorf("node %d: pages %v, %v; %+v", id, pages, err, got)
		}
		if err := r.Release(); err != nil {
			t.Error(err)
		}
	}
	r, err := Reserve(1<<30, OnNode(1000))
	if err != nil {
		t.Fatal(err)
	}
	if r.Ahead(12*HugePage) || r.Taken() != 0 {
		t.Errorf("node 1000: %d bytes taken ahead, though by touch alone they are placed", r.Taken())
	}
	if err := r.Commit(3 * HugePage); err != nil {
		t.Error(err)
	}
	if err := r.Release(); err != nil {
		t.Error(err)
	}
}

// TestAheadRefused lets the kernel refuse memory in the middle: what is before can be
// had, and Commit says that there is no more, each time.
func TestAheadRefused(t *testing.T) {
	r, err := Reserve(64<<20, Placement{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Release() }()
	const hole = 5 * HugePage
	if err := unix.MunmapPtr(r.at(hole), HugePage); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.Ahead(8 * HugePage)
		if err := r.Commit(hole + 1); err == nil {
			t.Error("memory past the hole was to be had")
		}
		if err := r.Commit(hole); err != nil || r.Committed() != hole || r.Taken() != hole {
			t.Errorf("up to the hole: %d bytes usable, %d taken, %v; want %d", r.Committed(), r.Taken(), err, hole)
		}
	}
}

// TestShortOfMemory lets a node run out, as its meminfo has it: what is taken
// then is preferred there and not bound, and it says so.
func TestShortOfMemory(t *testing.T) {
	mayPlace(t)
	defer func(was func(int) (room, error)) { nodeRoom = was }(nodeRoom)
	const total = 1 << 30
	const keep = 16 << 20
	left, looks := uint64(20*HugePage+keep), 0
	nodeRoom = func(int) (room, error) {
		looks++
		return room{total, left, keep}, nil
	}
	id := here(t).MemoryNodes()[0]
	r, err := Reserve(1<<30, OnNode(id))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Release() }()
	bound := 0
	for i := uint64(1); i <= 40; i++ {
		if err := r.Commit(i * HugePage); err != nil {
			t.Fatal(err)
		}
		left -= min(left, HugePage)
		switch p := r.Placed(); p.Policy {
		case PolicyBound:
			bound++
		case PolicyPreferred:
			if !strings.Contains(p.Why, "MiB of 1024 free and keeps 16") {
				t.Errorf("%d huge pages: why: %q", i, p.Why)
			}
		default:
			t.Fatalf("%d huge pages: %+v", i, p)
		}
	}
	if bound < 18 || bound > 22 {
		t.Errorf("%d huge pages were bound, of a node with room for 20", bound)
	}
	if after := looks; r.Commit(41*HugePage) != nil || looks != after {
		t.Error("free memory is looked at although nothing is bound any more")
	}
	b, err := NewBlock(HugePage/8, OnNode(id))
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Placed(); got.Policy != PolicyPreferred || got.Why == "" {
		t.Errorf("a block on a full node became %+v", got)
	}
	if err := b.Release(); err != nil {
		t.Error(err)
	}
}

// TestLooks counts how often free memory is looked at while there is plenty: not
// for each huge page.
func TestLooks(t *testing.T) {
	defer func(was func(int) (room, error)) { nodeRoom = was }(nodeRoom)
	looks := 0
	nodeRoom = func(int) (room, error) {
		looks++
		return room{64 << 30, 33 << 30, 1 << 30}, nil
	}
	var b binding
	for range 1024 {
		if ok, why := b.fits(0, HugePage); !ok {
			t.Fatal(why)
		}
	}
	if looks != 1 {
		t.Errorf("looked %d times for 2 GiB of 33 free, want once", looks)
	}
	nodeRoom = func(int) (room, error) { return room{}, fs.ErrPermission }
	b = binding{}
	if ok, why := b.fits(0, HugePage); ok || why == "" {
		t.Errorf("bound although nobody says how much is free: %q", why)
	}
}

// TestRoom reads what nodes keep.
func TestRoom(t *testing.T) {
	f := func(edits map[string]string, id int, want room) {
		t.Helper()
		got, err := newSysTree(plantTree(t, "nodes2", edits)).room(id)
		if err != nil || got != want {
			t.Errorf("node %d: got %+v, %v; want %+v", id, got, err, want)
		}
	}
	const total, free = 514260 << 10, 499884 << 10
	zones := map[string]string{
		nodeFile(1, "meminfo"): "Node 1 MemTotal: 514260 kB\nNode 1 MemFree: 499884 kB\n",
		zoneinfo: "Node 0, zone DMA\n  pages free 3840\n        high     99\n" +
			"Node 1, zone DMA32\n  pages free 1\n        min      6290\n        high     9434\n  pagesets\n    cpu: 0\n              high:  378\n" +
			"Node 1, zone Normal\n        high     566\nNode 10, zone Normal\n        high     7\n",
	}
	f(zones, 1, room{total, free, 32<<20 + 10_000*uint64(os.Getpagesize())})
	zones[zoneinfo] = "Node 1, zone DMA32\n        high     many\n"
	f(zones, 1, room{total, free, 32<<20 + total>>5})
	zones[zoneinfo] = gone
	f(zones, 1, room{total, free, 32<<20 + total>>5})
	zones[nodeFile(1, "meminfo")] = "Node 1 MemTotal: 1073741824 kB\nNode 1 MemFree: 0 kB\n"
	zones[zoneinfo] = ""
	f(zones, 1, room{1 << 40, 0, 16 << 30})
	if got, err := nodeRoom(here(t).MemoryNodes()[0]); err != nil || got.keep < keepLeast || got.keep > got.total {
		t.Errorf("this machine: %+v, %v", got, err)
	}
}

// TestAbsentNode asks for a node that is not there: the memory is, and says so.
func TestAbsentNode(t *testing.T) {
	mayPlace(t)
	const id = 1000
	b, err := NewBlock(HugePage/8, OnNode(id))
	if err != nil {
		t.Fatal(err)
	}
	b.Words()[0] = 1
	if got := b.Placed(); got.Policy != PolicyFirstTouch || !strings.Contains(got.Why, "mbind to nodes 1000: ") {
		t.Errorf("got %+v", got)
	}
	if got := b.Placed(); got.RemoteShare() != 1 {
		t.Errorf("remote share %v (%+v), want 1", got.RemoteShare(), got)
	}
	if err := b.Release(); err != nil {
		t.Error(err)
	}
}
