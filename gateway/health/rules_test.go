// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kindex/gateway/fleet"
)

// quiet is a watch whose probes pass and are rare.
func quiet(o *Options) { o.ProbeInterval = time.Hour }

// frozen stops the worker: probes wait for ever.
func (b *bench) frozen() { b.s.slow(-1) }

// streams takes n leases whose tokens are seen.
func (b *bench) streams(n int, work fleet.Work) []*fleet.Lease {
	work.Stream = true
	out := make([]*fleet.Lease, n)
	for i := range out {
		out[i] = b.w.Holders[0].Take(work)
	}
	return out
}

// load is a report as tests make it.
type load struct {
	Pushed, ReportsSteps bool
	Waiting, SilenceMS   int64
	Usage, ActiveUsage   float64
}

// unknown is a report that says nothing.
func unknown() load { return load{Waiting: -1, SilenceMS: -1, Usage: -1, ActiveUsage: -1} }

// report has the worker tell its load.
func (b *bench) report(l load) {
	b.w.Holders[0].SetReading(&fleet.Reading{
		At: fleet.Now(), Pushed: l.Pushed, ReportsSteps: l.ReportsSteps, Waiting: l.Waiting, SilenceMS: l.SilenceMS, Usage: l.Usage,
		ActiveUsage: l.ActiveUsage, Running: -1, WaitingUncached: -1, MaxRunning: -1, PrefillPending: -1,
	})
}

// TestWedgedByPile has a worker behind a proxy that answers probes be found to stand
// still, and come back with its first token.
func TestWedgedByPile(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		running := b.streams(2, fleet.Work{})
		for range 100 {
			moved(running[0])
			b.pass(20 * time.Millisecond)
		}
		began := time.Now()
		all := running
		b.until(3500*time.Millisecond, "wedged", func() bool {
			all = append(all, b.streams(1, fleet.Work{})...)
			return b.w.Vetoes()&fleet.Wedged != 0
		})
		if took := time.Since(began); took < 3*time.Second {
			t.Errorf("wedged after %v, want 3s at least", took)
		}
		b.state(fleet.Ready)
		b.pass(5 * time.Second)
		b.vetoes(fleet.Wedged) // passing probes do not lift it
		moved(all[len(all)-1])
		b.until(300*time.Millisecond, "back", b.w.Usable)
	})
}

// TestWedgedDrains has the veto end when nothing is left to wait for, and come again
// with the first request that waits as long if the worker still stands.
func TestWedgedDrains(t *testing.T) {
	within(t, quiet, func(b *bench) {
		b.ready()
		pile := b.streams(muchPile, fleet.Work{})
		b.until(3500*time.Millisecond, "wedged", b.on(fleet.Wedged))
		for _, l := range pile[1:] {
			l.Release()
		}
		b.pass(time.Second)
		b.vetoes(fleet.Wedged) // one is left
		pile[0].Release()
		b.pass(300 * time.Millisecond)
		b.vetoes(0)
		one := b.streams(1, fleet.Work{})[0]
		b.until(3500*time.Millisecond, "wedged again", b.on(fleet.Wedged))
		moved(one)
		b.pass(300 * time.Millisecond)
		b.vetoes(0)
		b.pass(10 * time.Second)
		b.vetoes(0) // one without a token is not enough any more
	})
}

// TestWedgedNeedsMore has a request or a few that take their time not be a wedge.
func TestWedgedNeedsMore(t *testing.T) {
	within(t, quiet, func(b *bench) {
		b.ready()
		few := b.streams(muchPile-1, fleet.Work{})
		b.pass(time.Minute)
		b.vetoes(0)
		moved(few[0])
		b.pass(time.Second)
		more := b.streams(1, fleet.Work{}) // the pile grew
		b.until(2500*time.Millisecond, "wedged", b.on(fleet.Wedged))
		_ = more
	})
}

// TestWedgedPrefill has a prompt's prefill be allowed for, at the prior rate and at a
// measured one.
func TestWedgedPrefill(t *testing.T) {
	within(t, quiet, func(b *bench) {
		b.ready()
		pile := b.streams(muchPile, fleet.Work{Prompt: 30_000, Cached: 10_000}) // 80,000 to do: 8 s
		b.pass(7900 * time.Millisecond)
		b.vetoes(0)
		b.until(500*time.Millisecond, "wedged", b.on(fleet.Wedged))
		for _, l := range pile {
			moved(l)
			b.pass(5 * time.Second) // 20,000 tokens in 5 s, after a long first one
		}
		for range 12 {
			l := b.streams(1, fleet.Work{Prompt: 20_000})[0]
			b.pass(5 * time.Second)
			moved(l)
			b.pass(300 * time.Millisecond)
			l.Release()
		}
		if st, _ := b.Status(b.w); st.PrefillRate < 3_500 || st.PrefillRate > 4_500 {
			t.Errorf("measured %.0f tokens a second, want about 4,000", st.PrefillRate)
		}
		b.streams(muchPile, fleet.Work{Prompt: 10_000}) // 40,000: 10 s
		b.pass(9 * time.Second)
		b.vetoes(0)
		b.until(2500*time.Millisecond, "wedged", b.on(fleet.Wedged))
	})
	within(t, quiet, func(b *bench) {
		b.ready()
		b.streams(muchPile, fleet.Work{Prompt: 100_000_000})
		b.pass(119 * time.Second)
		b.vetoes(0)
		b.until(2*time.Second, "wedged at the bound", b.on(fleet.Wedged))
	})
}

// TestWedgedArrivals has prompts that pile up on a worker that stands not make it be
// waited for longer and longer.
func TestWedgedArrivals(t *testing.T) {
	within(t, quiet, func(b *bench) {
		b.ready()
		for range 100 { // 20,000 tokens a second, each prefilled in 20 ms
			l := b.streams(1, fleet.Work{Prompt: 400})[0]
			b.pass(20 * time.Millisecond)
			moved(l)
			l.Release()
		}
		b.until(3500*time.Millisecond, "wedged", func() bool {
			b.streams(1, fleet.Work{Prompt: 400})
			return b.w.Vetoes()&fleet.Wedged != 0
		})
	})
}

// TestWedgedReport has what the engine reports count: requests that wait while its
// streams stand, and silence.
func TestWedgedReport(t *testing.T) {
	within(t, quiet, func(b *bench) {
		b.ready()
		one := b.streams(1, fleet.Work{})[0]
		b.pass(4 * time.Second)
		b.vetoes(0)
		r := unknown()
		r.Waiting = 1
		b.report(r)
		b.pass(300 * time.Millisecond)
		b.vetoes(fleet.Wedged)
		moved(one)
		b.pass(300 * time.Millisecond)
		b.vetoes(0)
	})
	within(t, quiet, func(b *bench) {
		b.ready()
		b.w.Holders[0].Take(fleet.Work{}) // nobody sees its tokens
		r := unknown()
		r.Waiting = 7
		b.report(r)
		b.pass(5 * time.Second)
		b.vetoes(0) // that says nothing of it
		r.SilenceMS = 3_000
		b.report(r)
		b.pass(300 * time.Millisecond)
		b.vetoes(0) // nor this of an engine that reports some steps only
		r.ReportsSteps = true
		b.report(r)
		b.pass(300 * time.Millisecond)
		b.vetoes(fleet.Wedged)
		r.SilenceMS = 10
		b.report(r)
		b.pass(300 * time.Millisecond)
		b.vetoes(0)
	})
}

// TestFrozen has a worker that does not answer probes be out in time, whether it holds
// requests or none, stay ready so that it is not refused to anybody, and be back within
// a second of going on.
func TestFrozen(t *testing.T) {
	for name, begin := range map[string]func(b *bench) func(){
		"idle":     func(*bench) func() { return func() {} },
		"streamed": func(b *bench) func() { l := b.streams(1, fleet.Work{})[0]; return func() { moved(l) } },
		"whole":    func(b *bench) func() { b.w.Holders[0].Take(fleet.Work{}); return func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 11 { // at different times after the last probe
				within(t, nil, func(b *bench) {
					b.ready()
					b.pass(time.Duration(i) * 100 * time.Millisecond)
					goOn := begin(b)
					b.frozen()
					took := b.until(4500*time.Millisecond, "out", func() bool { return !b.w.Usable() })
					if took < time.Second {
						t.Errorf("out after %v: want time to answer", took)
					}
					b.vetoes(fleet.Wedged)
					b.state(fleet.Ready)
					b.pass(4 * time.Second)
					b.vetoes(fleet.Wedged)
					b.state(fleet.Ready)
					b.s.slow(0)
					goOn()
					b.until(time.Second, "back", b.w.Usable)
				})
			}
		})
	}
}

// TestFrozenLong has one that does not answer for long be not ready, and back soon all
// the same.
func TestFrozenLong(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.frozen()
		b.until(20*time.Second, "not ready", b.is(fleet.NotReady))
		b.pass(10 * time.Minute)
		b.s.slow(0)
		b.until(2*time.Second, "back", b.w.Usable)
	})
}

// TestBusyIsNotFrozen has a worker whose answers move while probes go unanswered keep
// its place.
func TestBusyIsNotFrozen(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.frozen()
		l := b.streams(1, fleet.Work{})[0]
		for range 600 {
			moved(l)
			b.pass(100 * time.Millisecond)
			b.vetoes(0)
			b.state(fleet.Ready)
		}
	})
}

// TestSlowProbes has a worker that takes its time to answer probes keep its place.
func TestSlowProbes(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.s.slow(1900 * time.Millisecond)
		for range 600 {
			b.pass(100 * time.Millisecond)
			b.vetoes(0)
			b.state(fleet.Ready)
		}
	})
}

// TestPartitioned has a worker whose packets are lost be out in time: connections hang.
func TestPartitioned(t *testing.T) {
	for i := range 11 {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Duration(-fleet.Now()) + time.Hour)
			o := DefaultOptions()
			var lost atomic.Bool
			o.Check = func(ctx context.Context, _ *fleet.Worker, connect time.Duration, _ bool) error {
				if !lost.Load() {
					return nil
				}
				select {
				case <-time.After(connect):
					return errRefused
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			w, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			b := &bench{Watch: w, t: t, w: worker(1)}
			w.Add(b.w)
			b.ready()
			b.pass(time.Duration(i) * 100 * time.Millisecond)
			lost.Store(true)
			b.until(4*time.Second, "out", func() bool { return !b.w.Usable() })
			b.pass(20 * time.Second)
			lost.Store(false)
			b.until(time.Second, "back", b.w.Usable)
		})
	}
}

// TestStale has a worker that told its load and does no longer be passed over, and one
// that never did not.
func TestStale(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.report(unknown()) // asked for
		b.pass(time.Minute)
		b.vetoes(0)
		r := unknown()
		r.Pushed = true
		b.report(r)
		b.pass(14500 * time.Millisecond)
		b.vetoes(0)
		b.pass(time.Second)
		b.vetoes(fleet.Stale)
		b.report(unknown()) // by whatever way
		b.pass(300 * time.Millisecond)
		b.vetoes(0)
	})
	within(t, func(o *Options) { o.StaleAfter = 0 }, func(b *bench) {
		b.ready()
		r := unknown()
		r.Pushed = true
		b.report(r)
		b.pass(time.Hour)
		b.vetoes(0)
	})
}

// TestOverloaded has the newest report alone say who is full, by the worker's own
// limits where it has some.
func TestOverloaded(t *testing.T) {
	zero, much := 0.0, int64(100)
	none := int64(0)
	for _, test := range []struct {
		name                string
		usage, active       float64
		waiting             int64
		own                 fleet.Overload
		offUsage, offWaited bool
		want                bool
	}{
		{name: "idle", usage: 0.1, active: -1, waiting: 0},
		{name: "nothing known", usage: -1, active: -1, waiting: -1},
		{name: "usage", usage: 0.8, active: -1, want: true},
		{name: "usage that can be evicted", usage: 0.99, active: 0.4},
		{name: "active usage", usage: 0.9, active: 0.81, want: true},
		{name: "waiting", usage: -1, active: -1, waiting: 8, want: true},
		{name: "waiting less", usage: -1, active: -1, waiting: 7},
		{name: "own limit", usage: 0.9, active: -1, waiting: 99, own: fleet.Overload{Waiting: &much}, want: true},
		{name: "own limits", usage: 0.9, active: -1, waiting: 99, own: fleet.Overload{Waiting: &much, Usage: &zero}},
		{name: "own limit off", usage: 0.1, active: -1, waiting: 99, own: fleet.Overload{Waiting: &none}},
		{name: "off", usage: 1, active: 1, waiting: 999, offUsage: true, offWaited: true},
		{name: "usage off", usage: 1, active: 1, waiting: 7, offUsage: true},
		{name: "waiting off", usage: 0.7, active: -1, waiting: 999, offWaited: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			edit := func(o *Options) {
				if test.offUsage {
					o.OverloadUsage = 0
				}
				if test.offWaited {
					o.OverloadWaiting = 0
				}
			}
			within(t, edit, func(b *bench) {
				b.ready()
				terms := *b.w.Terms()
				terms.Overload = test.own
				b.w.SetTerms(&terms)
				r := unknown()
				r.Usage, r.ActiveUsage, r.Waiting = test.usage, test.active, test.waiting
				b.report(r)
				b.pass(300 * time.Millisecond)
				if got := b.w.Vetoes() == fleet.Overloaded; got != test.want {
					t.Errorf("overloaded %v, want %v", got, test.want)
				}
				b.pass(5 * time.Second)
				if got := b.w.Vetoes() == fleet.Overloaded; got != test.want {
					t.Errorf("overloaded %v until the next report, want %v", got, test.want)
				}
				r = unknown()
				r.Usage, r.Waiting = 0.1, 0
				b.report(r)
				b.pass(300 * time.Millisecond)
				b.vetoes(0)
			})
		})
	}
}

// TestShed has requests refused only if that was chosen, and all ready workers are full.
func TestShed(t *testing.T) {
	for _, chosen := range []bool{false, true} {
		within(t, func(o *Options) { o.OverloadShed = chosen }, func(b *bench) {
			b.ready()
			other := worker(1)
			other.Steer(fleet.Overloaded, true)
			pool := fleet.NewPool("m", 1, []*fleet.Worker{other, b.w})
			ask := func(want bool) {
				t.Helper()
				after, shed := b.Shed(pool)
				if shed != want || shed != (after >= time.Second) {
					t.Errorf("chosen %v: refused %v (%v), want %v", chosen, shed, after, want)
				}
			}
			ask(false)
			r := unknown()
			r.Waiting = 50
			b.report(r)
			b.pass(300 * time.Millisecond)
			ask(chosen) // other is not ready: it does not count
			other.MoveState(fleet.Pending, fleet.Ready)
			ask(chosen)
			other.Steer(fleet.Overloaded, false)
			ask(false)
			b.w.SetState(fleet.Draining)
			other.SetState(fleet.NotReady)
			ask(false) // none is ready: that is another error
		})
	}
}
