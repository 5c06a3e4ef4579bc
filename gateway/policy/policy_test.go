// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"testing"

	"kindex/gateway/fleet"
)

func TestEveryPolicySkipsWhoIsNotReady(t *testing.T) {
	for _, name := range Names() {
		for _, n := range []int{4, 100} {
			pool := newPool(n, 2)
			for i, w := range pool.Workers {
				switch i % 4 {
				case 0:
					w.SetState(fleet.Draining)
				case 1:
					w.Steer(fleet.Overloaded, true)
				case 2:
					w.SetState(fleet.NotReady)
				}
			}
			p := seeded(t, name, nil)
			q := ask(pool)
			for i := range 200 {
				q.Key = uint64(i)
				q.Matches = []Match{match(pool.Holders[0], 200), match(pool.Holders[2], 190)}
				if d := decide(t, p, q); !d.Holder.Worker.Usable() {
					t.Fatalf("%s of %d: took %s, which is %v with vetoes %v", name, n, d.Holder.Worker.ID, d.Holder.Worker.State(), d.Holder.Worker.Vetoes())
				}
			}
		}
	}
}

func TestNobodyIsRefusedForAVeto(t *testing.T) {
	for _, name := range Names() {
		for _, n := range []int{3, 100} {
			pool := newPool(n, 1)
			for i, w := range pool.Workers {
				w.Steer(fleet.Overloaded, true)
				for range i + 1 {
					pool.Holders[i].Take(fleet.Work{})
				}
			}
			p := seeded(t, name, nil)
			d := decide(t, p, ask(pool))
			if d.Branch != Vetoed || d.Tried {
				t.Errorf("%s of %d: branch %v, tried %v", name, n, d.Branch, d.Tried)
			}
			if n == 3 && d.Holder != pool.Holders[0] {
				t.Errorf("%s: all vetoed: took %s, want the least loaded w0", name, d.Holder.Worker.ID)
			}
			pool.Workers[0].Steer(fleet.Unreachable, true)
			if d = decide(t, p, ask(pool)); n == 3 && d.Holder != pool.Holders[1] {
				t.Errorf("%s: took %s, want w1: w0 is not even reachable", name, d.Holder.Worker.ID)
			}
			for _, w := range pool.Workers {
				w.SetState(fleet.NotReady)
			}
			if err := p.Decide(ask(pool), &d); !errors.Is(err, ErrNoWorker) {
				t.Errorf("%s of %d: nobody ready: %v, want %v", name, n, err, ErrNoWorker)
			}
			if err := p.Decide(ask(fleet.NewPool("m", 2, nil)), &d); !errors.Is(err, ErrNoWorker) {
				t.Errorf("%s: empty pool: %v, want %v", name, err, ErrNoWorker)
			}
		}
	}
}

func TestTriedWorkersComeLast(t *testing.T) {
	for _, name := range Names() {
		for _, n := range []int{3, 64} {
			pool := newPool(n, 2)
			p := seeded(t, name, nil)
			q := ask(pool)
			q.Matches = []Match{match(pool.Holders[0], 200)}
			for range pool.Workers {
				d := decide(t, p, q)
				if d.Tried {
					t.Fatalf("%s of %d: tried again after %d", name, n, len(q.Exclude))
				}
				for _, w := range q.Exclude {
					if w == d.Holder.Worker {
						t.Fatalf("%s of %d: took %s, which was tried", name, n, w.ID)
					}
				}
				q.Exclude = append(q.Exclude, d.Holder.Worker)
			}
			d := decide(t, p, q)
			if !d.Tried || d.Branch != Again {
				t.Errorf("%s of %d: all tried: branch %v, tried %v", name, n, d.Branch, d.Tried)
			}
		}
	}
}

func TestAVetoedOneBeforeATriedOne(t *testing.T) {
	pool := newPool(2, 1)
	pool.Workers[1].Steer(fleet.Stale, true)
	q := ask(pool)
	q.Exclude = pool.Workers[:1]
	if d := decide(t, seeded(t, CacheAware, nil), q); d.Holder != pool.Holders[1] || d.Branch != Vetoed {
		t.Errorf("took %s by %v, want w1, vetoed", d.Holder.Worker.ID, d.Branch)
	}
}

func TestPins(t *testing.T) {
	for _, name := range Names() {
		pool := newPool(40, 4)
		p := seeded(t, name, nil)
		w := pool.Workers[7]
		for _, by := range []string{w.ID, w.Spec.URL, w.Spec.Instance} {
			for rank := range 4 {
				q := ask(pool)
				q.Worker, q.Rank = by, rank
				w.Steer(fleet.Overloaded, rank%2 == 1)
				d := decide(t, p, q)
				if d.Holder != w.Holders[rank] || d.Branch != Pinned {
					t.Errorf("%s: pinned to %s rank %d: took %s rank %d by %v", name, by, rank, d.Holder.Worker.ID, d.Holder.Rank, d.Branch)
				}
			}
		}
		q := ask(pool)
		q.Worker = w.ID
		q.Matches = []Match{match(pool.Holders[0], 200), match(w.Holders[2], 100)}
		if d := decide(t, p, q); d.Holder != w.Holders[2] || d.Cached != 1600 {
			t.Errorf("%s: pinned to %s, whose rank 2 has the prefix: rank %d, cached %d", name, w.ID, d.Holder.Rank, d.Cached)
		}
		q.Rank = 4
		var d Decision
		if err := p.Decide(q, &d); !errors.Is(err, ErrRank) {
			t.Errorf("%s: rank 4 of 4: %v, want %v", name, err, ErrRank)
		}
		q.Worker = ""
		if err := p.Decide(q, &d); !errors.Is(err, ErrRank) {
			t.Errorf("%s: rank 4 of anybody: %v, want %v", name, err, ErrRank)
		}
		q.Rank = 3
		for range 50 {
			if d = decide(t, p, q); d.Holder.Rank != 3 {
				t.Fatalf("%s: rank 3 asked for, got %d", name, d.Holder.Rank)
			}
		}
		q.Worker = "w40"
		if err := p.Decide(q, &d); !errors.Is(err, ErrPinned) {
			t.Errorf("%s: unknown worker: %v, want %v", name, err, ErrPinned)
		}
		w.SetState(fleet.Draining)
		q.Worker = w.ID
		if err := p.Decide(q, &d); !errors.Is(err, ErrNotReady) {
			t.Errorf("%s: draining worker: %v, want %v", name, err, ErrNotReady)
		}
	}
}

func TestNewRefusesWhatCannotBe(t *testing.T) {
	if _, err := New("fastest", DefaultOptions()); err == nil {
		t.Error("an unknown policy was taken")
	}
	for _, edit := range []func(*Options){
		func(o *Options) { o.Draws = 17 }, func(o *Options) { o.Whole = 33 }, func(o *Options) { o.Throughput = 0 },
		func(o *Options) { o.GateMost = 1 }, func(o *Options) { o.Stale = 1 }, func(o *Options) { o.HostWeight = 1.5 },
	} {
		o := DefaultOptions()
		edit(&o)
		if _, err := New(CacheAware, o); err == nil {
			t.Errorf("taken: %+v", o)
		}
	}
}
