// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/shard"
)

// TestCover holds what each kind says of a chain, block by block, against the
// reference, and both against the depths that lookups answer.
func TestCover(t *testing.T) {
	for _, kind := range shard.Kinds {
		t.Run(kind, func(t *testing.T) {
			holes, waiting := 0, 0
			for seed := range uint64(longtest.N(3, 40)) {
				w := newTwins(t, kind, seed, 6)
				for range 12 {
					for range 40 {
						w.act(w.rng.IntN(len(w.ids)))
					}
					q := w.rng.IntN(twinChains)
					ns := w.model.Namespace(kv.HashSeed + uint64(w.rng.IntN(8)/7))
					chain := make([]kv.ContentHash, w.rng.IntN(twinBlocks+20))
					for i := range chain {
						chain[i] = twinContent(q, i)
					}
					matches := w.idx[0].Lookup(ns, chain, nil)
					for i, ids := range w.ids {
						var got [2][]shard.Held
						for k, idx := range w.idx {
							c, err := shard.Cover(idx, ids[k], ns, chain)
							if err != nil {
								t.Fatal(err)
							}
							c.FindWaiting()
							got[k] = c.Blocks
						}
						if !slices.Equal(got[0], got[1]) {
							t.Fatalf("seed %d, holder %d:\n got %v\nwant %v", seed, i, got[0], got[1])
						}
						var m kv.Match
						for _, x := range matches {
							if x.Holder == uint32(ids[0]) {
								m = x
							}
						}
						for _, d := range []struct {
							depth uint32
							bits  shard.Held
						}{{m.Device, shard.HeldDevice}, {m.Host, shard.HeldDevice | shard.HeldHost}, {m.Any, shard.HeldAny}} {
							n := slices.IndexFunc(got[0], func(b shard.Held) bool { return b&d.bits == 0 })
							if n < 0 {
								n = len(chain)
							}
							if n != int(d.depth) {
								t.Fatalf("seed %d, holder %d: %d blocks in %03b, a lookup says %d", seed, i, n, d.bits, d.depth)
							}
						}
						for k, b := range got[0] {
							if k > int(m.Any) && b&shard.HeldAny != 0 {
								holes++
							}
							if b&shard.HeldWaiting != 0 {
								waiting++
							}
						}
					}
				}
			}
			if holes == 0 || waiting == 0 {
				t.Errorf("%d blocks below holes, %d that wait: the test shows nothing", holes, waiting)
			}
		})
	}
}

// TestCoverWaiting: what waits is found where its blocks are the chain's, and a block
// that was removed while it waited is not.
func TestCoverWaiting(t *testing.T) {
	for _, kind := range shard.Kinds {
		idx, err := shard.New(kind, shard.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := idx.AddHolder(7)
		if err != nil {
			t.Fatal(err)
		}
		ns := kv.ModelKey(7).Namespace(kv.HashSeed)
		st := shard.Store{
			Namespace: ns, Parent: 99, HasParent: true,
			Engines: []kv.EngineHash{13, 14, 15, 16}, Contents: []kv.ContentHash{3, 4, 5, 6},
		}
		if err := idx.Store(h, &st); err != nil {
			t.Fatal(err)
		}
		if err := idx.Remove(h, &shard.Remove{Engines: []kv.EngineHash{14}}); err != nil {
			t.Fatal(err)
		}
		w := shard.HeldWaiting
		for _, c := range []struct {
			chain []kv.ContentHash
			ns    kv.Namespace
			want  []shard.Held
		}{
			{[]kv.ContentHash{1, 2, 3, 4, 5}, ns, []shard.Held{0, 0, w, 0, w}},
			{[]kv.ContentHash{3, 9, 5, 3, 4, 5, 6, 7}, ns, []shard.Held{w, 0, 0, w, 0, w, w, 0}},
			{[]kv.ContentHash{4, 5, 6}, ns, []shard.Held{0, 0, 0}},
			{[]kv.ContentHash{3, 4, 5}, ns + 1, []shard.Held{0, 0, 0}},
			{nil, ns, []shard.Held{}},
		} {
			cov, err := shard.Cover(idx, h, c.ns, c.chain)
			if err != nil {
				t.Fatal(err)
			}
			cov.FindWaiting()
			if !slices.Equal(cov.Blocks, c.want) {
				t.Errorf("%s: %v: got %v, want %v", kind, c.chain, cov.Blocks, c.want)
			}
		}
		if _, err := shard.Cover(idx, h+1, ns, nil); err == nil {
			t.Errorf("%s: a holder that is not there has a coverage", kind)
		}
	}
}

// BenchmarkCover is one holder's coverage of the longest chain that is explained: how
// long the shard's turn is taken.
func BenchmarkCover(b *testing.B) {
	idx, err := shard.New("chain", shard.Options{})
	if err != nil {
		b.Fatal(err)
	}
	h, err := idx.AddHolder(7)
	if err != nil {
		b.Fatal(err)
	}
	ns := kv.ModelKey(7).Namespace(kv.HashSeed)
	chain := make([]kv.ContentHash, 1<<16)
	engines := make([]kv.EngineHash, len(chain))
	for i := range chain {
		chain[i], engines[i] = kv.ContentHash(i)*0x9e3779b97f4a7c15, kv.EngineHash(i+1)
	}
	for tier := range kv.LocalTiers {
		if err := idx.Store(h, &shard.Store{Tier: kv.Tier(tier), Namespace: ns, Engines: engines, Contents: chain}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := shard.Cover(idx, h, ns, chain); err != nil {
			b.Fatal(err)
		}
	}
}
