// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRunSet holds sets of runs against a map, while they grow and shrink, and holds
// that buckets stay small.
func TestRunSet(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 9))
	for _, top := range []int{5, 300, 60_000} {
		var s runSet
		model := map[uint32]bool{}
		check := func() {
			t.Helper()
			var got []uint32
			s.each(func(idx uint32) { got = append(got, idx) })
			slices.Sort(got)
			if len(slices.Compact(got)) != len(model) || len(got) != s.n {
				t.Fatalf("%d of %d runs listed, counted %d", len(got), len(model), s.n)
			}
			for _, idx := range got {
				if !model[idx] {
					t.Fatalf("run %d is not in the set", idx)
				}
			}
			for _, b := range s.buckets {
				if len(b) > 8*runSetFill {
					t.Fatalf("a bucket of %d runs", len(b))
				}
			}
		}
		for step := range 60_000 {
			idx := uint32(1 + r.IntN(top))
			grow := step/20_000 != 1
			switch {
			case model[idx] && (!grow || r.IntN(3) == 0):
				s.del(idx)
				delete(model, idx)
			case !model[idx] && (grow || r.IntN(3) == 0):
				s.add(idx)
				model[idx] = true
			}
			if step%5000 == 0 {
				check()
			}
		}
		check()
		s.each(func(idx uint32) {
			s.del(idx)
			delete(model, idx)
		})
		check()
	}
}
