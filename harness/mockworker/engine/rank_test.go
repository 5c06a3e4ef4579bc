// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/internal/longtest"
)

// TestHolds slows a model down in each way, and undoes it.
func TestHolds(t *testing.T) {
	var ended []Stats
	m, err := NewModel(Config{
		Engine: VLLM, BlockSize: 4, Timing: &Timing{Prefill: [3]float64{10, 0, 0}}, Ended: func(s Stats) { ended = append(ended, s) },
	})
	if err != nil {
		t.Fatal(err)
	}
	// admitted has requests run that arrive at once, and returns when each was let in
	// and how long its one pass took, in ms.
	admitted := func(n int) (at, took []float64) {
		t.Helper()
		ended = nil
		from := m.rank.clock.now()
		for i := range n {
			if _, err := m.Submit(Request{ID: fmt.Sprint(i), Tokens: []uint32{1}, MaxTokens: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for ok := true; ok; {
			_, ok = m.Step()
		}
		for i := range ended {
			at = append(at, inMs(ended[i].Admitted.Sub(from)))
			took = append(took, inMs(ended[i].Ended.Sub(ended[i].Admitted)))
		}
		return at, took
	}
	for _, test := range []struct {
		what     string
		hold     holds
		at, took string
	}{
		{"nothing", holds{}, "[0 0 0]", "[10 10 10]"},
		{"a delay", holds{delay: 25 * time.Millisecond}, "[25 25 25]", "[10 10 10]"},
		{"apart", holds{apart: 20 * time.Millisecond}, "[0 20 40]", "[10 10 10]"},
		{"starved", holds{starve: 0.75}, "[0 0 0]", "[40 40 40]"},
		{"paused", holds{paused: true}, "[]", "[]"},
	} {
		m.Wait(m.Now() + time.Second)
		m.rank.slow(func(h *holds) { *h = test.hold })
		at, took := admitted(3)
		if fmt.Sprint(at) != test.at || fmt.Sprint(took) != test.took {
			t.Errorf("%s: let in at %v, done after %v; want %s and %s", test.what, at, took, test.at, test.took)
		}
	}
	m.rank.slow(func(h *holds) { *h = holds{} })
	for ok := true; ok; {
		_, ok = m.Step()
	}
	if len(ended) != 3 {
		t.Errorf("%d of 3 requests ended after the pause", len(ended))
	}
}

// TestEngineUnderLoad has many clients ask, leave, empty the cache, pause the engine
// and ask how it is, all at once: the scheduler's invariants hold as each pass begins
// and ends, and every request's end is told once.
func TestEngineUnderLoad(t *testing.T) {
	for _, kind := range []string{VLLM, SGLang} {
		t.Run(kind, func(t *testing.T) { load(t, kind) })
	}
}

func load(t *testing.T, kind string) {
	t.Helper()
	var passes, told, aborted, preempted atomic.Int64
	e, err := New(Config{
		Engine: kind, Pub: "tcp://127.0.0.1:0", Ranks: 2, BlockSize: 4, Blocks: 60, Budget: 50, MaxRunning: 6,
		audit: func(s *scheduler) {
			passes.Add(1)
			if err := s.check(); err != nil {
				t.Errorf("%v", err)
			}
		},
		Ended: func(s Stats) {
			told.Add(1)
			preempted.Add(int64(s.Preempted))
			if s.Finish == "abort" {
				aborted.Add(1)
			}
			if s.Ended.Before(s.Arrived) || s.Output > 0 && s.FirstToken.Before(s.Admitted) {
				t.Errorf("times of %+v", s)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var all sync.WaitGroup
	const clients = 8
	each := longtest.N(60, 1_000)
	for c := range clients {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 3))
			for i := range each {
				id := fmt.Sprintf("%d/%d", c, i)
				out, err := e.Submit(Request{ID: id, Tokens: tokensOf(rng, 1+rng.IntN(100)), MaxTokens: 1 + rng.IntN(60), Rank: -1})
				if err != nil {
					t.Errorf("request %s: %v", id, err)
					return
				}
				stay := rng.IntN(60)
				var last Output
				for last = range out {
					if last.Generated == stay {
						e.Abort(id)
					}
				}
				if last.Finish == "" {
					t.Errorf("request %s ended with %+v", id, last)
				}
			}
		})
	}
	done := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		rng := rand.New(rand.NewPCG(9, 9))
		for n := 0; ; n++ {
			select {
			case <-done:
				e.Pause(false)
				return
			default:
			}
			e.Pause(n%3 == 0)
			e.Reset()
			for _, l := range e.Loads() {
				if l.UsedTokens > l.MaxTokens || l.Running > l.MaxRunning {
					t.Errorf("%+v", l)
				}
			}
			e.Reuse(tokensOf(rng, 50), "")
			e.Truth()
		}
	})
	all.Wait()
	close(done)
	others.Wait()
	if n := told.Load(); n != int64(clients*each) {
		t.Errorf("the end of %d requests was told, want %d", n, clients*each)
	}
	t.Logf("%d passes seen, %d requests ended by force, %d preemptions", passes.Load(), aborted.Load(), preempted.Load())
	if passes.Load() < 1_000 || aborted.Load() == 0 || preempted.Load() == 0 {
		t.Error("the run shows little")
	}
}
