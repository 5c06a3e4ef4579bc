// SPDX-License-Identifier: Apache-2.0

package load_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/load"
	"kindex/gateway/upstream"
	"kindex/harness/mockworker/engine"
)

var quiet = slog.New(slog.DiscardHandler)

// until waits for what must come.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(end) {
			t.Fatalf("%s: it never came", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func poller(t *testing.T, o load.Options) *load.Poller {
	t.Helper()
	p := load.New(o, quiet)
	t.Cleanup(p.Close)
	return p
}

func worker(i int, url, kind string, ranks int) *fleet.Worker {
	return fleet.NewWorker(fmt.Sprint("w", i), &fleet.Spec{URL: url, Models: []string{"m"}, Engine: kind, Ranks: ranks, Instance: fmt.Sprint(i)})
}

// TestEngines: each kind of engine is read over HTTP and gRPC, rank by rank.
func TestEngines(t *testing.T) {
	get := upstream.New(upstream.DefaultOptions())
	defer get.Close()
	for _, kind := range []string{engine.VLLM, engine.SGLang} {
		f, err := engine.OpenFleet(engine.Config{
			Engine: kind, Model: "m", HTTP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", Ranks: 2, PassTime: 20 * time.Millisecond, APIKey: "secret",
		}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := f.Workers()[0]
		out, err := w.Engine.Submit(engine.Request{Tokens: make([]uint32, 100), MaxTokens: 10_000, Rank: 1})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range out {
			}
		}()
		for _, at := range []string{"http://" + w.HTTP(), "grpc://" + w.GRPC()} {
			for _, said := range []string{kind, ""} {
				t.Run(kind+" "+at[:4]+" "+said, func(t *testing.T) {
					p := poller(t, load.Options{Interval: 20 * time.Millisecond, Get: get.Get})
					fw := worker(0, at, said, 2)
					fw.SetTerms(&fleet.Terms{APIKey: "secret"})
					began := fleet.Now()
					p.Joined(fw)
					busy := fw.Holders[1]
					until(t, "a reading of rank 1", func() bool { return busy.Reading() != nil && busy.Reading().Running == 1 })
					r := busy.Reading()
					if r.Pushed || r.At < began || r.At > fleet.Now() || r.Waiting != 0 || r.Usage < 0 {
						t.Errorf("rank 1: %+v", r)
					}
					if idle := fw.Holders[0].Reading(); idle == nil || idle.Running != 0 {
						t.Errorf("rank 0: %+v", idle)
					}
					if fw.LastContact() < began {
						t.Error("no sign of life")
					}
				})
			}
		}
	}
}

// TestSpared: who is told by pushes is not asked, until these grow old; who was asked
// last is not asked again before its interval.
func TestSpared(t *testing.T) {
	var asked atomic.Int64
	p := poller(t, load.Options{Interval: 50 * time.Millisecond, Get: func(context.Context, *fleet.Worker, string, int) (int, []byte, error) {
		asked.Add(1)
		return 200, []byte("vllm:num_requests_running 3\n"), nil
	}})
	w := worker(0, "http://127.0.0.1:1", fleet.VLLM, 1)
	h := w.Holders[0]
	push := func() { h.SetReading(&fleet.Reading{At: fleet.Now(), Pushed: true, Running: 1}) }
	push()
	p.Joined(w)
	for range 40 {
		push()
		<-time.After(5 * time.Millisecond)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("asked %d times while it was told", n)
	}
	until(t, "a question", func() bool { return !h.Reading().Pushed })
	if r := h.Reading(); r.Running != 3 || r.Waiting != -1 || r.Usage != -1 || r.WaitingUncached != -1 || r.MaxRunning != -1 {
		t.Errorf("what was not said is %+v, want negative", r)
	}
	if s := p.Stats(); s.Spared == 0 || s.Readings == 0 || s.Workers != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestFailures: who fails is asked less and less often, keeps his reading, and is asked
// as before once he answers.
func TestFailures(t *testing.T) {
	var asked atomic.Int64
	var well atomic.Bool
	const interval = 4 * time.Millisecond
	p := poller(t, load.Options{Interval: interval, Get: func(context.Context, *fleet.Worker, string, int) (int, []byte, error) {
		asked.Add(1)
		if !well.Load() {
			return 0, nil, errors.New("refused")
		}
		return 200, []byte("vllm:num_requests_running 3\n"), nil
	}})
	w := worker(0, "http://127.0.0.1:1", fleet.VLLM, 1)
	old := &fleet.Reading{At: 1, Running: 9}
	w.Holders[0].SetReading(old)
	began := time.Now()
	p.Joined(w)
	until(t, "some failures", func() bool { return p.Stats().Failed >= 5 })
	// 0, 1, 2, 4, 8 intervals lie between five questions.
	if least := time.Since(began); least < 12*interval {
		t.Errorf("5 questions within %v", least)
	}
	if w.Holders[0].Reading() != old || w.LastContact() != 0 {
		t.Error("a failure is taken for an answer")
	}
	well.Store(true)
	until(t, "an answer", func() bool { return w.Holders[0].Reading().Running == 3 })
	n := asked.Load()
	until(t, "more", func() bool { return asked.Load() >= n+5 })
}

// TestMany: 500 workers, slow ones among them, are asked by a few at once, each of them;
// who has left is not.
func TestMany(t *testing.T) {
	var at, most atomic.Int64
	var mu sync.Mutex
	asked := map[*fleet.Worker]int{}
	p := poller(t, load.Options{Interval: 100 * time.Millisecond, AtOnce: 4, Get: func(ctx context.Context, w *fleet.Worker, _ string, _ int) (int, []byte, error) {
		n := at.Add(1)
		defer at.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		mu.Lock()
		asked[w]++
		count := len(asked)
		mu.Unlock()
		if count%100 == 0 {
			select {
			case <-time.After(30 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return 200, []byte("vllm:num_requests_running 0\n"), nil
	}})
	ws := make([]*fleet.Worker, 500)
	for i := range ws {
		ws[i] = worker(i, "http://127.0.0.1:1", fleet.VLLM, 1)
		p.Joined(ws[i])
	}
	seen := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		for _, w := range ws {
			if asked[w] < n {
				return false
			}
		}
		return true
	}
	until(t, "all are asked twice", func() bool { return seen(2) })
	if most.Load() > 4 {
		t.Errorf("%d questions at once, want 4 at most", most.Load())
	}
	for _, w := range ws {
		p.Left(w)
	}
	until(t, "nobody is asked", func() bool { return at.Load() == 0 })
	mu.Lock()
	clear(asked)
	mu.Unlock()
	<-time.After(250 * time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 0 || p.Stats().Workers != 0 {
		t.Errorf("%d who have left are asked, %d are known", len(asked), p.Stats().Workers)
	}
}

// TestOff: an interval of 0 asks nobody, but whose own terms say otherwise.
func TestOff(t *testing.T) {
	var asked atomic.Pointer[fleet.Worker]
	p := poller(t, load.Options{Get: func(_ context.Context, w *fleet.Worker, _ string, _ int) (int, []byte, error) {
		asked.Store(w)
		return 404, nil, nil
	}})
	off, on := worker(0, "http://127.0.0.1:1", fleet.VLLM, 1), worker(1, "http://127.0.0.1:2", fleet.VLLM, 1)
	on.SetTerms(&fleet.Terms{LoadInterval: time.Millisecond})
	p.Joined(off)
	p.Joined(on)
	until(t, "a question", func() bool { return asked.Load() != nil })
	if asked.Load() != on || p.Stats().Workers != 1 {
		t.Errorf("the wrong one is asked: %+v", p.Stats())
	}
}

// TestDown: who is down is not asked, and is as soon as he is back, however long that was.
func TestDown(t *testing.T) {
	var asked atomic.Int64
	p := poller(t, load.Options{Interval: time.Millisecond, Get: func(context.Context, *fleet.Worker, string, int) (int, []byte, error) {
		asked.Add(1)
		return 0, nil, errors.New("refused")
	}})
	w := worker(0, "http://127.0.0.1:1", fleet.VLLM, 1)
	w.SetState(fleet.NotReady)
	p.Joined(w)
	<-time.After(100 * time.Millisecond)
	if n := asked.Load(); n != 0 {
		t.Errorf("asked %d times while it was down", n)
	}
	w.SetState(fleet.Ready)
	until(t, "a question", func() bool { return asked.Load() > 0 })
}

// TestChanged: a worker's own interval counts at once, also where nobody else is asked.
func TestChanged(t *testing.T) {
	var asked atomic.Int64
	p := poller(t, load.Options{Get: func(context.Context, *fleet.Worker, string, int) (int, []byte, error) {
		asked.Add(1)
		return 200, []byte("vllm:num_requests_running 0\n"), nil
	}})
	w := worker(0, "http://127.0.0.1:1", fleet.VLLM, 1)
	p.Joined(w)
	w.SetTerms(&fleet.Terms{LoadInterval: 24 * time.Hour})
	p.Changed(w)
	w.SetTerms(&fleet.Terms{LoadInterval: time.Millisecond})
	p.Changed(w)
	until(t, "questions", func() bool { return asked.Load() >= 3 })
	if n := p.Stats().Workers; n != 1 {
		t.Errorf("%d workers, want 1", n)
	}
}
