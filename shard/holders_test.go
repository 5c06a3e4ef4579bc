// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"testing"

	"kindex/internal/kv"
)

// TestTenThousandHoldersInTiers fills an index with as many holders as a large
// fleet has, each with copies in all local tiers, and asks for all at once.
func TestTenThousandHoldersInTiers(t *testing.T) {
	const holders = 10_000
	model := kv.MakeModelKey("", "m", "default")
	ns := model.Namespace(kv.HashSeed)
	engines := []kv.EngineHash{11, 12, 13, 14}
	contents := []kv.ContentHash{1, 2, 3, 4}
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			idx, err := New(kind, Options{})
			if err != nil {
				t.Fatal(err)
			}
			ids := make([]Holder, holders)
			for i := range ids {
				if ids[i], err = idx.AddHolder(model); err != nil {
					t.Fatalf("holder %d: %v", i, err)
				}
				// Device holds all four blocks, host the first 1 + i%4, disk the first.
				for tier, n := range []int{4, 1 + i%4, 1} {
					st := Store{Tier: kv.Tier(tier), Namespace: ns, Engines: engines[:n], Contents: contents[:n]}
					if err := idx.Store(ids[i], &st); err != nil {
						t.Fatalf("holder %d, tier %d: %v", i, tier, err)
					}
				}
				// Every second holder keeps but its first block on the device.
				if i%2 == 1 {
					if err := idx.Remove(ids[i], &Remove{Engines: engines[1:]}); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := func(i int) kv.Match {
				m := kv.Match{Device: 4, Host: 4, Any: 4}
				if i%2 == 1 {
					m = kv.Match{Device: 1, Host: uint32(1 + i%4), Any: uint32(1 + i%4)}
				}
				m.Holder = uint32(ids[i])
				return m
			}
			got := map[uint32]kv.Match{}
			for _, m := range idx.Lookup(ns, contents, nil) {
				got[m.Holder] = m
			}
			if len(got) != holders {
				t.Fatalf("%d holders answer, want %d", len(got), holders)
			}
			for i := range ids {
				if w := want(i); got[w.Holder] != w {
					t.Fatalf("holder %d: %+v, want %+v", i, got[w.Holder], w)
				}
			}
			st := idx.Stats()
			var bytes uint64
			for _, b := range st.Bytes {
				bytes += b
			}
			t.Logf("%d holders, %d memberships, %.1f MiB", st.Holders, st.Memberships, float64(bytes)/(1<<20))

			for i := range ids {
				if err := idx.Drop(ids[i]); err != nil {
					t.Fatal(err)
				}
			}
			if left := idx.Lookup(ns, contents, nil); len(left) != 0 {
				t.Fatalf("%d holders answer after all were dropped", len(left))
			}
		})
	}
}

// TestHoldersAreRefusedPastTheBound: past MaxHolders a clear refusal, and a
// place again as soon as one is dropped. Slots are used again without their old
// content.
func TestHoldersAreRefusedPastTheBound(t *testing.T) {
	model := kv.MakeModelKey("", "m", "default")
	ns := model.Namespace(kv.HashSeed)
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			idx, err := New(kind, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var last Holder
			for i := range MaxHolders {
				if last, err = idx.AddHolder(model); err != nil {
					t.Fatalf("holder %d of %d: %v", i, MaxHolders, err)
				}
			}
			if _, err = idx.AddHolder(model); !errors.Is(err, ErrHolders) {
				t.Fatalf("holder %d: %v, want %v", MaxHolders+1, err, ErrHolders)
			}
			for range 5 * MaxHolders { // more than there are slots
				if err := idx.Store(last, &Store{Namespace: ns, Engines: []kv.EngineHash{1}, Contents: []kv.ContentHash{1}}); err != nil {
					t.Fatal(err)
				}
				if err := idx.Drop(last); err != nil {
					t.Fatal(err)
				}
				if last, err = idx.AddHolder(model); err != nil {
					t.Fatalf("after a drop: %v", err)
				}
			}
			if got := idx.Lookup(ns, []kv.ContentHash{1}, nil); len(got) != 0 {
				t.Fatalf("%v holds what only dropped holders held", got)
			}
		})
	}
}
