// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/shard"
)

func TestHitsAreOrderedAsByOneSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		var q queryScratch
		depths := 1 + r.IntN(6)
		for k := range r.IntN(100) {
			order := uint64(k)
			if i%3 == 0 {
				order = r.Uint64N(1000)
			}
			w := &worker{order: order}
			most := uint32(1 + r.IntN(depths))
			host := most - uint32(r.IntN(2))
			q.hits = append(q.hits, hit{&rank{worker: w, number: k}, host - uint32(r.IntN(int(host)+1)), host, most})
			if i%2 == 0 { // tell apart by nothing but who it is
				q.hits[k].device, q.hits[k].host = most, most
			}
		}
		want := slices.Clone(q.hits)
		slices.SortFunc(want, compareHits)
		q.order()
		if !slices.Equal(q.hits, want) {
			t.Fatalf("case %d: %d hits in another order", i, len(want))
		}
	}
}

func TestTheDeepestAreKept(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 2000 {
		h := &Host{reg: &registry{}}
		depths, n := 1+r.IntN(30), 1+r.IntN(20)
		var q queryScratch
		var all []hit
		for k, order := range r.Perm(r.IntN(200)) {
			x := &rank{worker: &worker{order: uint64(order / 2)}, number: order % 2}
			if r.IntN(20) > 0 { // else nobody has the number any more
				h.reg.holders.set(shard.Holder(k), x)
			}
			most := uint32(1 + r.IntN(depths))
			host := most - uint32(r.IntN(int(most)))
			device := uint32(r.IntN(int(host) + 1))
			if i%4 > 0 {
				host, device = most, most
			}
			q.matches = append(q.matches, kv.Match{Holder: uint32(k), Any: most, Host: host, Device: device})
		}
		whole := queryScratch{matches: slices.Clone(q.matches)}
		h.collect(&whole)
		all = whole.hits
		slices.SortFunc(all, compareHits)
		h.cut(&q, n)
		if i%4 > 0 && depths <= cutRounds && len(q.matches) > n {
			t.Fatalf("case %d: %d of %d are kept, want %d", i, len(q.matches), len(all), n)
		}
		h.collect(&q)
		q.order()
		// Numbers that nobody has may take places of deeper ones, never of equal ones.
		want, got := all[:min(n, len(all))], q.hits[:min(n, len(q.hits))]
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || len(want)-len(got) > len(whole.matches)-len(all) {
			t.Fatalf("case %d: the %d deepest of %d are not kept: %d are", i, n, len(all), len(got))
		}
	}
}
