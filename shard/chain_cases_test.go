// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// hashesOf returns engine hashes that no two contents share.
func hashesOf(contents []kv.ContentHash, seed int) []kv.EngineHash {
	e := make([]kv.EngineHash, len(contents))
	h := uint64(seed)
	for i, c := range contents {
		h = (h ^ uint64(c) + 1) * 0x9E3779B97F4A7C15
		e[i] = kv.EngineHash(h ^ h>>31)
	}
	return e
}

// chainOf returns n contents that begin at first and have nothing in common with
// those of another first.
func chainOf(first, n int) []kv.ContentHash {
	c := make([]kv.ContentHash, n)
	for i := range c {
		c[i] = kv.ContentHash(first*1_000_003 + i)
	}
	return c
}

func mustStore(t testing.TB, c core, s slot, contents []kv.ContentHash) {
	t.Helper()
	held := make([]uint64, len(contents)/64+1)
	if _, err := c.store(s, 1, 0, hashesOf(contents, 0), contents, held, nil); err != nil {
		t.Fatalf("store: %v", err)
	}
}

func newChain(t testing.TB, o Options) *chainCore {
	t.Helper()
	c, err := newChainCore(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestChainShortenedMeanwhile: between two steps of a lookup the run it has passed
// is cut off and grows again with other blocks, and the run below comes back under
// the same place. What it holds is of another chain.
func TestChainShortenedMeanwhile(t *testing.T) {
	c := newChain(t, Options{})
	for s := range slot(3) {
		c.open(s + 1)
	}
	mustStore(t, c, 1, []kv.ContentHash{1, 2, 3, 4})
	mustStore(t, c, 2, []kv.ContentHash{1})
	mustStore(t, c, 3, []kv.ContentHash{1, 2, 3, 5})
	steps := 0
	c.testHookLookup = func() {
		if steps++; steps != 3 { // before the second step
			return
		}
		c.clear(1)
		c.clear(3)
		mustStore(t, c, 1, []kv.ContentHash{1, 8, 9, 4})
		mustStore(t, c, 1, []kv.ContentHash{1, 8, 9, 5})
	}
	got := sorted(c.lookup(1, []kv.ContentHash{1, 2, 3, 5}, nil))
	if steps < 3 {
		t.Fatalf("the writer never ran: %d steps", steps)
	}
	for _, d := range got {
		if d.slot == 1 && d.depth > 3 {
			t.Errorf("slot 1: got depth %d, of which at most 3 was ever true", d.depth)
		}
	}
	c.check()
}

// TestChainArenaFull fills a small arena, and holds that a refused store changes
// nothing, that removals are never refused, and that room comes back.
func TestChainArenaFull(t *testing.T) {
	c := newChain(t, Options{ArenaBytes: 4 << 20})
	c.open(1)
	c.open(2)
	fill := func() (n int) {
		for ; ; n++ {
			chain := chainOf(n, 300)
			held := make([]uint64, 5)
			before := c.held(1)
			_, err := c.store(1, 1, 0, hashesOf(chain, 0), chain, held, nil)
			if errors.Is(err, ErrArenaFull) {
				if got := c.held(1); got != before {
					t.Fatalf("a refused store: holds %d, want %d", got, before)
				}
				if got := c.lookup(1, chain, nil); len(got) != 0 {
					t.Fatalf("a refused store is visible: %v", got)
				}
				return n
			}
			if err != nil || n > 10000 {
				t.Fatalf("store %d: %v", n, err)
			}
		}
	}
	n := fill()
	if n < 100 {
		t.Fatalf("4 MiB took only %d chains of 300 blocks", n)
	}
	c.check()
	// Holes everywhere: each wants a bitmap.
	for i := range n {
		chain := chainOf(i, 300)
		if unknown := c.remove(1, hashesOf(chain, 0)[100:101], nil); len(unknown) != 0 {
			t.Fatalf("chain %d: unknown %v", i, unknown)
		}
	}
	c.check()
	c.clear(1)
	c.check()
	var st Stats
	c.stats(&st)
	if st.Runs != 0 || st.Blocks != 0 {
		t.Errorf("after clear: %d runs, %d blocks", st.Runs, st.Blocks)
	}
	if again := fill(); again < n*9/10 {
		t.Errorf("after clear: room for %d chains, was %d", again, n)
	}
	c.check()
}

// TestChainManySlots has tens of thousands of slots hold one chain whole, parts of
// it, and go to and fro, and compares with the naive core.
func TestChainManySlots(t *testing.T) {
	slots := longtest.N(5_000, 40_000)
	c, naive := newChain(t, Options{}), newNaiveCore()
	chain := chainOf(1, 90)
	engines := hashesOf(chain, 0)
	held := make([]uint64, 2)
	r := rand.New(rand.NewPCG(9, 9))
	both := func(fn func(core)) { fn(c); fn(naive) }
	check := func() {
		t.Helper()
		c.check()
		for _, n := range []int{1, 45, 90} {
			got, want := sorted(c.lookup(1, chain[:n], nil)), sorted(naive.lookup(1, chain[:n], nil))
			if !slices.Equal(got, want) {
				t.Fatalf("lookup of %d blocks: %d slots, want %d", n, len(got), len(want))
			}
		}
	}
	for i := range slots {
		s := slot(i*65_000/slots + 1)
		n := 90
		if i%7 == 0 {
			n = 1 + r.IntN(90)
		}
		both(func(k core) {
			k.open(s)
			if _, err := k.store(s, 1, 0, engines[:n], chain[:n], held, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	check()
	for range slots {
		s := slot(r.IntN(slots)*65_000/slots + 1)
		lo := r.IntN(90)
		hi := lo + 1 + r.IntN(90-lo)
		if r.IntN(2) == 0 {
			both(func(k core) { k.remove(s, engines[lo:hi], nil) })
		} else {
			both(func(k core) { _, _ = k.store(s, 1, 0, engines, chain, held, nil) })
		}
	}
	check()
	for i := range slots {
		if i%50 != 0 {
			s := slot(i*65_000/slots + 1)
			both(func(k core) { k.close(s) })
		}
	}
	check()
}

// TestChooseExt holds that every geometry takes the holders it is chosen for.
func TestChooseExt(t *testing.T) {
	for whole := range 300 {
		for partial := range 80 {
			for _, maxWhole := range []slot{slot(whole), 640, 65_535} {
				for _, table := range []int{0, 9, 40} {
					g := chooseExt(whole, partial, maxWhole, max(maxWhole, 1000), table)
					entries := partial
					if g.width*64 <= int(maxWhole) {
						entries += whole
					}
					if extLimit(g.table) < entries || g.table < table || extBits+g.width+g.table != int(pieceLines[g.class])*lineWords {
						t.Fatalf("%d whole up to %d, %d partial, table %d: got %+v", whole, maxWhole, partial, table, g)
					}
				}
			}
		}
	}
	if g := chooseExt(65_535, 65_535, 65_535, 65_535, 0); g.class >= numPieces {
		t.Errorf("the largest block wants class %d of %d", g.class, numPieces)
	}
}

// TestChainEqualHashes: an engine that names all its blocks alike costs itself no
// more than time in proportion.
func TestChainEqualHashes(t *testing.T) {
	c, naive := newChain(t, Options{}), newNaiveCore()
	chain := chainOf(1, 3000)
	engines := make([]kv.EngineHash, len(chain))
	for _, k := range []core{c, naive} {
		k.open(1)
		held := make([]uint64, len(chain)/64+1)
		moved, err := k.store(1, 1, 0, engines, chain, held, nil)
		if err != nil || len(moved) != len(chain)-1 {
			t.Fatalf("moved %d of %d, %v", len(moved), len(chain), err)
		}
	}
	c.check()
	if got, want := walkOf(t, c, 1), walkOf(t, naive, 1); !slices.Equal(got, want) {
		t.Errorf("walk: %d positions, want %d", len(got), len(want))
	}
	if unknown := c.remove(1, engines[:2], nil); len(unknown) != 1 {
		t.Errorf("removed twice: %d unknown, want 1", len(unknown))
	}
	c.check()
}

// TestChainLookupAllocates holds that a lookup with room in dst allocates nothing.
func TestChainLookupAllocates(t *testing.T) {
	if RaceEnabled {
		t.Skip("under the race detector pools drop what they are given")
	}
	for _, holders := range []int{1, 3, 16, 300} {
		c := newChain(t, Options{})
		chain := chainOf(1, 700)
		for i := range holders {
			c.open(slot(i + 1))
			mustStore(t, c, slot(i+1), chain[:700-i%200])
		}
		dst := make([]slotDepth, 0, holders)
		if n := testing.AllocsPerRun(100, func() { dst = c.lookup(1, chain, dst[:0]) }); n != 0 {
			t.Errorf("%d holders: %v allocations a lookup, want 0", holders, n)
		}
		if len(dst) != holders {
			t.Errorf("%d holders: got %d", holders, len(dst))
		}
	}
}

// TestChainRunsForgotten: what a slot remembers of runs long gone is bounded.
func TestChainRunsForgotten(t *testing.T) {
	c := newChain(t, Options{})
	c.open(1)
	for i := range 5000 {
		chain := chainOf(i, 5)
		mustStore(t, c, 1, chain)
		c.remove(1, hashesOf(chain, 0), nil)
	}
	if runs := &c.slot(1).runs; runs.n > 0 || runs.bytes() > 1000 {
		t.Errorf("a slot that holds nothing remembers %d runs, in %d bytes", runs.n, runs.bytes())
	}
	c.check()
}
