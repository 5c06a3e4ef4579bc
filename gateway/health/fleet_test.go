// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kindex/gateway/fleet"
)

// TestLeavesLoadAlone has what a worker carries be the same through every state and
// veto, and count for nothing else than its leases.
func TestLeavesLoadAlone(t *testing.T) {
	within(t, nil, func(b *bench) {
		h := b.w.Holders[0]
		leases := b.streams(3, fleet.Work{Prompt: 1_000, Cached: 200})
		leases = append(leases, h.Take(fleet.Work{Prompt: 50}))
		carries := func(when string) {
			t.Helper()
			if n, p := h.InFlight(), h.PrefillInFlight(); n != 4 || p != 2_450 {
				t.Fatalf("%s: %d requests and %d tokens in flight, want 4 and 2450", when, n, p)
			}
		}
		b.ready()
		carries("ready")
		b.s.fail(errRefused)
		b.outcomes(20, ConnectFailed)
		b.until(5*time.Second, "failed", b.is(fleet.Failed))
		carries("failed")
		b.s.fail(nil)
		b.until(time.Second, "back", b.w.Usable)
		carries("back")
		b.frozen()
		b.until(5*time.Second, "wedged", b.on(fleet.Wedged))
		carries("wedged")
		b.Remove(b.w)
		carries("removed")
		for _, l := range leases {
			l.Release()
		}
		if n, p := h.InFlight(), h.PrefillInFlight(); n != 0 || p != 0 {
			t.Errorf("%d requests and %d tokens in flight, want none", n, p)
		}
	})
}

// TestPending has a worker be given nothing until probes passed, however long that takes.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Duration(-fleet.Now()) + time.Hour)
		o, s := DefaultOptions(), &script{err: errRefused}
		o.Check = s.check
		w, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		b := &bench{Watch: w, t: t, w: worker(1), s: s}
		w.Add(b.w)
		b.pass(2 * time.Second)
		b.state(fleet.Pending)
		b.until(15*time.Second, "failed", b.is(fleet.Failed))
		b.pass(20 * time.Minute) // a model is loaded
		s.fail(nil)
		b.until(time.Second, "ready", b.w.Usable)
	})
}

// TestDrained has probes never take back a drain or a removal.
func TestDrained(t *testing.T) {
	for _, state := range []fleet.State{fleet.Draining, fleet.Removed} {
		within(t, nil, func(b *bench) {
			b.ready()
			b.w.SetState(state)
			b.s.fail(errRefused)
			b.pass(10 * time.Second)
			b.state(state)
			b.s.fail(nil)
			b.pass(10 * time.Second)
			b.state(state)
		})
	}
}

// TestOwnProbes has a worker's own numbers, and one that is not to be probed be ready.
func TestOwnProbes(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		five, minute := 5, time.Minute
		terms := *b.w.Terms()
		terms.Health = fleet.Health{Failures: &five, Successes: &five, Interval: &minute}
		b.w.SetTerms(&terms)
		b.pass(2 * time.Second)
		n := b.s.count()
		b.pass(50 * time.Second)
		if more := b.s.count() - n; more > 1 {
			t.Errorf("%d probes in 50 s, want one a minute", more)
		}
		b.s.fail(errRefused)
		b.until(70*time.Second, "not ready", b.is(fleet.NotReady))
		if st, _ := b.Status(b.w); st.Fails != 5 {
			t.Errorf("not ready after %d fails, want 5", st.Fails)
		}
		b.s.fail(nil)
		n = b.s.count()
		b.until(time.Second, "ready", b.is(fleet.Ready))
		if got := b.s.count() - n; got != 5 {
			t.Errorf("ready after %d passed probes, want 5", got)
		}
	})
	within(t, nil, func(b *bench) {
		off := true
		other := worker(1)
		terms := *other.Terms()
		terms.Health.Off = &off
		other.SetTerms(&terms)
		b.s.fail(errRefused)
		b.Add(other)
		b.pass(time.Minute)
		if other.State() != fleet.Ready {
			t.Errorf("not probed: %v, want ready", other.State())
		}
		off2 := false
		terms.Health.Off = &off2
		other.SetTerms(&terms)
		b.pass(10 * time.Second)
		if other.State() != fleet.Failed {
			t.Errorf("probed again: %v, want failed", other.State())
		}
	})
}

// TestManyWorkers has probes at once be bounded, and workers that hang not keep others
// from being asked.
func TestManyWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Duration(-fleet.Now()) + time.Hour)
		const hang, live, bound = 300, 100, 16
		o := DefaultOptions()
		o.Probes = bound
		stuck := make(map[*fleet.Worker]bool)
		var now, most atomic.Int64
		o.Check = func(ctx context.Context, w *fleet.Worker, _ time.Duration, _ bool) error {
			if stuck[w] {
				<-ctx.Done()
				return ctx.Err()
			}
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(20 * time.Millisecond)
			return nil
		}
		var all []*fleet.Worker
		for i := range hang + live {
			w := worker(1)
			stuck[w] = i < hang
			all = append(all, w)
		}
		w, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for _, x := range all {
			w.Add(x)
		}
		time.Sleep(10 * time.Second) // 300 at 16 each tenth of a second, twice, and more come meanwhile
		synctest.Wait()
		for i, x := range all[hang:] {
			if x.State() != fleet.Ready {
				t.Fatalf("worker %d: %v, want ready", i, x.State())
			}
		}
		if n := most.Load(); n > bound {
			t.Errorf("%d live ones asked at once, want at most %d", n, bound)
		}
		before := w.Stats().Probes[Passed]
		time.Sleep(10 * time.Second)
		if n := w.Stats().Probes[Passed] - before; n < live*5 {
			t.Errorf("%d probes passed in 10 s, want about %d", n, live*10)
		}
	})
}

// TestComeAndGo has workers come and go while everything is told of them: nothing
// crashes, and nothing is left.
func TestComeAndGo(t *testing.T) {
	o := DefaultOptions()
	o.ProbeInterval, o.ProbeFast = time.Millisecond, time.Millisecond
	var n atomic.Int64
	o.Check = func(context.Context, *fleet.Worker, time.Duration, bool) error {
		if n.Add(1)%3 == 0 {
			return errRefused
		}
		return nil
	}
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 100 {
				x := worker(1 + j%3)
				w.Add(x)
				l := x.Holders[0].Take(fleet.Work{Stream: true, Prompt: 100})
				for k := range numKinds {
					w.Outcome(x, k)
				}
				w.ConnectFailed(x)
				w.Suspect(x)
				w.Status(x)
				if j%10 == 0 {
					time.Sleep(time.Duration(i) * time.Millisecond)
					w.Stats()
				}
				l.Moved(fleet.Now())
				w.Remove(x)
				w.Remove(x)
				w.Outcome(x, WorkerError)
				l.Release()
				if _, there := w.Status(x); there {
					t.Error("a removed worker is known")
				}
			}
		})
	}
	wg.Wait()
	if s := w.Stats(); s.Workers != 0 {
		t.Errorf("%d workers left, want none", s.Workers)
	}
	w.Close()
	w.Add(worker(1)) // too late, and no harm
}

func TestValidate(t *testing.T) {
	for i, edit := range []func(*Options){
		func(o *Options) { o.StallAfter = -1 },
		func(o *Options) { o.ProbeInterval = 0 },
		func(o *Options) { o.ProbeFailures = 0 },
		func(o *Options) { o.BreakerFailures = -1 },
		func(o *Options) { o.OverloadUsage = 1.5 },
		func(o *Options) { o.OverloadWaiting = -1 },
	} {
		o := DefaultOptions()
		edit(&o)
		if w, err := New(o); err == nil {
			w.Close()
			t.Errorf("case %d: accepted", i)
		}
	}
	o := DefaultOptions()
	o.StallAfter, o.WedgeAfter, o.StaleAfter, o.OverloadUsage, o.OverloadWaiting, o.BreakerFailures, o.BackOff = 0, 0, 0, 0, 0, 0, 0
	if err := o.Validate(); err != nil {
		t.Errorf("everything switched off: %v", err)
	}
}

// TestSwitchedOff has a watch with every rule switched off veto nobody.
func TestSwitchedOff(t *testing.T) {
	within(t, func(o *Options) {
		o.StallAfter, o.WedgeAfter, o.StaleAfter, o.OverloadUsage, o.OverloadWaiting, o.BreakerFailures, o.BackOff = 0, 0, 0, 0, 0, 0, 0
	}, func(b *bench) {
		b.ready()
		b.streams(10, fleet.Work{})
		l := unknown()
		l.Pushed, l.ReportsSteps, l.SilenceMS, l.Waiting, l.Usage = true, true, 100_000, 1_000, 1
		b.report(l)
		for k := range numKinds {
			b.outcomes(20, k)
		}
		b.frozen()
		b.pass(30 * time.Second)
		b.vetoes(0)
	})
}

func BenchmarkOutcome(b *testing.B) {
	o := DefaultOptions()
	o.Check = (&script{}).check
	o.ProbeInterval = time.Hour
	for _, workers := range []int{8, 1_024} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			w, err := New(o)
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			all := make([]*fleet.Worker, workers)
			for i := range all {
				all[i] = worker(1)
				w.Add(all[i])
			}
			i := 0
			for b.Loop() {
				w.Outcome(all[i%workers], OK)
				i++
			}
		})
	}
}

func BenchmarkSweep(b *testing.B) {
	o := DefaultOptions()
	o.Check = (&script{}).check
	w, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	s := newSight(w, worker(1))
	for b.Loop() {
		s.sweep(fleet.Now())
	}
}

// TestDrainedIsNotHurried has a worker that drains be probed no more often than one that
// serves.
func TestDrainedIsNotHurried(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.w.SetState(fleet.Draining)
		b.pass(2 * time.Second)
		before := b.s.count()
		b.pass(10 * time.Second)
		if n := b.s.count() - before; n > 14 {
			t.Errorf("%d probes in 10 s, want about one a second", n)
		}
	})
}

// TestUnprobed has a worker whose probes are switched off neither stay where they had put
// it nor be passed over for good for one connection that failed: nobody else would try it.
func TestUnprobed(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.s.fail(errRefused)
		b.until(2*time.Second, "not ready", b.is(fleet.NotReady))
		off := true
		terms := *b.w.Terms()
		terms.Health.Off = &off
		b.w.SetTerms(&terms)
		b.until(time.Second, "ready", b.is(fleet.Ready))
		b.pass(10 * time.Second)
		b.Outcome(b.w, ConnectFailed)
		b.pass(time.Second)
		b.vetoes(fleet.Unreachable)
		b.until(b.options().BreakerOpen+time.Second, "reachable", b.w.Usable)
		b.Outcome(b.w, ConnectFailed)
		b.pass(time.Second)
		b.vetoes(fleet.Unreachable)
	})
}

// TestItsOwnWord has a worker that answers probes with no be out, although the requests
// that it still has move: engines that are being shut down do that.
func TestItsOwnWord(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		l := b.streams(1, fleet.Work{})[0]
		b.s.fail(errors.New("it answers 503"))
		b.s.slow(5 * time.Millisecond)
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); b.pass(2 * time.Millisecond) {
			moved(l)
		}
		b.state(fleet.NotReady)
	})
}
