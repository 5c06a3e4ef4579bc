// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"kindex/internal/kv"
)

const shardTestModel = kv.ModelKey(7)

func newShardedOf(t testing.TB, kind string, shards int) *Sharded {
	t.Helper()
	s, err := NewSharded(kind, make([]Options, shards)...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestShardedSpreads: a holder comes where least is held, and among equals where
// the fewest holders are; its number is unlike any other's and names its shard.
func TestShardedSpreads(t *testing.T) {
	ns := shardTestModel.Namespace(kv.HashSeed)
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			s := newShardedOf(t, kind, 4)
			seen := map[Holder]bool{}
			var at []int
			add := func() Holder {
				h, err := s.AddHolder(shardTestModel)
				if err != nil {
					t.Fatal(err)
				}
				if h == 0 || seen[h] {
					t.Fatalf("holder number %d given out twice", h)
				}
				seen[h] = true
				at = append(at, s.ShardOf(h))
				return h
			}
			for range 8 {
				add()
			}
			if want := []int{0, 1, 2, 3, 0, 1, 2, 3}; !slices.Equal(at, want) {
				t.Fatalf("empty holders went to shards %v, want %v", at, want)
			}
			for i, blocks := range []int{3, 1, 2, 5} {
				h := Holder(1 + i)
				st := Store{Namespace: ns}
				for b := range blocks {
					st.Engines = append(st.Engines, kv.EngineHash(b+1))
					st.Contents = append(st.Contents, kv.ContentHash(b+1))
				}
				if err := s.Store(h, &st); err != nil {
					t.Fatal(err)
				}
			}
			if add(); at[8] != 1 {
				t.Errorf("the next holder went to shard %d, want 1, which holds least", at[8])
			}
			if err := s.Clear(4); err != nil {
				t.Fatal(err)
			}
			if add(); at[9] != 3 {
				t.Errorf("the next holder went to shard %d, want 3, which holds nothing now", at[9])
			}
			for i := range 4 {
				st, holders := s.ShardStats(i), uint64(0)
				for _, x := range at {
					if x == i {
						holders++
					}
				}
				if m, h := s.Load(i); m != st.Memberships || h != st.Holders || h != holders {
					t.Errorf("shard %d: load is %d memberships, %d holders; it has %d, %d, and was given %d", i, m, h, st.Memberships, st.Holders, holders)
				}
			}
			if st := s.Stats(); st.Memberships != 6 || st.Holders != 10 {
				t.Errorf("%d memberships of %d holders in all, want 6 of 10", st.Memberships, st.Holders)
			}
			for h := range seen {
				if err := s.Drop(h); err != nil {
					t.Fatal(err)
				}
			}
			if st := s.Stats(); st.Memberships != 0 || st.Holders != 0 {
				t.Errorf("%d memberships of %d holders after all were dropped", st.Memberships, st.Holders)
			}
		})
	}
}

// TestShardedLookup: the answers of the shards one by one are the whole answer.
func TestShardedLookup(t *testing.T) {
	ns, chain := shardTestModel.Namespace(kv.HashSeed), []kv.ContentHash{1, 2, 3}
	s := newShardedOf(t, "chain", 3)
	for i := range 7 {
		h, err := s.AddHolder(shardTestModel)
		if err != nil {
			t.Fatal(err)
		}
		n := i%3 + 1
		if err := s.Store(h, &Store{Namespace: ns, Engines: []kv.EngineHash{1, 2, 3}[:n], Contents: chain[:n]}); err != nil {
			t.Fatal(err)
		}
	}
	all := s.Lookup(ns, chain, nil)
	var union []kv.Match
	for i := range s.Shards() {
		for _, m := range s.LookupShard(i, ns, chain, nil) {
			if at := s.ShardOf(Holder(m.Holder)); at != i {
				t.Errorf("shard %d names holder %d, who lives in %d", i, m.Holder, at)
			}
			union = append(union, m)
		}
	}
	if len(all) != 7 || !slices.Equal(all, union) {
		t.Errorf("all shards answer %v, one by one %v; want 7 matches", all, union)
	}
}

// TestShardedBound: the shards' bounds add up, and the refusal says to how many.
func TestShardedBound(t *testing.T) {
	s := newShardedOf(t, "positional", 2)
	for i := range 2 * MaxHolders {
		if _, err := s.AddHolder(shardTestModel); err != nil {
			t.Fatalf("holder %d of %d: %v", i+1, 2*MaxHolders, err)
		}
	}
	_, err := s.AddHolder(shardTestModel)
	if !errors.Is(err, ErrHolders) {
		t.Fatalf("one more: %v, want %v", err, ErrHolders)
	}
	if want := "index full: it takes 26212 (worker, rank) holders (2 shards of 13106); unregister some or start another index host"; err.Error() != want {
		t.Errorf("the refusal is %q, want %q", err, want)
	}
	if err := s.Drop(2); err != nil {
		t.Fatal(err)
	}
	h, err := s.AddHolder(shardTestModel)
	if err != nil || s.ShardOf(h) != 1 {
		t.Errorf("after a drop in shard 1: holder %d, %v", h, err)
	}
	if _, err := s.AddHolderTo(0, shardTestModel); !errors.Is(err, ErrHolders) {
		t.Errorf("shard 0 is full and says %v", err)
	}
	if _, err := NewSharded("chain"); err == nil {
		t.Error("an index of no shard was made")
	}
	if _, err := NewSharded("chain", make([]Options, MaxShards+1)...); err == nil {
		t.Errorf("an index of %d shards was made", MaxShards+1)
	}
}

// TestShardedWritersAtOnce: one writer in each shard at the same time, and
// readers, who never see a holder deeper than it ever was; exact at the end.
func TestShardedWritersAtOnce(t *testing.T) {
	const shards, holders, length = 3, 12, 40
	ns := shardTestModel.Namespace(kv.HashSeed)
	chain, engines := make([]kv.ContentHash, length), make([]kv.EngineHash, length)
	for i := range length {
		chain[i], engines[i] = kv.ContentHash(i+1), kv.EngineHash(i+1)
	}
	s := newShardedOf(t, "chain", shards)
	ref := NewReference(Options{})
	var hs, refs []Holder
	for range holders {
		h, err := s.AddHolder(shardTestModel)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ref.AddHolder(shardTestModel)
		if err != nil {
			t.Fatal(err)
		}
		hs, refs = append(hs, h), append(refs, r)
	}
	var done atomic.Bool
	var writers, readers sync.WaitGroup
	for w := range shards {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for range 2000 {
				i := r.IntN(holders/shards)*shards + w
				from := r.IntN(length)
				to := from + 1 + r.IntN(length-from)
				remove := r.IntN(2) == 0
				do := func(idx Index, h Holder) error {
					if remove {
						return idx.Remove(h, &Remove{Engines: engines[from:to]})
					}
					return idx.Store(h, &Store{Namespace: ns, Engines: engines[:to], Contents: chain[:to]})
				}
				if err := errors.Join(do(s, hs[i]), do(ref, refs[i])); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			var dst []kv.Match
			for !done.Load() {
				dst = s.Lookup(ns, chain, dst[:0])
				if len(dst) > holders {
					t.Errorf("%d holders answer, there are %d", len(dst), holders)
				}
				_ = s.Least()
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	got, want := map[uint32]uint32{}, map[uint32]uint32{}
	for _, m := range s.Lookup(ns, chain, nil) {
		got[m.Holder] = m.Any
	}
	for _, m := range ref.Lookup(ns, chain, nil) {
		want[m.Holder] = m.Any
	}
	for i := range hs {
		if got[uint32(hs[i])] != want[uint32(refs[i])] {
			t.Errorf("holder %d: depth %d, want %d", hs[i], got[uint32(hs[i])], want[uint32(refs[i])])
		}
		g, err1 := Digest(s, hs[i])
		w, err2 := Digest(ref, refs[i])
		if g != w || err1 != nil || err2 != nil {
			t.Errorf("holder %d: digest %x (%v), want %x (%v)", hs[i], g, err1, w, err2)
		}
	}
	Check(s)
}
