// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// TestShardTight mixes tight stores of two holders with plain ones, removals and
// clears, in several tiers and with hashes that move, and holds every answer: never
// above the reference's, which refuses nothing, and equal to it for the holders
// that no store was refused for. What a refused store does not move stays.
func TestShardTight(t *testing.T) {
	for _, kind := range []string{"chain", "positional"} {
		t.Run(kind, func(t *testing.T) {
			refused, taken := 0, 0
			for seed := range uint64(longtest.N(6, 60)) {
				r, k := tightRun(t, kind, seed)
				refused, taken = refused+r, taken+k
			}
			if refused == 0 || taken == 0 {
				t.Errorf("%d tight stores refused, %d taken: this shows nothing", refused, taken)
			}
		})
	}
}

func tightRun(t *testing.T, kind string, seed uint64) (refused, taken int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 11))
	idx, err := New(kind, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ref := NewReference(Options{})
	var holders [4]Holder
	for i := range holders {
		a, errA := idx.AddHolder(kv.MakeModelKey("", "m", ""))
		b, errB := ref.AddHolder(kv.MakeModelKey("", "m", ""))
		if errA != nil || errB != nil || a != b {
			t.Fatalf("holders %d and %d: %v, %v", a, b, errA, errB)
		}
		holders[i] = a
	}
	inexact := map[uint32]bool{}
	var told [][]kv.ContentHash
	for step := range 1_200 {
		i := r.IntN(len(holders))
		h := holders[i]
		switch r.IntN(12) {
		case 0, 1, 2:
			rm := Remove{Tier: kv.Tier(r.IntN(3)), Engines: []kv.EngineHash{kv.EngineHash(r.IntN(200)), kv.EngineHash(r.IntN(200))}}
			if err := errors.Join(idx.Remove(h, &rm), ref.Remove(h, &rm)); err != nil {
				t.Fatal(err)
			}
			continue
		case 3:
			if err := errors.Join(idx.Clear(h), ref.Clear(h)); err != nil {
				t.Fatal(err)
			}
			delete(inexact, uint32(h))
			continue
		}
		st := Store{Tier: kv.Tier(r.IntN(3)), Namespace: 1, Tight: i < 2 && r.IntN(2) == 0}
		// A store whose parent was refused waits, and what it would move stays, as of
		// any stream that lost something: the others have parents.
		if i >= 2 && r.IntN(3) == 0 {
			st.Parent, st.HasParent = kv.EngineHash(r.IntN(200)), true
		}
		for range 1 + r.IntN(20) {
			st.Contents = append(st.Contents, kv.ContentHash(r.IntN(2)))
			st.Engines = append(st.Engines, kv.EngineHash(r.IntN(200)))
		}
		switch err := idx.Store(h, &st); {
		case errors.Is(err, ErrArenaFull):
			if !st.Tight {
				t.Fatalf("seed %d step %d: a plain store is refused", seed, step)
			}
			inexact[uint32(h)] = true
			refused++
		case err != nil:
			t.Fatal(err)
		case st.Tight:
			taken++
		}
		if err := ref.Store(h, &st); err != nil {
			t.Fatal(err)
		}
		told = append(told, st.Contents)
		chain := told[r.IntN(len(told))]
		want := map[uint32]kv.Match{}
		for _, m := range ref.Lookup(1, chain, nil) {
			want[m.Holder] = m
		}
		for _, m := range idx.Lookup(1, chain, nil) {
			w := want[m.Holder]
			if m.Device > w.Device || m.Host > w.Host || m.Any > w.Any || m != w && !inexact[m.Holder] {
				t.Fatalf("seed %d step %d: answer %+v, true is %+v, inexact %v", seed, step, m, w, inexact[m.Holder])
			}
			delete(want, m.Holder)
		}
		for holder, m := range want {
			if !inexact[holder] {
				t.Fatalf("seed %d step %d: %+v is missing", seed, step, m)
			}
		}
	}
	return refused, taken
}

// TestTightKeeps: a tight store of what is held already takes nothing away.
func TestTightKeeps(t *testing.T) {
	for _, kind := range []string{"chain", "positional"} {
		idx, err := New(kind, Options{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := idx.AddHolder(kv.MakeModelKey("", "m", ""))
		if err != nil {
			t.Fatal(err)
		}
		st := Store{Namespace: 1, Engines: []kv.EngineHash{1, 2, 3}, Contents: []kv.ContentHash{7, 8, 9}}
		if err := idx.Store(h, &st); err != nil {
			t.Fatal(err)
		}
		st.Tight = true
		if err := idx.Store(h, &st); err != nil {
			t.Errorf("%s: a tight store of what is there: %v", kind, err)
		}
		longer := Store{Namespace: 1, Tight: true, Engines: []kv.EngineHash{1, 2, 3, 4}, Contents: []kv.ContentHash{7, 8, 9, 10}}
		if err := idx.Store(h, &longer); !errors.Is(err, ErrArenaFull) {
			t.Errorf("%s: a tight store of a new block: %v", kind, err)
		}
		waits := Store{Namespace: 1, Tight: true, Parent: 99, HasParent: true, Engines: []kv.EngineHash{5}, Contents: []kv.ContentHash{11}}
		if err := idx.Store(h, &waits); !errors.Is(err, ErrArenaFull) {
			t.Errorf("%s: a tight store that would wait for its parent: %v", kind, err)
		}
		if st, err := idx.HolderStats(h); err != nil || st.Orphans != 0 {
			t.Errorf("%s: %d blocks wait, %v", kind, st.Orphans, err)
		}
		below := Store{Namespace: 1, Tight: true, Parent: 1, HasParent: true, Engines: []kv.EngineHash{2}, Contents: []kv.ContentHash{8}}
		if err := idx.Store(h, &below); err != nil {
			t.Errorf("%s: a tight store of what is there, below its parent: %v", kind, err)
		}
		if m := idx.Lookup(1, []kv.ContentHash{7, 8, 9, 10}, nil); len(m) != 1 || m[0].Device != 3 {
			t.Errorf("%s: after both, lookup says %+v, want 3 blocks", kind, m)
		}
	}
}
