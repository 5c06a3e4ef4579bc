// SPDX-License-Identifier: Apache-2.0

package livedigest

import (
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
)

// TestVectors compares with numbers of the reference XXH3 (Python's xxhash) under
// the rule that docs/protocol.md writes down. The contents are of the hashing
// rules' own vectors.
func TestVectors(t *testing.T) {
	if got := Root(kv.HashSeed); got != 1337 {
		t.Errorf("the root is %d, want 1337", got)
	}
	const first, second = 9020166550358652083, 6403915489536845695
	if got := Child(Root(kv.HashSeed), 14643705804678351452); got != first {
		t.Errorf("the first block is at %d, want %d", got, uint64(first))
	}
	if got := Child(first, 16777012769546811212); got != second {
		t.Errorf("the second block is at %d, want %d", got, uint64(second))
	}
	for _, c := range []struct {
		engine   kv.EngineHash
		position uint64
		tier     kv.Tier
		group    uint8
		n        uint32
		want     uint64
	}{
		{0, 0, 0, 0, 1, 3880594262836828984},
		{1, first, kv.TierDevice, 0, 1, 1638458932032516456},
		{2, second, kv.TierHost, 3, 2, 17414344251204521972},
		{1<<64 - 1, second, kv.TierDisk, 255, 65535, 10925899773583452105},
	} {
		if got := Copies(c.engine, c.position, c.tier, c.group, c.n); got != c.want {
			t.Errorf("%d copies of %d add %d, want %d", c.n, c.engine, got, c.want)
		}
	}
}

// TestBook walks a small content through all that can happen to it.
func TestBook(t *testing.T) {
	var b Book
	st := &Store{Seed: kv.HashSeed, Engines: []kv.EngineHash{1, 2}, Contents: []kv.ContentHash{14643705804678351452, 16777012769546811212}}
	host := &Store{Tier: kv.TierHost, Group: 3, Engines: []kv.EngineHash{2}}
	f := func(what string, ok, wantOK bool, blocks int, sum uint64) {
		t.Helper()
		if ok != wantOK || b.Blocks() != blocks || b.Sum() != sum {
			t.Errorf("%s: %v, %d blocks, digest %d; want %v, %d, %d", what, ok, b.Blocks(), b.Sum(), wantOK, blocks, sum)
		}
	}
	pair := Copies(1, 9020166550358652083, 0, 0, 1) + Copies(2, 6403915489536845695, 0, 0, 1)
	f("a copy of nothing", b.Store(host), false, 0, 0)
	f("a store", b.Store(st), true, 2, pair)
	b.Store(host)
	f("two host copies", b.Store(host), true, 2, 9440995235068628326)
	f("one that is not there", b.Remove(kv.TierDisk, 0, []kv.EngineHash{2}), false, 2, 9440995235068628326)
	f("a hash nobody told", b.Remove(kv.TierDevice, 0, []kv.EngineHash{9}), false, 2, 9440995235068628326)
	f("an unknown parent", b.Store(&Store{Parent: 9, HasParent: true, Engines: st.Engines, Contents: st.Contents}), false, 2, 9440995235068628326)
	f("too few contents", b.Store(&Store{Engines: st.Engines, Contents: st.Contents[:1]}), false, 2, 9440995235068628326)
	f("a host copy goes", b.Remove(kv.TierHost, 3, []kv.EngineHash{2}), true, 2, pair+Copies(2, 6403915489536845695, 1, 3, 1))
	f("the device's goes", b.Remove(kv.TierDevice, 0, []kv.EngineHash{2}), true, 2, pair-Copies(2, 6403915489536845695, 0, 0, 1)+Copies(2, 6403915489536845695, 1, 3, 1))
	moved := &Store{Parent: 1, HasParent: true, Engines: []kv.EngineHash{2}, Contents: []kv.ContentHash{7}}
	at := Child(9020166550358652083, 7)
	f("a move", b.Store(moved), true, 2, Copies(1, 9020166550358652083, 0, 0, 1)+Copies(2, at, 0, 0, 1))
	f("the last copy goes", b.Remove(kv.TierDevice, 0, []kv.EngineHash{2}), true, 1, Copies(1, 9020166550358652083, 0, 0, 1))
	b.Clear()
	f("a clear", true, true, 0, 0)
}

// TestBookSums: whatever was done, the digest is the sum over what is there.
func TestBookSums(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var b Book
	for range 20_000 {
		engines := []kv.EngineHash{kv.EngineHash(r.IntN(40)), kv.EngineHash(r.IntN(40))}
		tier, group := kv.Tier(r.IntN(3)), uint8(r.IntN(2))
		switch r.IntN(3) {
		case 0:
			b.Store(&Store{
				Tier: tier, Group: group, Engines: engines, Parent: kv.EngineHash(r.IntN(40)), HasParent: r.IntN(2) == 0,
				Contents: []kv.ContentHash{kv.ContentHash(r.IntN(2)), kv.ContentHash(r.IntN(2))},
			})
		case 1:
			b.Store(&Store{Tier: tier, Group: group, Engines: engines})
		case 2:
			b.Remove(tier, group, engines)
		}
	}
	var want uint64
	for e, bl := range b.blocks {
		for _, c := range append([]copies{bl.copies}, b.more[e]...) {
			if c.n == 0 {
				t.Errorf("no copies of %d in %v are kept", e, c.place)
			}
			want += Copies(e, bl.position, c.tier, c.group, c.n)
		}
	}
	if b.Sum() != want || b.Blocks() == 0 {
		t.Errorf("the digest of %d blocks is %x, want %x", b.Blocks(), b.Sum(), want)
	}
}
