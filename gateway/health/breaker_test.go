// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"kindex/gateway/fleet"
)

func (b *bench) outcomes(n int, k Kind) {
	for range n {
		b.Outcome(b.w, k)
	}
}

func (b *bench) breaker(want string) {
	b.t.Helper()
	if st, _ := b.Status(b.w); st.Breaker != want {
		b.t.Fatalf("breaker %s, want %s", st.Breaker, want)
	}
}

// TestBreaker has faults in a row open the breaker, time let it be tried, successes
// close it and a fault open it again.
func TestBreaker(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.outcomes(9, WorkerError)
		b.outcomes(1, OK)
		b.outcomes(9, Broken)
		b.vetoes(0)
		b.outcomes(1, WorkerError)
		b.vetoes(fleet.BreakerOpen)
		b.breaker("open")
		b.pass(59 * time.Second)
		b.outcomes(5, OK) // of requests from before
		b.vetoes(fleet.BreakerOpen)
		b.pass(1500 * time.Millisecond)
		b.vetoes(0)
		b.breaker("half-open")
		b.outcomes(2, OK)
		b.breaker("half-open")
		b.outcomes(1, Stalled)
		b.vetoes(fleet.BreakerOpen)
		b.pass(61 * time.Second)
		b.outcomes(3, OK)
		b.breaker("closed")
		b.outcomes(9, WorkerError)
		b.vetoes(0)
		if s := b.Stats(); s.Breakers != [3]uint64{1, 2, 2} || s.Set[3] != 2 || s.Lifted[3] != 2 {
			t.Errorf("breakers moved %v, vetoes %d and %d, want [1 2 2], 2 and 2", s.Breakers, s.Set[3], s.Lifted[3])
		}
	})
}

// TestNeutral has a full engine, clients' errors and clients that went open no breaker,
// and not close or help one either.
func TestNeutral(t *testing.T) {
	within(t, func(o *Options) { o.BackOff = 0 }, func(b *bench) {
		b.ready()
		for _, k := range []Kind{KindOf(429), KindOf(503), KindOf(400), KindOf(404), KindOf(422), ClientGone} {
			b.outcomes(2_048, k)
			b.vetoes(0)
			b.state(fleet.Ready)
		}
		b.outcomes(9, WorkerError)
		b.outcomes(100, KindOf(503))
		b.outcomes(100, KindOf(400))
		b.vetoes(0)
		b.outcomes(1, WorkerError) // the row was not broken by them
		b.vetoes(fleet.BreakerOpen)
		b.pass(61 * time.Second)
		b.outcomes(100, KindOf(429))
		b.breaker("half-open")
	})
}

// TestBackPressure has one that says it is full be passed over for a moment, and no more.
func TestBackPressure(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		b.outcomes(100, KindOf(503))
		b.vetoes(fleet.Overloaded)
		b.pass(1300 * time.Millisecond)
		b.vetoes(0)
		b.breaker("closed")
	})
}

// TestBreakerOwn has a worker's own limits, and 0 switch it off.
func TestBreakerOwn(t *testing.T) {
	within(t, nil, func(b *bench) {
		b.ready()
		two, off := 2, true
		terms := *b.w.Terms()
		terms.Resilience.BreakerFailures = &two
		b.w.SetTerms(&terms)
		b.outcomes(2, WorkerError)
		b.vetoes(fleet.BreakerOpen)
		b.pass(61 * time.Second)
		b.outcomes(3, OK)
		terms.Resilience.NoBreaker = &off
		b.w.SetTerms(&terms)
		b.outcomes(100, WorkerError)
		b.vetoes(0)
	})
	within(t, func(o *Options) { o.BreakerFailures = 0 }, func(b *bench) {
		b.ready()
		b.outcomes(100, WorkerError)
		b.vetoes(0)
	})
}

// TestRestarted has a worker that was gone come back with a closed breaker: what its
// faults told of is over. One that was there all the time keeps it.
func TestRestarted(t *testing.T) {
	for _, away := range []time.Duration{300 * time.Millisecond, 10 * time.Second} {
		within(t, nil, func(b *bench) {
			b.ready()
			b.s.fail(errRefused)
			b.outcomes(20, Broken) // its streams
			b.outcomes(20, ConnectFailed)
			b.pass(away)
			if b.w.Vetoes()&fleet.BreakerOpen == 0 {
				t.Fatalf("vetoes %b, want an open breaker", b.w.Vetoes())
			}
			b.s.fail(nil)
			b.until(time.Second, fmt.Sprintf("back after %v", away), b.w.Usable)
			b.breaker("closed")
		})
	}
	within(t, nil, func(b *bench) {
		b.ready()
		b.outcomes(10, WorkerError)
		b.pass(30 * time.Second)
		b.vetoes(fleet.BreakerOpen)
		b.w.Contact(fleet.Now())
		b.pass(time.Second)
		b.vetoes(fleet.BreakerOpen)
	})
}

// TestStalledAndBack has tokens that come again close a breaker that only opened because
// none came.
func TestStalledAndBack(t *testing.T) {
	for k, want := range map[Kind]fleet.Veto{Stalled: 0, WorkerError: fleet.BreakerOpen} {
		within(t, quiet, func(b *bench) {
			b.ready()
			pile := b.streams(muchPile, fleet.Work{})
			b.until(4*time.Second, "wedged", b.on(fleet.Wedged))
			b.outcomes(10, k)
			b.vetoes(fleet.Wedged | fleet.BreakerOpen)
			moved(pile[0])
			b.pass(500 * time.Millisecond)
			b.vetoes(want)
		})
	}
}

// TestOutcomesRace has outcomes of all kinds at once end with a breaker whose veto says
// what it says.
func TestOutcomesRace(t *testing.T) {
	o := DefaultOptions()
	s := &script{}
	o.Check, o.BreakerOpen, o.ProbeInterval = s.check, time.Millisecond, time.Hour
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	x := worker(1)
	w.Add(x)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 2_000 {
				w.Outcome(x, Kind((n*7+i)%int(numKinds)))
				if n%100 < 20 {
					w.Outcome(x, WorkerError)
				}
			}
		})
	}
	wg.Wait()
	for range 20 {
		w.Outcome(x, OK)
	}
	time.Sleep(10 * time.Millisecond)
	for x.Vetoes()&fleet.BreakerOpen != 0 {
		time.Sleep(time.Millisecond)
	}
	for range 20 {
		w.Outcome(x, OK)
	}
	if st, _ := w.Status(x); st.Breaker != "closed" {
		t.Errorf("breaker %s after successes, want closed", st.Breaker)
	}
	s2 := w.Stats()
	if s2.Set[3] != s2.Lifted[3] || s2.Set[3] == 0 {
		t.Errorf("opened %d times and lifted %d, want as many and some", s2.Set[3], s2.Lifted[3])
	}
}

func TestKinds(t *testing.T) {
	for status, want := range map[int]Kind{
		200: OK, 204: OK, 302: OK, 400: ClientError, 404: ClientError, 408: ClientError, 429: BackPressure, 500: WorkerError, 501: WorkerError,
		502: WorkerError, 503: BackPressure, 504: WorkerError, 599: WorkerError,
	} {
		if got := KindOf(status); got != want {
			t.Errorf("%d: %v, want %v", status, got, want)
		}
	}
	for _, test := range []struct {
		code  codes.Code
		began bool
		want  Kind
	}{
		{codes.OK, true, OK},
		{codes.InvalidArgument, false, ClientError},
		{codes.Canceled, true, ClientGone},
		{codes.ResourceExhausted, false, BackPressure},
		{codes.Unavailable, false, ConnectFailed},
		{codes.Unavailable, true, Broken},
		{codes.Internal, false, WorkerError},
		{codes.DeadlineExceeded, false, Stalled},
	} {
		if got := KindOfCode(test.code, test.began); got != test.want {
			t.Errorf("%v, %v: %v, want %v", test.code, test.began, got, test.want)
		}
	}
	for k := range numKinds {
		if want := k >= WorkerError; k.Fault() != want {
			t.Errorf("%v is a fault: %v, want %v", k, k.Fault(), want)
		}
	}
}
