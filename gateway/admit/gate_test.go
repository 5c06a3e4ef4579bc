// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func enter(t *testing.T, g *Gate) func() {
	t.Helper()
	leave, err := g.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

// stand fails unless so many run and wait.
func stand(t *testing.T, g *Gate, running, waiting int) {
	t.Helper()
	if s := g.Stats(); s.Running != running || s.Waiting != waiting {
		t.Errorf("%d run and %d wait, want %d and %d", s.Running, s.Waiting, running, waiting)
	}
}

// TestNoBound has 0 let everybody in.
func TestNoBound(t *testing.T) {
	g := New(Options{Limit: 0, Queue: 0})
	var leaves []func()
	for range 1_000 {
		leaves = append(leaves, enter(t, g))
	}
	stand(t, g, 1_000, 0)
	for _, leave := range leaves {
		leave()
	}
	stand(t, g, 0, 0)
}

// TestOrder has those who wait get places in the order in which they came, past who
// gave up.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Limit: 1, Queue: 10, Wait: time.Hour})
		leave := enter(t, g)
		var mu sync.Mutex
		var order []int
		gone, giveUp := context.WithCancel(t.Context())
		for i := range 10 {
			ctx := t.Context()
			if i == 0 || i == 4 || i == 9 {
				ctx = gone
			}
			go func() {
				leave, err := g.Enter(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				leave()
			}()
			synctest.Wait()
		}
		stand(t, g, 1, 10)
		giveUp()
		synctest.Wait()
		stand(t, g, 1, 7)
		leave()
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []int{1, 2, 3, 5, 6, 7, 8}; !slices.Equal(order, want) {
			t.Errorf("served %v, want %v", order, want)
		}
		stand(t, g, 0, 0)
		if s := g.Stats(); s.GaveUp != 3 || s.Queued != 10 || s.Admitted != 8 {
			t.Errorf("%+v, want 3 gave up, 10 queued, 8 admitted", s)
		}
	})
}

// TestRefused has a full queue refuse at once, and one who waits for too long leave.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Limit: 1, Queue: 1, Wait: 5 * time.Second})
		leave := enter(t, g)
		late := make(chan error)
		go func() {
			_, err := g.Enter(t.Context())
			late <- err
		}()
		synctest.Wait()
		_, err := g.Enter(t.Context())
		var full *RefusedError
		if !errors.As(err, &full) || full.Reason != Full || full.Waiting != 1 || full.RetryAfter != time.Second {
			t.Errorf("a full queue: %v, want a refusal with 1 waiting and 1 s", err)
		}
		began := time.Now()
		var r *RefusedError
		if err := <-late; !errors.As(err, &r) || r.Reason != Late {
			t.Errorf("one who waits: %v, want a refusal because it is late", err)
		}
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("it waited for %v, want 5s", waited)
		}
		stand(t, g, 1, 0)
		leave()
		stand(t, g, 0, 0)
	})
}

// TestRetryAfter has the time to stay away follow the pace at which places come free.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Limit: 2, Queue: 40, Wait: time.Hour})
		for range 42 { // two places, two seconds each: one a second
			go func() {
				leave, err := g.Enter(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(2 * time.Second)
				leave()
			}()
		}
		synctest.Wait()
		ask := func(want int) {
			t.Helper()
			g.mu.Lock()
			r := g.refusal(Full)
			g.mu.Unlock()
			if got := int(r.RetryAfter / time.Second); got != want {
				t.Errorf("%d wait: come again in %d s, want %d", r.Waiting, got, want)
			}
		}
		ask(1) // no pace is known
		time.Sleep(10*time.Second + time.Millisecond)
		ask(31) // 30 wait, 10 left in 10.001 s
		time.Sleep(50 * time.Second)
		ask(1)
	})
}

// TestSet has a bound that grows let in who waits, and one that shrinks keep who is in.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Limit: 1, Queue: 5})
		leaves := make(chan func(), 6)
		for range 6 {
			go func() {
				leave, err := g.Enter(t.Context())
				if err != nil {
					t.Error(err)
				}
				leaves <- leave
			}()
		}
		synctest.Wait()
		stand(t, g, 1, 5)
		g.Set(Options{Limit: 3, Queue: 5})
		synctest.Wait()
		stand(t, g, 3, 3)
		g.Set(Options{Limit: 1, Queue: 5})
		(<-leaves)()
		synctest.Wait()
		stand(t, g, 2, 3)
		g.Set(Options{})
		synctest.Wait()
		stand(t, g, 5, 0)
		for range 5 {
			(<-leaves)()
		}
		stand(t, g, 0, 0)
	})
}

// TestRace has many come, give up and leave at once: the bound holds, all places come
// back.
func TestRace(t *testing.T) {
	const limit = 4
	g := New(Options{Limit: limit, Queue: 32, Wait: time.Millisecond})
	var in, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(2_000))*time.Microsecond)
				if leave, err := g.Enter(ctx); err == nil {
					now := in.Add(1)
					for old := most.Load(); old < now && !most.CompareAndSwap(old, now); old = most.Load() {
					}
					if r.IntN(4) == 0 {
						time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
					}
					in.Add(-1)
					leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if most.Load() > limit {
		t.Errorf("%d had a place at once, want at most %d", most.Load(), limit)
	}
	stand(t, g, 0, 0)
	s := g.Stats()
	if total := s.Admitted + s.Full + s.Late + s.GaveUp; total < 64*300 {
		t.Errorf("%+v: %d ends, want at least one for each of %d requests", s, total, 64*300)
	}
	enter(t, g)()
}

func TestValidate(t *testing.T) {
	o := DefaultOptions()
	if err := o.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for _, o := range []Options{{Limit: -1}, {Queue: -1}, {Wait: -1}} {
		if o.Validate() == nil {
			t.Errorf("%+v: accepted", o)
		}
	}
}

func TestEnterAllocates(t *testing.T) {
	g := New(DefaultOptions())
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		leave, err := g.Enter(ctx)
		if err != nil {
			t.Fatal(err)
		}
		leave()
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkEnter(b *testing.B) {
	g := New(DefaultOptions())
	ctx := b.Context()
	for b.Loop() {
		leave, err := g.Enter(ctx)
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
}
