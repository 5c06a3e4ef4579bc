// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/gateway/fleet"
)

// A model of what a holder's counts must be.
type leased struct {
	lease   *fleet.Lease
	prefill int64
	stream  bool
	moved   bool
	later   bool // taken after the newest reading
}

// check compares all that a holder says with what is out.
func check(t *testing.T, h *fleet.Holder, out []*leased, taken uint64) {
	t.Helper()
	var requests, prefill, streams, unmoved, later, laterPrefill int64
	for _, l := range out {
		requests++
		if !l.moved {
			prefill += l.prefill
		}
		if l.stream {
			streams++
			if !l.moved {
				unmoved++
			}
		}
		if l.later {
			later++
			if !l.moved {
				laterPrefill += l.prefill
			}
		}
	}
	p := h.Progress()
	got := []int64{h.InFlight(), h.PrefillInFlight(), p.Streams, p.Unmoved, int64(h.Taken())}
	if want := []int64{requests, prefill, streams, unmoved, int64(taken)}; !slices.Equal(got, want) {
		t.Fatalf("in flight, prefill, streams, unmoved, taken: got %v, want %v", got, want)
	}
	if u, want := h.Unread(h.Reading()), (fleet.Unread{Requests: later, Prefill: laterPrefill}); u != want {
		t.Fatalf("not in the reading: got %+v, want %+v", u, want)
	}
}

func TestLeasesCountExactly(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		h := fleet.NewWorker("w", &fleet.Spec{URL: "http://h:1"}).Holders[0]
		var out []*leased
		var gone []*fleet.Lease
		taken := uint64(0)
		for step := range 400 {
			pick := func() int { return rng.IntN(len(out)) }
			switch op := rng.IntN(10); {
			case op < 4:
				w := fleet.Work{Prompt: rng.Int64N(100), Cached: rng.Int64N(60), Stream: rng.IntN(2) == 0}
				l := &leased{prefill: max(w.Prompt-w.Cached, 0), stream: w.Stream, later: true}
				l.lease = h.TryTake(w)
				out = append(out, l)
				taken++
			case op < 6 && len(out) > 0:
				l := out[pick()]
				l.lease.Moved(fleet.Now())
				l.moved = true
			case op < 9 && len(out) > 0:
				i := pick()
				gone = append(gone, out[i].lease)
				if !out[i].lease.Release() {
					t.Fatal("a first release did not count")
				}
				out = slices.Delete(out, i, i+1)
			case op == 9:
				r := &fleet.Reading{At: fleet.Now()}
				h.Stamp(r)
				if !h.SetReading(r) {
					t.Fatal("a newer reading was left out")
				}
				for _, l := range out {
					l.later = false
				}
			}
			for _, l := range gone { // late tokens and second releases change nothing
				if step%7 == 0 {
					l.Moved(fleet.Now())
				}
				if l.Release() {
					t.Fatal("a second release counted")
				}
			}
			check(t, h, out, taken)
		}
	}
}

func TestProgressIsTokensAndNotEnds(t *testing.T) {
	h := fleet.NewWorker("w", &fleet.Spec{URL: "http://h:1"}).Holders[0]
	if p := h.Progress(); p != (fleet.Progress{}) {
		t.Errorf("one that never had a stream is %+v", p)
	}
	a := h.Take(fleet.Work{Stream: true})
	began := h.Progress().Since
	if began < a.Since {
		t.Errorf("progress is counted from %d, want from the first stream at %d", began, a.Since)
	}
	b := h.Take(fleet.Work{Stream: true})
	a.Release()
	if p := h.Progress(); p.Since != began || p.Streams != 1 {
		t.Errorf("after a stream gave up: %+v, want still since %d", p, began)
	}
	b.Moved(began + 5)
	b.Moved(began + 3)
	if p := h.Progress(); p.Since != began+5 || p.Unmoved != 0 || b.LastMoved() != began+5 || h.Worker.LastToken() != began+5 {
		t.Errorf("after a token: %+v", p)
	}
	if h.Worker.LastContact() != began+5 {
		t.Error("a token is no sign of life")
	}
}

func TestADrainAndALeaseSeeEachOther(t *testing.T) {
	for range 300 {
		r := fleet.NewRegistry()
		w := add(t, r, fleet.Spec{URL: "http://h:1", Models: []string{"m"}})
		w.SetState(fleet.Ready)
		var got *fleet.Lease
		var taken sync.WaitGroup
		taken.Go(func() { got = w.Holders[0].TryTake(fleet.Work{}) })
		if _, err := r.Drain(w.ID, time.Minute); err != nil {
			t.Fatal(err)
		}
		taken.Wait()
		if w.MoveState(fleet.Draining, fleet.Ready) || w.SetState(fleet.Ready) < fleet.Draining || w.State() < fleet.Draining {
			t.Fatal("a worker that drains was made ready")
		}
		if got != nil {
			if w.State() == fleet.Removed {
				t.Fatal("it was removed under a lease")
			}
			got.Release()
		}
		for r.Get(w.ID) != nil {
			runtime.Gosched()
		}
		r.Close()
	}
}

func TestADrainEndsAtItsTime(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	w := add(t, r, fleet.Spec{URL: "http://h:1", Models: []string{"m"}})
	l := w.Holders[0].Take(fleet.Work{})
	if _, err := r.Drain(w.ID, 30*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if w.Holders[0].TryTake(fleet.Work{}) != nil || w.InFlight() != 1 {
		t.Error("a worker that drains was given a request")
	}
	for r.Pool("m") != nil {
		runtime.Gosched()
	}
	if w.State() != fleet.Removed || r.Get(w.ID) != nil {
		t.Error("it was not removed at the time")
	}
	if again := add(t, r, fleet.Spec{URL: "http://h:1", Models: []string{"m"}}); !l.Release() || w.InFlight() != 0 || again.InFlight() != 0 {
		t.Errorf("in flight at the old one %d, at the new one %d: want 0 and 0", w.InFlight(), again.InFlight())
	}
}

// Requests come and go while workers are removed and added again under their URLs.
func TestNoGaugeIsEverWrong(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	var mu sync.Mutex
	var ever []*fleet.Worker
	r.OnJoin(func(w *fleet.Worker) { mu.Lock(); ever = append(ever, w); mu.Unlock(); w.SetState(fleet.Ready) })
	left := 0
	r.OnLeave(func(*fleet.Worker) { left++ })
	url := func(i int) string { return fmt.Sprintf("http://h:%d", i+1) }
	const workers = 8
	for i := range workers {
		add(t, r, fleet.Spec{URL: url(i), Models: []string{"m"}, Ranks: 1 + i%3})
	}
	var stop atomic.Bool
	var churned atomic.Int64
	var all, churn sync.WaitGroup
	for seed := range uint64(4) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 2))
			var out []*fleet.Lease
			for i := 0; i < 4_000 || churned.Load() < 4*workers; i++ {
				if p := r.Pool("m"); p != nil && len(out) < 64 {
					h := p.Holders[rng.IntN(len(p.Holders))]
					if p.Holder(h.Worker.Spec.Instance, h.Rank) != h {
						t.Error("a pool does not know its own holder")
					}
					if l := h.TryTake(fleet.Work{Prompt: 50, Cached: rng.Int64N(60), Stream: rng.IntN(2) == 0}); l != nil {
						out = append(out, l)
					}
				}
				if len(out) == 0 {
					continue
				}
				l := out[rng.IntN(len(out))]
				switch rng.IntN(3) {
				case 0:
					l.Moved(fleet.Now())
				case 1:
					rd := &fleet.Reading{At: fleet.Now()}
					l.Holder.Stamp(rd)
					l.Holder.SetReading(rd)
				default:
					l.Release()
					out = slices.DeleteFunc(out, (*fleet.Lease).Released)
				}
			}
			for _, l := range out {
				l.Release()
			}
		})
	}
	churn.Go(func() {
		rng := rand.New(rand.NewPCG(9, 9))
		for ; !stop.Load(); churned.Add(1) {
			i := rng.IntN(workers)
			var err error
			if rng.IntN(2) == 0 {
				_, err = r.Remove(url(i))
			} else {
				_, err = r.Drain(url(i), time.Duration(rng.IntN(3))*time.Millisecond)
			}
			if err != nil && !errors.Is(err, fleet.ErrUnknown) {
				t.Errorf("leaving: %v", err)
			}
			if _, err := r.Add(fleet.Spec{URL: url(i), Models: []string{"m"}, Ranks: 1 + i%3}); err != nil && !errors.Is(err, fleet.ErrExists) {
				t.Errorf("joining: %v", err)
			}
		}
	})
	churn.Go(func() { // whoever looks at any time
		for !stop.Load() {
			mu.Lock()
			seen := slices.Clone(ever)
			mu.Unlock()
			for _, w := range seen {
				for _, h := range w.Holders {
					u, p := h.Unread(h.Reading()), h.Progress()
					if h.InFlight() < 0 || h.PrefillInFlight() < 0 || u.Requests < 0 || u.Prefill < 0 || p.Streams < 0 || p.Unmoved < 0 {
						t.Errorf("below 0: %d requests, %d tokens, %+v, %+v", h.InFlight(), h.PrefillInFlight(), u, p)
						return
					}
				}
			}
			runtime.Gosched()
		}
	})
	all.Wait()
	stop.Store(true)
	churn.Wait()
	for _, w := range ever {
		for _, h := range w.Holders {
			if p := h.Progress(); h.InFlight() != 0 || h.PrefillInFlight() != 0 || p.Streams != 0 || p.Unmoved != 0 {
				t.Errorf("%s at its end: %d requests, %d tokens, %+v", w.ID, h.InFlight(), h.PrefillInFlight(), p)
			}
		}
	}
	if len(ever) == workers {
		t.Error("nobody left meanwhile")
	}
	seats := make(map[int]bool)
	for _, w := range r.Workers() {
		for _, h := range w.Holders {
			if seats[h.Seat] || h.Seat >= 3*workers {
				t.Errorf("seat %d is taken twice, or was not used again", h.Seat)
			}
			seats[h.Seat] = true
		}
	}
}
