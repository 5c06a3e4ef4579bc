// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"kindex/gateway/fleet"
)

// place decides and takes the lease, as the router does.
func place(t testing.TB, p Policy, q *Question) Decision {
	t.Helper()
	d := decide(t, p, q)
	d.Holder.Take(fleet.Work{Prompt: q.Prompt, Cached: d.Cached})
	return d
}

// counts of requests by holder of the pool.
func counts(pool *fleet.Pool, got map[*fleet.Holder]int) (least, most int) {
	least = math.MaxInt
	for _, h := range pool.Holders {
		least, most = min(least, got[h]), max(most, got[h])
	}
	return least, most
}

func TestMissesReachAllOfAnIdleFleet(t *testing.T) {
	for _, name := range []string{CacheAware, LeastLoad} {
		for _, reporting := range []bool{false, true} {
			pool := newPool(128, 1)
			for _, h := range pool.Holders {
				if reporting {
					reading(h, 0, nil)
				}
			}
			p := seeded(t, name, nil)
			got := map[*fleet.Holder]int{}
			for range 1000 {
				got[place(t, p, ask(pool)).Holder]++
			}
			least, most := counts(pool, got)
			if least == 0 || most > 3*1000/128 {
				t.Errorf("%s, reporting %v: from %d to %d requests each, want all reached and none above 3 times the mean", name, reporting, least, most)
			}
		}
	}
}

func TestACheaperWorkerAlwaysWins(t *testing.T) {
	for _, n := range []int{2, 8, 32, 128, 1024} {
		for what, set := range map[string]func(cheap bool, h *fleet.Holder){
			"by cost": func(cheap bool, h *fleet.Holder) {
				if cheap {
					h.Worker.SetTerms(&fleet.Terms{Priority: 50, Cost: 0.9})
				}
			},
			"by reported load": func(cheap bool, h *fleet.Holder) {
				running := int64(3)
				if cheap {
					running = 2
				}
				reading(h, running, nil)
			},
			"by leases": func(cheap bool, h *fleet.Holder) {
				h.Take(fleet.Work{Prompt: 100})
				if !cheap {
					h.Take(fleet.Work{Prompt: 100})
				}
			},
			"by KV use": func(cheap bool, h *fleet.Holder) {
				reading(h, 3, func(r *fleet.Reading) {
					r.ActiveUsage = 0.6
					if cheap {
						r.ActiveUsage = 0.5
					}
				})
			},
		} {
			pool := newPool(n, 1)
			cheap := pool.Holders[n*2/3]
			for _, h := range pool.Holders {
				set(h == cheap, h)
			}
			p := seeded(t, CacheAware, nil)
			won := 0
			for range 1000 {
				if decide(t, p, ask(pool)).Holder == cheap {
					won++
				}
			}
			if won != 1000 {
				t.Errorf("%d workers, cheaper %s: won %d of 1000", n, what, won)
			}
		}
	}
}

// A worker that becomes the best of a large pool is found by the draws and then known.
func TestTheBestOfALargePoolIsFound(t *testing.T) {
	pool := newPool(1024, 1)
	for _, h := range pool.Holders {
		reading(h, 5, nil)
	}
	p := seeded(t, CacheAware, nil)
	decide(t, p, ask(pool))
	best := pool.Holders[700]
	reading(best, 1, nil)
	won, first := 0, -1
	for i := range 2000 {
		if decide(t, p, ask(pool)).Holder == best {
			if won++; first < 0 {
				first = i
			}
		}
	}
	if first < 0 || first > 500 || won != 2000-first {
		t.Errorf("first at decision %d, then %d of %d", first, won, 2000-first)
	}
}

// Readings stand still, as within their age: what was placed since counts all the same.
func TestABurstOfSiblingsSpreadsByCost(t *testing.T) {
	for _, n := range []int{4, 8, 128} {
		for _, matched := range []bool{false, true} {
			pool := newPool(n, 1)
			for _, h := range pool.Holders {
				reading(h, 0, nil)
			}
			p := seeded(t, CacheAware, nil)
			q := ask(pool)
			if matched {
				q.Matches = []Match{match(pool.Holders[1], 250)}
			}
			got := map[*fleet.Holder]int{}
			for range 64 {
				got[place(t, p, q).Holder]++
			}
			_, most := counts(pool, got)
			mean := 64 / float64(n)
			limit := max(1.5*mean, mean+max(4, math.Ceil(2*math.Sqrt(mean)))) + 1
			if float64(most) > limit {
				t.Errorf("%d workers, prefix held %v: %d of 64 on one, want at most %g", n, matched, most, limit)
			}
			if matched && got[pool.Holders[1]] != most {
				t.Errorf("%d workers: the holder of the prefix got %d, another %d", n, got[pool.Holders[1]], most)
			}
		}
	}
}

func TestSpreadBoundsThePrefix(t *testing.T) {
	pool := newPool(4, 1)
	p := seeded(t, CacheAware, func(o *Options) { o.Spread = 2 })
	q := ask(pool)
	got := map[*fleet.Holder]int{}
	for range 64 { // every one placed is a predicted holder at once
		h := place(t, p, q).Holder
		if got[h]++; got[h] == 1 {
			q.Matches = append(q.Matches, Match{Holder: h, Blocks: 255, Device: 255, Predicted: true})
		}
	}
	if len(got) != 2 {
		t.Errorf("64 siblings on %d workers, want 2: %v", len(got), got)
	}
}

func TestAHotWorkerDoesNotEndAffinity(t *testing.T) {
	for _, n := range []int{8, 128} {
		pool := newPool(n, 1)
		for i, h := range pool.Holders {
			running := int64(2)
			if i == 0 {
				running = 300
			}
			reading(h, running, nil)
		}
		p := seeded(t, CacheAware, nil)
		for i, h := range pool.Holders {
			q := ask(pool)
			q.Matches = []Match{match(h, 200)}
			d := decide(t, p, q)
			if i == 0 && (d.Branch != Spill || d.Holder == h) {
				t.Errorf("of %d: the hot worker's prefix stays there: %v", n, d.Branch)
			}
			if i > 0 && (d.Branch != Hit || d.Holder != h) {
				t.Errorf("of %d: worker %d's prefix went to %s by %v", n, i, d.Holder.Worker.ID, d.Branch)
			}
		}
	}
}

func TestAMissingReportIsNotIdle(t *testing.T) {
	pool := newPool(8, 1)
	for i, h := range pool.Holders {
		switch i {
		case 3: // none
		case 4:
			reading(h, 0, func(r *fleet.Reading) { r.At -= int64(time.Minute) })
		default:
			reading(h, 20, nil)
		}
	}
	p := seeded(t, CacheAware, nil)
	got := map[*fleet.Holder]int{}
	for range 800 {
		q := ask(pool)
		q.Now += int64(time.Second) / 2
		got[decide(t, p, q).Holder]++
	}
	for _, i := range []int{3, 4} { // as good as the best peer, which all are
		if n := got[pool.Holders[i]]; n < 50 || n > 150 {
			t.Errorf("worker %d without a report in force got %d of 800, want about 100", i, n)
		}
	}
	pool.Holders[3].Take(fleet.Work{})
	for range 100 {
		if decide(t, p, ask(pool)).Holder == pool.Holders[3] {
			t.Fatal("a worker without report takes another request beside peers that are as good without its lease")
		}
	}
}

// A count of requests does not see long prompts or a full KV pool.
func TestPressureThatRequestsDoNotShow(t *testing.T) {
	for what, press := range map[string]func(*fleet.Reading){
		"KV":      func(r *fleet.Reading) { r.ActiveUsage = 0.97 },
		"prompts": func(r *fleet.Reading) { r.PrefillPending = 80_000 },
	} {
		pool := newPool(8, 1)
		for i, h := range pool.Holders {
			reading(h, 2, func(r *fleet.Reading) {
				if i == 0 {
					press(r)
				}
			})
		}
		q := ask(pool)
		q.Matches = []Match{match(pool.Holders[0], 250)}
		p := seeded(t, CacheAware, nil)
		if d := decide(t, p, q); d.Branch != Spill || d.Holder == pool.Holders[0] {
			t.Errorf("%s: the prefix's only holder is taken by %v", what, d.Branch)
		}
	}
}

func TestDeviceBeforeHost(t *testing.T) {
	for _, n := range []int{4, 200} {
		pool := newPool(n, 1)
		p := seeded(t, CacheAware, nil)
		q := ask(pool)
		host := Match{Holder: pool.Holders[0], Blocks: 205, Device: 100}
		device := Match{Holder: pool.Holders[1], Blocks: 200, Device: 200}
		q.Matches = []Match{host, device}
		if d := decide(t, p, q); d.Holder != device.Holder || d.Cached != 3200 {
			t.Errorf("of %d: %d tokens on the host won over %d on the device", n, d.Cached, 3200)
		}
		q.Matches[0].Blocks, q.Matches[0].Device = 250, 180
		if d := decide(t, p, q); d.Holder != host.Holder || d.Cached != 4000 {
			t.Errorf("of %d: far more, if on the host, lost: %s", n, d.Holder.Worker.ID)
		}
	}
}

func TestFaultyCachesDoNotCount(t *testing.T) {
	for _, n := range []int{4, 200} {
		pool := newPool(n, 1)
		pool.Workers[0].Steer(fleet.FaultyCache, true)
		p := seeded(t, CacheAware, nil)
		q := ask(pool)
		q.Matches = []Match{match(pool.Holders[0], 250), match(pool.Holders[2], 240)}
		if d := decide(t, p, q); d.Holder != pool.Holders[2] || d.Cached != 3840 {
			t.Errorf("of %d: took %s, cached %d", n, d.Holder.Worker.ID, d.Cached)
		}
		q.Matches = q.Matches[:1]
		if d := decide(t, p, q); d.Branch != Miss || d.Cached != 0 {
			t.Errorf("of %d: its match alone: %v, cached %d", n, d.Branch, d.Cached)
		}
	}
}

// What all have, behind one system prompt, is no reason to prefer the few that an answer
// names.
func TestACutAnswerPrefersNobody(t *testing.T) {
	pool := newPool(400, 1)
	p := seeded(t, CacheAware, nil)
	q := ask(pool)
	for _, h := range pool.Holders[:32] {
		q.Matches = append(q.Matches, match(h, 20))
	}
	q.More = true
	got := map[*fleet.Holder]int{}
	for range 4000 {
		d := place(t, p, q)
		got[d.Holder]++
		named := slices.ContainsFunc(q.Matches, func(m Match) bool { return m.Holder == d.Holder })
		if d.Cached != 320 || d.Guess == named {
			t.Fatalf("cached %d, guess %v, named %v", d.Cached, d.Guess, named)
		}
	}
	if least, most := counts(pool, got); least < 7 || most > 13 {
		t.Errorf("from %d to %d requests each, want 10", least, most)
	}
	deep := match(pool.Holders[7], 250)
	q.Matches[0], q.Matches[7] = deep, q.Matches[0]
	pool.Holders[7].Worker.Steer(fleet.Overloaded, true)
	if d := decide(t, p, q); d.Holder == deep.Holder || d.Branch != Miss {
		t.Errorf("an overloaded holder: %s by %v", d.Holder.Worker.ID, d.Branch)
	}
	pool.Holders[7].Worker.Steer(fleet.Overloaded, false)
	if d := decide(t, p, q); d.Holder != deep.Holder || d.Guess || d.Cached != 4000 {
		t.Errorf("the deepest: %s, cached %d, guess %v", d.Holder.Worker.ID, d.Cached, d.Guess)
	}
}

func TestTiesAreDrawnUniformly(t *testing.T) {
	for _, n := range []int{5, 128, 1024} {
		pool := newPool(n, 1)
		p := seeded(t, CacheAware, nil)
		q := ask(pool)
		for _, h := range pool.Holders[:min(n, 100)] {
			q.Matches = append(q.Matches, match(h, 200))
		}
		tied := len(q.Matches)
		got := map[*fleet.Holder]int{}
		for range 400 * tied {
			got[decide(t, p, q).Holder]++
		}
		chi := 0.0
		for _, m := range q.Matches {
			chi += math.Pow(float64(got[m.Holder])-400, 2) / 400
		}
		df := float64(tied - 1)
		if len(got) != tied || chi > df+5*math.Sqrt(2*df) {
			t.Errorf("%d tied of %d: %d reached, chi square %.1f for %g degrees", tied, n, len(got), chi, df)
		}
		pool.Workers[2].SetTerms(&fleet.Terms{Priority: 51, Cost: 1})
		if n <= 16 {
			for range 100 {
				if d := decide(t, p, q); d.Holder != pool.Holders[2] {
					t.Fatalf("of %d equal ones %s won over the one with the higher priority", n, d.Holder.Worker.ID)
				}
			}
		}
	}
}

func TestInTurnAndRandomAreEven(t *testing.T) {
	pool := newPool(50, 2)
	for i := range 10 {
		pool.Workers[i*5].Steer(fleet.Wedged, true)
	}
	for name, slack := range map[string]float64{RoundRobin: 1, Random: 5 * math.Sqrt(100), PowerOfTwo: 2} {
		p := seeded(t, name, nil)
		got := map[*fleet.Holder]int{}
		for range 8000 {
			d := decide(t, p, ask(pool))
			if got[d.Holder]++; name == PowerOfTwo {
				d.Holder.Take(fleet.Work{Prompt: 1})
			}
		}
		for _, h := range pool.Holders {
			if h.Worker.Usable() && math.Abs(float64(got[h])-100) > slack+1 {
				t.Errorf("%s: %s rank %d got %d, want 100 within %.0f", name, h.Worker.ID, h.Rank, got[h], slack)
			}
		}
	}
}

func TestOneSeedOneSequence(t *testing.T) {
	for _, name := range Names() {
		pool := newPool(100, 1)
		a, b := seeded(t, name, nil), seeded(t, name, nil)
		for i := range 200 {
			q := ask(pool)
			q.Key = uint64(i)
			if x, y := decide(t, a, q), decide(t, b, q); x.Holder != y.Holder {
				t.Fatalf("%s: decision %d differs", name, i)
			}
		}
	}
}

// Decisions in parallel see each other's leases, and nothing is counted twice or lost.
func TestDecisionsInParallel(t *testing.T) {
	for _, name := range Names() {
		pool := newPool(64, 2)
		p := seeded(t, name, func(o *Options) { o.Levels = NewLevels(DefaultWarmUp()) })
		var wg sync.WaitGroup
		var mu sync.Mutex
		var leases []*fleet.Lease
		for g := range 4 {
			wg.Go(func() {
				var d Decision
				for i := range 500 {
					q := ask(pool)
					q.Key = uint64(i)
					q.Matches = []Match{match(pool.Holders[(g*500+i)%128], 200)}
					if err := p.Decide(q, &d); err != nil {
						t.Error(err)
						return
					}
					l := d.Holder.Take(fleet.Work{Prompt: 10})
					mu.Lock()
					leases = append(leases, l)
					mu.Unlock()
				}
			})
		}
		wg.Go(func() {
			for i := range 200 {
				w := pool.Workers[i%64]
				w.Steer(fleet.Overloaded, i%3 == 0)
				reading(w.Holders[0], int64(i%5), nil)
			}
		})
		wg.Wait()
		for _, l := range leases {
			l.Release()
		}
		for _, h := range pool.Holders {
			if h.InFlight() != 0 {
				t.Fatalf("%s: %d in flight after all leases ended", name, h.InFlight())
			}
		}
	}
}

func TestKeysStay(t *testing.T) {
	ws := newWorkers(101, 1)
	before, after := fleet.NewPool("m", 1, ws[:100]), fleet.NewPool("m", 2, ws)
	p := seeded(t, ConsistentHashing, nil)
	where := func(pool *fleet.Pool) []*fleet.Holder {
		got := make([]*fleet.Holder, 20_000)
		for i := range got {
			q := ask(pool)
			q.Key = uint64(i)
			got[i] = decide(t, p, q).Holder
		}
		return got
	}
	a, b := where(before), where(after)
	moved := 0
	for i := range a {
		if a[i] != b[i] {
			if moved++; b[i].Worker != ws[100] {
				t.Fatalf("key %d moved between workers that stayed", i)
			}
		}
	}
	if share := float64(moved) / float64(len(a)); share < 0.005 || share > 0.015 {
		t.Errorf("a 101st worker took %.4f of the keys, want about 0.0099", share)
	}
	got := map[*fleet.Holder]int{}
	for _, h := range a {
		got[h]++
	}
	if least, most := counts(before, got); least < 130 || most > 280 {
		t.Errorf("from %d to %d of 20,000 keys on each of 100", least, most)
	}
	ws[5].Steer(fleet.BreakerOpen, true)
	c := where(after)
	for i := range b {
		if b[i].Worker != ws[5] && b[i] != c[i] {
			t.Fatalf("key %d moved though its worker is usable", i)
		}
	}
	ws[5].Steer(fleet.BreakerOpen, false)
	if !slices.Equal(where(after), b) {
		t.Error("keys did not come back")
	}
	if !slices.Equal(where(before), a) {
		t.Error("a question from before the join is decided otherwise")
	}
	// Another gateway, and the same URLs registered anew.
	again := fleet.NewPool("m", 1, newWorkers(101, 1))
	other := seeded(t, ConsistentHashing, func(o *Options) { o.Seed = 9 })
	for i := range b {
		q := ask(again)
		q.Key = uint64(i)
		if got := decide(t, other, q).Holder.Worker.Spec.URL; got != b[i].Worker.Spec.URL {
			t.Fatalf("key %d: %s here, %s there", i, b[i].Worker.Spec.URL, got)
		}
	}
}
