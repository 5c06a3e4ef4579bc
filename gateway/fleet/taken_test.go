// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// TestTakenAt: against all takes remembered, exact to a tick; what is within a tick of
// the time counts as later.
func TestTakenAt(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 7))
		var k takes
		const base = 1<<32 - 50 // the slots' numbers wrap
		n, now := uint64(base), int64(0)
		var times []int64
		for range 400 {
			now += r.Int64N(1 << (takeFine + seed%6))
			n++
			times = append(times, now)
			k.note(now, n-1)
		}
		for _, ring := range []struct {
			slots *[takeTicks]atomic.Uint64
			shift int
		}{{&k.fine, takeFine}, {&k.coarse, takeCoarse}} {
			for range 200 {
				at := max(now-r.Int64N(takeTicks<<ring.shift), 0)
				want := uint64(base)
				for _, x := range times {
					if x>>ring.shift < at>>ring.shift {
						want++
					}
				}
				got, ok := sumAt(ring.slots, uint64(at)>>ring.shift+1, uint64(now)>>ring.shift+1, n)
				if got != want && ok {
					t.Fatalf("seed %d, ticks of 2^%d ns: %d taken at %d, want %d", seed, ring.shift, got, at, want)
				}
				if !ok && got < want {
					t.Fatalf("seed %d: %d taken at %d, too few: it was %d", seed, got, at, want)
				}
			}
			if got, ok := sumAt(ring.slots, uint64(now)>>ring.shift+2, uint64(now)>>ring.shift+2, n); got != n || !ok {
				t.Errorf("seed %d: %d taken, %v, after the last one, want %d", seed, got, ok, n)
			}
		}
	}
	h := &Holder{Worker: &Worker{}}
	stamp := func(at int64) Reading {
		var r Reading
		h.StampAt(&r, at)
		return Reading{Taken: r.Taken, TakenPrefill: r.TakenPrefill}
	}
	check := func(what string, at int64, taken uint64, prefill int64) {
		t.Helper()
		if r := stamp(at); r.Taken != taken || r.TakenPrefill != prefill {
			t.Errorf("%s: %d taken with %d tokens, want %d with %d", what, r.Taken, r.TakenPrefill, taken, prefill)
		}
	}
	check("a new holder", Now(), 0, 0)
	h.Take(Work{Prompt: 30, Cached: 10})
	h.Take(Work{Prompt: 5})
	check("before the first", 0, 0, 0)
	check("after the last", Now()+1e9, 2, 25)
	r := &Reading{}
	h.StampAt(r, 0)
	h.SetReading(r)
	if u := h.Unread(r); u.Requests != 2 || u.Prefill != 25 {
		t.Errorf("unread of a reading before all: %+v", u)
	}
}

// TestHeld: a level is known once it was said, 0 too.
func TestHeld(t *testing.T) {
	var h Holder
	if _, known := h.Held(); known {
		t.Error("the level is known before anybody said it")
	}
	h.SetHeld(0)
	if n, known := h.Held(); n != 0 || !known {
		t.Errorf("level %d, %v, want 0, known", n, known)
	}
	h.SetHeld(-1)
	if _, known := h.Held(); known {
		t.Error("the level is known after it was taken back")
	}
}

// TestTakesRace: sums of one tick only grow.
func TestTakesRace(t *testing.T) {
	h := &Holder{Worker: &Worker{}}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1_000 {
				h.Take(Work{Prompt: 3}).Release()
				h.StampAt(new(Reading), Now())
			}
		})
	}
	wg.Wait()
	var r Reading
	if h.StampAt(&r, Now()+1e9); r.Taken != 4_000 || r.TakenPrefill != 12_000 {
		t.Errorf("%d taken with %d tokens, want 4000 with 12000", r.Taken, r.TakenPrefill)
	}
}
