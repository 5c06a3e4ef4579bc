// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"kindex/gateway/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func worker(ranks int) *fleet.Worker {
	return fleet.NewWorker("w", &fleet.Spec{URL: "http://127.0.0.1:1", Models: []string{"m"}, Ranks: ranks})
}

// script is a worker as probes see it. The zero value passes.
type script struct {
	mu    sync.Mutex
	err   error         // what a probe finds
	delay time.Duration // until it does; below 0: never
	asked int
}

func (s *script) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *script) slow(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *script) check(ctx context.Context, _ *fleet.Worker, _ time.Duration, _ bool) error {
	s.mu.Lock()
	s.asked++
	delay, err := s.delay, s.err
	s.mu.Unlock()
	if delay < 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

var errRefused = fmt.Errorf("%w: refused", errConnect)

// bench is a watch of one worker whose time and probes are a test's.
type bench struct {
	*Watch
	t *testing.T
	w *fleet.Worker
	s *script
}

// within runs f with a bench in a bubble of time that only waits make pass.
func within(t *testing.T, edit func(*Options), f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Duration(-fleet.Now()) + time.Hour) // a bubble's time begins before the program's
		o, s := DefaultOptions(), &script{}
		o.Check = s.check
		if edit != nil {
			edit(&o)
		}
		w, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		b := &bench{Watch: w, t: t, w: worker(1), s: s}
		w.Add(b.w)
		f(b)
	})
}

// pass lets time pass.
func (b *bench) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// ready waits until the worker is, and a little on, so that nothing is on its way.
func (b *bench) ready() {
	b.t.Helper()
	b.pass(100 * time.Millisecond)
	b.state(fleet.Ready)
}

func (b *bench) state(want fleet.State) {
	b.t.Helper()
	if got := b.w.State(); got != want {
		b.t.Fatalf("worker %v, want %v", got, want)
	}
}

// vetoes fails unless these and no others are on the worker.
func (b *bench) vetoes(want fleet.Veto) {
	b.t.Helper()
	if got := b.w.Vetoes(); got != want {
		b.t.Fatalf("vetoes %b, want %b (%v)", got, want, fleet.VetoNames)
	}
}

// until lets time pass until ok, and returns how much did.
func (b *bench) until(most time.Duration, what string, ok func() bool) time.Duration {
	b.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > most {
			b.t.Fatalf("not %s after %v", what, most)
		}
		b.pass(10 * time.Millisecond)
	}
	return time.Since(began)
}

// on and is are conditions for until.
func (b *bench) on(v fleet.Veto) func() bool  { return func() bool { return b.w.Vetoes()&v != 0 } }
func (b *bench) is(s fleet.State) func() bool { return func() bool { return b.w.State() == s } }

// moved has a token of l come now.
func moved(l *fleet.Lease) { l.Moved(fleet.Now()) }

// TestStart has a live worker be ready at once, by two probes.
func TestStart(t *testing.T) {
	within(t, nil, func(b *bench) {
		if took := b.until(time.Second, "ready", b.is(fleet.Ready)); took > 50*time.Millisecond {
			t.Errorf("ready after %v, want 50ms at most", took)
		}
		if b.s.count() != 2 {
			t.Errorf("%d probes, want 2", b.s.count())
		}
		b.pass(10 * time.Second)
		if n := b.s.count(); n < 10 || n > 14 {
			t.Errorf("%d probes after 10 s, want about one a second", n)
		}
		b.vetoes(0)
	})
}

// TestStates has a worker go the way from ready to failed and back, by probes in a row
// alone.
func TestStates(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.s.fail(fmt.Errorf("it answers 500"))
		b.until(2*time.Second, "not ready", b.is(fleet.NotReady))
		if st, _ := b.Status(b.w); st.Fails != 3 || st.Probe != Unwell {
			t.Errorf("not ready after %d fails (%v), want 3 unwell", st.Fails, st.Probe)
		}
		b.until(4*time.Second, "failed", b.is(fleet.Failed))
		if st, _ := b.Status(b.w); st.Fails != 9 {
			t.Errorf("failed after %d fails, want 9", st.Fails)
		}
		b.pass(10 * time.Minute) // it is asked on and on
		before := b.s.count()
		b.s.fail(nil)
		b.until(time.Second, "ready again", b.is(fleet.Ready))
		if n := b.s.count() - before; n != 2 {
			t.Errorf("ready after %d passed probes, want 2", n)
		}
	})
}

// TestThreshold has nothing but probes in a row make a worker ready: neither one of them
// between failing ones, nor other signs of life.
func TestThreshold(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.s.fail(errRefused)
		b.until(2*time.Second, "not ready", b.is(fleet.NotReady))
		for range 20 {
			b.w.Contact(fleet.Now())
			b.Outcome(b.w, OK)
			n := b.s.count()
			b.s.fail(nil)
			b.until(time.Second, "asked", func() bool { return b.s.count() > n })
			b.s.fail(errRefused)
			b.pass(300 * time.Millisecond)
			if b.w.State() == fleet.Ready {
				t.Fatal("ready after one passed probe")
			}
		}
	})
}

// TestKilled has a killed worker be out within 2.5 s, with and without requests that
// tell of it and whatever the probes' interval; and back within a second.
func TestKilled(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, time.Hour} {
		for _, every := range []time.Duration{20 * time.Millisecond, 0} {
			if every == 0 && interval > time.Second {
				continue // nobody asks it and nobody notices
			}
			t.Run(fmt.Sprintf("%v/%v", interval, every), func(t *testing.T) {
				within(t, func(o *Options) { o.ProbeInterval = interval }, func(b *bench) {
					b.ready()
					for range 100 {
						b.Outcome(b.w, OK)
						b.pass(20 * time.Millisecond)
					}
					b.s.fail(errRefused)
					took := b.until(2500*time.Millisecond, "out", func() bool {
						if every > 0 && b.w.Usable() {
							b.Outcome(b.w, ConnectFailed)
						}
						return !b.w.Usable()
					})
					t.Log("out after", took)
					b.pass(20 * time.Second)
					b.state(fleet.Failed)
					b.s.fail(nil)
					t.Log("back after", b.until(time.Second, "usable", b.w.Usable))
				})
			})
		}
	}
}

// TestUnreachable has the veto need both a failed connection and silence, and end with
// any sign of life.
func TestUnreachable(t *testing.T) {
	within(t, func(o *Options) { o.ProbeInterval, o.ProbeFast = time.Hour, time.Hour }, func(b *bench) {
		b.ready()
		b.w.Contact(fleet.Now())
		b.ConnectFailed(b.w)
		b.pass(time.Second)
		b.vetoes(0)
		b.w.Contact(fleet.Now())
		b.pass(time.Second + 500*time.Millisecond)
		b.vetoes(0) // it was heard after the failure
		b.ConnectFailed(b.w)
		b.pass(time.Second)
		b.vetoes(fleet.Unreachable) // silent for 2.5 s
		b.pass(time.Minute)
		b.vetoes(fleet.Unreachable)
		b.w.Contact(fleet.Now())
		b.pass(300 * time.Millisecond)
		b.vetoes(0)
	})
	within(t, func(o *Options) { o.StallAfter, o.ProbeFailures = 0, 1_000 }, func(b *bench) {
		b.ready()
		b.s.fail(errRefused)
		b.pass(time.Minute)
		b.vetoes(0)
	})
}
