// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kindex/gateway/fleet"
)

// verdict is what the plain scorer says: the way, and all holders that are as good.
type verdict struct {
	branch  Branch
	holders []*fleet.Holder
	best    float64
	times   map[*fleet.Holder]float64
	limit   float64
}

// plain decides as the package's comment says, with every holder read and nothing saved.
func plain(q *Question, o *Options) verdict {
	var usable []*fleet.Holder
	for _, h := range q.Pool.Holders {
		if h.Worker.Usable() && (q.Rank < 0 || h.Rank == q.Rank) && !slices.Contains(q.Exclude, h.Worker) {
			usable = append(usable, h)
		}
	}
	prefills, known := o.PrefillRate, 0
	for _, h := range usable {
		if rate := h.PrefillRate(); rate > 0 {
			if known++; known == 1 {
				prefills = 0
			}
			prefills += rate
		}
	}
	prefills /= float64(max(known, 1))
	type report struct{ requests, prefill, kv, rate, trust float64 }
	reports := map[*fleet.Holder]report{}
	best, least := report{}, math.Inf(1)
	for _, h := range usable {
		rep := report{rate: o.Throughput}
		if r := h.Reading(); r != nil {
			age := float64(q.Now-r.At) / 1e9
			rep.trust = min(max((o.Stale.Seconds()-age)/(o.Stale-o.Fresh).Seconds(), 0), 1)
			rep.requests = float64(max(r.Running, 0) + max(r.Waiting, 0))
			rep.prefill = float64(max(r.PrefillPending, r.WaitingUncached, 0))
			if rep.kv = r.ActiveUsage; rep.kv < 0 {
				rep.kv = r.Usage
			}
			rep.kv = min(max(rep.kv, 0), 0.999)
			saturated := r.Waiting > 0 && rep.kv >= 0.9 || r.MaxRunning > 0 && r.Running >= r.MaxRunning
			if r.Throughput > o.Throughput || r.Throughput > 0 && saturated {
				rep.rate = r.Throughput
			}
		}
		reports[h] = rep
		t := rep.requests*o.RequestTokens/rep.rate + rep.prefill/prefills + o.KVWeight*rep.kv/(1-rep.kv)
		if rep.trust == 1 && t < least {
			best, least = rep, t
		}
	}
	v := verdict{times: map[*fleet.Holder]float64{}}
	loads := map[*fleet.Holder]float64{}
	depth := map[*fleet.Holder]float64{}
	var blocks uint32
	var share, deepest, sum float64
	for _, h := range usable {
		rep := reports[h]
		mix := func(own, other float64) float64 { return rep.trust*own + (1-rep.trust)*other }
		u := h.Unread(h.Reading())
		since := mix(float64(u.Requests), float64(h.InFlight()))
		loads[h] = max(mix(rep.requests, best.requests)+since, float64(h.InFlight()))
		prefill := mix(rep.prefill, best.prefill) + mix(float64(u.Prefill), float64(h.PrefillInFlight()))
		kv := mix(rep.kv, best.kv)
		cached, host := int64(0), int64(0)
		for _, m := range q.Matches {
			if m.Holder != h || h.Worker.Vetoes()&fleet.FaultyCache != 0 {
				continue
			}
			cached = min(int64(m.Blocks)*int64(q.BlockSize), (q.Prompt-1)/int64(q.BlockSize)*int64(q.BlockSize))
			host = max(cached-int64(m.Device)*int64(q.BlockSize), 0)
			depth[h] = float64(m.Device) + o.HostWeight*float64(m.Blocks-m.Device)
			if depth[h] > deepest {
				deepest, share, blocks = depth[h], float64(cached)/float64(q.Prompt), m.Blocks
			} else if depth[h] == deepest {
				share, blocks = max(share, float64(cached)/float64(q.Prompt)), max(blocks, m.Blocks)
			}
		}
		own := (float64(max(q.Prompt-cached, 1)) + (1-o.HostWeight)*float64(host)) / prefills
		v.times[h] = h.Worker.Terms().Cost * ((loads[h]+1)*o.RequestTokens/rep.rate + prefill/prefills + o.KVWeight*kv/(1-kv) + own)
		sum += loads[h]
	}
	mean := sum / float64(len(usable))
	v.limit = max(o.GateFactor*mean, mean+min(o.GateMost, max(math.Ceil(2*math.Sqrt(mean)), o.GateLeast)))
	elsewhere := math.Inf(1)
	for _, h := range usable {
		if depth[h] < deepest || deepest == 0 {
			elsewhere = min(elsewhere, v.times[h])
		}
	}
	var deep, open []*fleet.Holder
	for _, h := range usable {
		pressed := loads[h] > v.limit
		if deepest > 0 && depth[h] == deepest {
			slow := v.times[h] > elsewhere+o.Patience.Seconds() && v.times[h] > elsewhere*o.GateFactor
			if pressed = pressed || slow; !pressed {
				deep = append(deep, h)
			}
		}
		if !pressed {
			open = append(open, h)
		}
	}
	hit := deepest > 0 && share > o.ThinShare && (int(blocks) > o.ThinBlocks || share >= 0.5)
	from := open
	switch {
	case hit && len(deep) > 0:
		v.branch, from = Hit, deep
	case hit && len(open) > 0:
		v.branch = Spill
	case hit:
		v.branch = Hit
		for _, h := range usable {
			if depth[h] == deepest {
				from = append(from, h)
			}
		}
	default:
		v.branch = Miss
		if len(open) == 0 {
			from = usable
		}
	}
	v.best = math.Inf(1)
	for _, h := range from {
		v.best = min(v.best, v.times[h])
	}
	high := math.MinInt
	for _, h := range from {
		if v.times[h] <= v.best+1e-6 {
			high = max(high, h.Worker.Terms().Priority)
		}
	}
	for _, h := range from {
		if v.times[h] <= v.best+1e-6 && h.Worker.Terms().Priority == high {
			v.holders = append(v.holders, h)
		}
	}
	return v
}

// scene is a random pool with a random question.
func scene(r *rand.Rand, n int) *Question {
	pool := newPool(n, 1+r.IntN(3))
	now := fleet.Now()
	reporting := r.IntN(4) // 0: nobody
	for _, w := range pool.Workers {
		if r.IntN(6) == 0 {
			w.Steer([]fleet.Veto{fleet.FaultyCache, fleet.Overloaded, fleet.Stale}[r.IntN(3)], true)
		}
		w.SetTerms(&fleet.Terms{Priority: 50 + r.IntN(2), Cost: []float64{1, 1, 1, 0.5, 2}[r.IntN(5)]})
	}
	busy := 1 + r.IntN(20)
	for _, h := range pool.Holders {
		lease := func() {
			for range r.IntN(busy) {
				h.Take(fleet.Work{Prompt: r.Int64N(5000)})
			}
		}
		lease()
		if r.IntN(3) == 0 { // how fast it prefills is known
			l := h.Take(fleet.Work{Prompt: 4000, Stream: true})
			l.Moved(l.Since + 1 + r.Int64N(int64(time.Second)))
			l.Release()
		}
		if r.IntN(3) < reporting {
			reading(h, r.Int64N(int64(busy)), func(x *fleet.Reading) {
				x.At = now - r.Int64N(int64(20*time.Second))*int64(r.IntN(2))
				x.Waiting, x.PrefillPending, x.WaitingUncached = r.Int64N(3)-1, r.Int64N(9000)-1, r.Int64N(2000)-1
				x.Usage, x.ActiveUsage = r.Float64(), float64(r.IntN(3))*0.45-0.1
				x.Throughput, x.MaxRunning = float64(r.IntN(6000)-1), r.Int64N(16)-1
			})
			lease()
		}
	}
	q := &Question{Pool: pool, Prompt: 100 + r.Int64N(8000), BlockSize: 16, Rank: -1, Now: now}
	q.Blocks = int(q.Prompt) / q.BlockSize
	if r.IntN(8) == 0 {
		q.Rank = 0
	}
	for _, h := range pool.Holders {
		if r.IntN(3) == 0 {
			blocks := uint32(r.IntN(q.Blocks + 1))
			if r.IntN(2) == 0 {
				blocks = uint32(q.Blocks * 2 / 3)
			}
			q.Matches = append(q.Matches, Match{Holder: h, Blocks: blocks, Device: blocks - uint32(r.IntN(int(blocks)/4+1))})
		}
	}
	slices.SortFunc(q.Matches, func(a, b Match) int { return int(b.Blocks) - int(a.Blocks) })
	if r.IntN(5) == 0 {
		q.Exclude = []*fleet.Worker{pool.Workers[r.IntN(n)]}
	}
	return q
}

func TestSmallPoolsAreDecidedAsByThePlainScorer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := seeded(t, CacheAware, nil)
	o := DefaultOptions()
	branches := map[Branch]int{}
	for i := range 4000 {
		q := scene(r, 1+r.IntN(10))
		want := plain(q, &o)
		d := Decision{Record: &Record{}}
		if err := p.Decide(q, &d); err != nil {
			t.Fatal(err)
		}
		if len(want.holders) == 0 { // nobody is usable
			if d.Branch != Vetoed && d.Branch != Again {
				t.Fatalf("scene %d: nobody is usable, branch %v", i, d.Branch)
			}
			continue
		}
		branches[d.Branch]++
		if d.Branch != want.branch || !slices.Contains(want.holders, d.Holder) {
			t.Fatalf("scene %d of %d: %v %s, expected %.6f; want %v one of %d, %.6f\n%s", i, len(q.Pool.Holders), d.Branch, d.Holder.Worker.ID,
				want.times[d.Holder], want.branch, len(want.holders), want.best, d.Record.AppendJSON(nil))
		}
		if got := d.Record.Best[0].Expected; math.Abs(got-want.times[d.Holder]) > 1e-9 {
			t.Fatalf("scene %d: the record says %.9f s, want %.9f", i, got, want.times[d.Holder])
		}
	}
	for _, b := range []Branch{Hit, Miss, Spill} {
		if branches[b] < 100 {
			t.Errorf("branch %v only %d times: the scenes do not show it", b, branches[b])
		}
	}
}

// Of a large pool draws are read: hits are decided the same, as long as the gate, which
// hangs on the mean, is not in doubt; misses cost little more than the best would.
func TestLargePoolsComeCloseToThePlainScorer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p := seeded(t, CacheAware, nil)
	o := DefaultOptions()
	var differ, hits, elsewhere int
	var over []float64
	for i := range 300 {
		q := scene(r, 60+r.IntN(140))
		q.Pool.Version = uint64(i + 1)
		want := plain(q, &o)
		d := decide(t, p, q)
		switch {
		case want.branch == Hit && d.Branch == Hit:
			if hits++; len(q.Matches) <= maxCross && !slices.Contains(want.holders, d.Holder) {
				differ++
			}
		case want.branch == d.Branch:
			elsewhere++
			over = append(over, want.times[d.Holder]/want.best)
		}
	}
	if hits < 50 || differ > hits/20 {
		t.Errorf("%d of %d hits on other holders than the plain scorer's", differ, hits)
	}
	slices.Sort(over)
	if elsewhere < 30 || over[len(over)/2] > 1.25 || over[len(over)-1-len(over)/20] > 2 {
		t.Errorf("%d elsewhere: expected time over the best's: median %.2f, p95 %.2f", elsewhere, over[len(over)/2], over[len(over)-1-len(over)/20])
	}
	t.Logf("hits %d, differing %d; elsewhere %d, over the best: median %.3f p95 %.3f", hits, differ, elsewhere, over[len(over)/2], over[len(over)-1-len(over)/20])
}
