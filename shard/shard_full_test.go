// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// TestShardFullNeverOvercounts has holders in several tiers store more than memory
// takes, with hashes that move, and holds every answer at or below that of the
// reference, which refuses nothing.
func TestShardFullNeverOvercounts(t *testing.T) {
	for seed := range uint64(longtest.N(4, 40)) {
		r := rand.New(rand.NewPCG(seed, 5))
		full, err := New("chain", Options{ArenaBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		ref := NewReference(Options{})
		holders := make([]Holder, 4)
		for i := range holders {
			a, errA := full.AddHolder(kv.MakeModelKey("", "m", ""))
			b, errB := ref.AddHolder(kv.MakeModelKey("", "m", ""))
			if errA != nil || errB != nil || a != b {
				t.Fatalf("holders %d and %d: %v, %v", a, b, errA, errB)
			}
			holders[i] = a
		}
		var told [][]kv.ContentHash
		refused, below := 0, 0
		for step := range 1500 {
			h := holders[r.IntN(len(holders))]
			tier := kv.TierDevice
			if step > 300 { // memory is full by now, so that further tiers are refused, too
				tier = kv.Tier(r.IntN(3))
			}
			if r.IntN(3) == 0 {
				rm := Remove{Tier: tier, Engines: []kv.EngineHash{kv.EngineHash(r.IntN(300)), kv.EngineHash(r.IntN(300))}}
				if err := errors.Join(full.Remove(h, &rm), ref.Remove(h, &rm)); err != nil {
					t.Fatal(err)
				}
				continue
			}
			st := Store{Tier: tier, Namespace: 1}
			for range 1 + r.IntN(60) {
				st.Contents = append(st.Contents, kv.ContentHash(r.IntN(2)))
				st.Engines = append(st.Engines, kv.EngineHash(r.IntN(300)))
			}
			if err := full.Store(h, &st); errors.Is(err, ErrArenaFull) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
			if err := ref.Store(h, &st); err != nil {
				t.Fatal(err)
			}
			told = append(told, st.Contents)
			if step%4 > 0 {
				continue
			}
			chain := told[r.IntN(len(told))]
			want := map[uint32]kv.Match{}
			for _, m := range ref.Lookup(1, chain, nil) {
				want[m.Holder] = m
			}
			for _, m := range full.Lookup(1, chain, nil) {
				w := want[m.Holder]
				if m.Device > w.Device || m.Host > w.Host || m.Any > w.Any {
					t.Fatalf("seed %d step %d: answer %+v, at most %+v is true", seed, step, m, w)
				}
				delete(want, m.Holder)
				if m != w {
					below++
				}
			}
			below += len(want)
		}
		if refused == 0 || below == 0 {
			t.Errorf("seed %d: %d stores refused, %d answers lack something: the arena is too large for this test", seed, refused, below)
		}
		for _, h := range holders {
			if err := full.Drop(h); err != nil {
				t.Fatal(err)
			}
		}
		if st := full.Stats(); st.Blocks != 0 || st.Runs != 0 {
			t.Errorf("seed %d: %d blocks in %d runs left", seed, st.Blocks, st.Runs)
		}
	}
}
