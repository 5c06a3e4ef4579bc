// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"
	"time"

	"kindex/gateway/fleet"
)

func TestWhoWarmsUp(t *testing.T) {
	const second = int64(time.Second)
	pool := newPool(4, 1)
	l := NewLevels(DefaultWarmUp())
	for i, step := range []struct {
		at     int64
		blocks []uint64
		want   []int
	}{
		{0, []uint64{0, 0, 0, 0}, nil},                                  // nobody has anything
		{1, []uint64{10, 0, 12, 9}, []int{1}},                           // young
		{2, []uint64{500, 240, 500, 260}, []int{1}},                     // under half of 500
		{90, []uint64{900, 130, 900, 900}, nil},                         // old, and the level is small
		{91, []uint64{5000, 2400, 5000, 2500}, []int{1}},                // thin
		{92, []uint64{5000, 2500, 5000, 2500}, nil},                     // across the ratio
		{93, []uint64{5000, 5000, 0, 5000}, []int{2}},                   // returned, empty
		{94, []uint64{0, 0, 0, 5000}, []int{0, 1, 2}},                   // most of them
		{200, []uint64{800, 800, 800, 800}, nil},                        //
		{201, []uint64{800, 800, 100, 800}, []int{2}},                   // returned, in a small fleet
		{300, []uint64{800, 800, 100, 800}, nil},                        // no longer young
		{301, []uint64{1 << 40, 1 << 40, 1 << 39, 1 << 39}, nil},        //
		{302, []uint64{1 << 40, 1 << 40, 1<<39 - 1, 1 << 39}, []int{2}}, //
	} {
		l.Set(pool, step.at*second, step.blocks)
		var got []int
		for _, h := range l.Warming("m") {
			got = append(got, slices.Index(pool.Holders, h))
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("step %d, %v: %v warm up, want %v", i, step.blocks, got, step.want)
		}
	}
	l.Set(pool, 400*second, []uint64{1})
	if l.Warming("m") == nil {
		t.Error("counts that are not the pool's were taken")
	}
	l.Forget("m")
	if l.Warming("m") != nil || l.Warming("other") != nil || (*Levels)(nil).Warming("m") != nil {
		t.Error("a model that is gone still has workers that warm up")
	}
}

// warmed returns a pool whose last worker warms up, and a policy that knows.
func warmed(t *testing.T, n int) (*fleet.Pool, Policy, *Levels) {
	pool := newPool(n, 1)
	l := NewLevels(DefaultWarmUp())
	l.Set(pool, 1, levelsOf(n, 0))
	return pool, seeded(t, CacheAware, func(o *Options) { o.Levels = l }), l
}

func levelsOf(n int, last uint64) []uint64 {
	blocks := slices.Repeat([]uint64{10_000}, n)
	blocks[n-1] = last
	return blocks
}

func TestAWarmingWorkerGetsItsShare(t *testing.T) {
	for _, n := range []int{4, 200} {
		pool, p, l := warmed(t, n)
		cold := pool.Holders[n-1]
		busy := func() { // each peer has as much to do: only its turn brings it a request
			for _, h := range pool.Holders {
				reading(h, 3, nil)
			}
			reading(cold, 4, nil)
		}
		busy()
		for what, c := range map[string]struct {
			matches []Match
			want    int
			branch  Branch
		}{
			"misses":       {nil, 200, WarmMiss},
			"thin":         {[]Match{match(pool.Holders[1], 30)}, 200, WarmMiss},
			"deep hits":    {[]Match{match(pool.Holders[1], 250)}, 100, WarmHit},
			"shallow hits": {[]Match{match(pool.Holders[1], 100)}, 100, WarmHit},
		} {
			got, branches := 0, 0
			for range 800 {
				q := ask(pool)
				q.Matches = c.matches
				d := decide(t, p, q)
				if d.Holder == cold {
					got++
				}
				if d.Branch == c.branch {
					branches++
				}
			}
			if got != c.want || branches != c.want {
				t.Errorf("of %d, %s: %d of 800 to the worker that warms up, %d by %v, want %d", n, what, got, branches, c.branch, c.want)
			}
		}
		// Its own prefixes are no gift.
		q := ask(pool)
		q.Matches = []Match{match(cold, 250)}
		for range 20 {
			if d := decide(t, p, q); d.Branch != Hit || d.Holder != cold {
				t.Fatalf("of %d: its own prefix went to %s by %v", n, d.Holder.Worker.ID, d.Branch)
			}
		}
		// One that is under pressure is left alone, and so is one that cannot be used.
		reading(cold, 100, nil)
		for range 20 {
			if d := decide(t, p, ask(pool)); d.Holder == cold {
				t.Fatalf("of %d: a miss for a worker that is full", n)
			}
		}
		reading(cold, 4, nil)
		cold.Worker.Steer(fleet.Unreachable, true)
		for range 20 {
			if d := decide(t, p, ask(pool)); d.Holder == cold {
				t.Fatalf("of %d: a miss for a worker that is not reachable", n)
			}
		}
		cold.Worker.Steer(fleet.Unreachable, false)
		// Across the ratio it is one of many.
		l.Set(pool, 2, levelsOf(n, 5000))
		for range 100 {
			if d := decide(t, p, ask(pool)); d.Holder == cold || d.Branch != Miss {
				t.Fatalf("of %d: warm, and still given more: %v", n, d.Branch)
			}
		}
	}
}
