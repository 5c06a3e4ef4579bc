// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
	"kindex/internal/lookup"
)

// models are pools by name.
type models map[string]*fleet.Pool

func (m models) Pool(model string) *fleet.Pool  { return m[model] }
func (m models) Models() map[string]*fleet.Pool { return m }

// given resolves to the tokens that the call has.
type given struct{}

// Confirm implements Prompts.
func (given) Confirm(*openai.Call, *Prompt, openai.Usage) {}

func (given) Resolve(_ context.Context, _ *fleet.Pool, c *openai.Call, p *Prompt) {
	p.Tokens = append(p.Tokens[:0], c.Tokens...)
}

// fakeIndex answers what it is told to.
type fakeIndex struct {
	mu      sync.Mutex
	answer  lookup.Answer
	err     error
	queries []lookup.Query
}

func (f *fakeIndex) Lookup(_ context.Context, q *lookup.Query, a *lookup.Answer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.Reset()
	f.queries = append(f.queries, *q)
	if f.err != nil {
		return f.err
	}
	a.BlockSize = f.answer.BlockSize
	for _, m := range f.answer.Matches {
		if len(q.Only) == 0 || q.Only[0] == m.Instance {
			a.Matches = append(a.Matches, m)
		}
	}
	if q.Limit > 0 {
		a.Matches = a.Matches[:min(len(a.Matches), q.Limit)]
	}
	return nil
}

func pool(n, ranks int) *fleet.Pool {
	var ws []*fleet.Worker
	for i := range n {
		w := fleet.NewWorker(fmt.Sprint("w", i), &fleet.Spec{
			URL: fmt.Sprint("http://h", i, ":1"), Instance: fmt.Sprint(i), Ranks: ranks, Terms: fleet.Terms{Priority: 50, Cost: 1},
		})
		w.SetState(fleet.Ready)
		ws = append(ws, w)
	}
	return fleet.NewPool("m", 1, ws)
}

func newPolicy(t testing.TB, name string, edit func(*policy.Options)) policy.Policy {
	t.Helper()
	o := policy.DefaultOptions()
	if edit != nil {
		edit(&o)
	}
	p, err := policy.New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// completion is a request for n tokens, which differ from one call to another by tail.
func completion(n int, tail uint32) *Request {
	q := NewRequest()
	q.Call = &openai.Call{Kind: openai.Completion, Model: "m", Form: openai.IDs, Prompts: 1, N: 1, Rank: -1}
	for i := range n {
		q.Call.Tokens = append(q.Call.Tokens, uint32(i))
	}
	if tail > 0 {
		q.Call.Tokens[n-1] = 1<<20 + tail
	}
	return q
}

// idle fails unless nothing is in flight on p.
func idle(t *testing.T, p *fleet.Pool) {
	t.Helper()
	for _, h := range p.Holders {
		if h.InFlight() != 0 || h.PrefillInFlight() != 0 {
			t.Errorf("%s/%d: %d requests, %d tokens in flight", h.Worker.ID, h.Rank, h.InFlight(), h.PrefillInFlight())
		}
	}
}

func TestRefusals(t *testing.T) {
	p := pool(2, 1)
	r := New(Options{Fleet: models{"m": p}, Policy: newPolicy(t, policy.RoundRobin, nil)})
	for _, c := range []struct {
		name   string
		edit   func(*Request)
		status int
		code   string
	}{
		{"unknown model", func(q *Request) { q.Call.Model = "x" }, 404, "model_not_found"},
		{"unknown worker", func(q *Request) { q.TargetWorker = "nobody" }, 400, "worker_not_found"},
		{"unknown rank", func(q *Request) { q.TargetWorker, q.Rank = "w0", 7 }, 400, "worker_not_found"},
		{"nobody is ready", func(*Request) {
			p.Workers[0].SetState(fleet.Failed)
			p.Workers[1].SetState(fleet.Draining)
		}, 503, "no_available_workers"},
	} {
		q := completion(10, 0)
		c.edit(q)
		_, err := r.Place(context.Background(), q)
		var e *openai.Error
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || e.Message == "" {
			t.Errorf("%s: %v, want %d %s", c.name, err, c.status, c.code)
		}
	}
	idle(t, p)
}

func TestSoleModelIsMeantWhereNoneIsNamed(t *testing.T) {
	r := New(Options{Fleet: models{"m": pool(1, 1), "adapter": pool(1, 1)}, Policy: newPolicy(t, policy.RoundRobin, nil)})
	q := completion(10, 0)
	q.Call.Model, q.Call.Kind = "", openai.Tokenize
	if p, err := r.Place(context.Background(), q); err != nil || p.Pool.Model != "m" {
		t.Errorf("the only model: %v", err)
	}
	r = New(Options{Fleet: models{"m": pool(1, 1), "n": fleet.NewPool("n", 1, pool(1, 1).Workers)}, Policy: newPolicy(t, policy.RoundRobin, nil)})
	var e *openai.Error
	if _, err := r.Place(context.Background(), q); !errors.As(err, &e) || e.Param != "model" {
		t.Errorf("one of two models: %v", err)
	}
}

func TestHitGoesToItsHolder(t *testing.T) {
	p := pool(4, 2)
	x := &fakeIndex{answer: lookup.Answer{BlockSize: 16, Matches: []lookup.Match{
		{Instance: "9", Any: 20, Host: 20, Device: 20}, {Instance: "2", Rank: 1, Any: 19, Host: 19, Device: 19}, {Instance: "1", Any: 2, Host: 2, Device: 2},
	}}}
	r := New(Options{
		Fleet: models{"m": p}, Prompts: given{}, Index: x, Overlay: overlay.New(overlay.DefaultOptions()),
		Policy: newPolicy(t, policy.CacheAware, nil), Plain: newPolicy(t, policy.LeastLoad, nil),
	})
	q := completion(320, 0)
	q.Explain = true
	got, err := r.Place(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	if got.Holder != p.Workers[2].Holders[1] || got.Expected != 19 || got.Decision.Cached != 19*16 || got.Decision.Record == nil {
		t.Errorf("placed on %s/%d, expected %d blocks, %d tokens", got.Holder.Worker.ID, got.Holder.Rank, got.Expected, got.Decision.Cached)
	}
	if n := got.Holder.PrefillInFlight(); n != 16 {
		t.Errorf("%d tokens are to be prefilled, want 16", n)
	}
	got.Sent()
	got.Token(fleet.Now())
	o := Outcome{Kind: OK, Status: 200, Usage: openai.Usage{Known: true, CachedKnown: true, Prompt: 320, Cached: 19 * 16}}
	if !got.Done(o) || got.Done(o) {
		t.Error("Done counts once, the first time")
	}
	idle(t, p)
	s, v := r.Stats(), r.o.Overlay.Stats()
	if s.UnknownHolders != 1 || s.Matched != 1 || s.Outcomes[OK] != 1 || v.Answers != 1 || v.Exact != 1 {
		t.Errorf("stats %+v, overlay %+v", s, v)
	}
	// The next request asks by hashes of the size that the index told.
	q.Reset()
	q.Call = completion(320, 0).Call
	if _, err = r.Place(context.Background(), q); err != nil {
		t.Fatal(err)
	}
}

func TestBlockSizeOfTheIndexWins(t *testing.T) {
	ws := pool(1, 1).Workers
	spec := *ws[0].Spec
	spec.BlockSize = 32
	w := fleet.NewWorker("w", &spec)
	w.SetState(fleet.Ready)
	x := &fakeIndex{answer: lookup.Answer{BlockSize: 16}}
	r := New(Options{
		Fleet: models{"m": fleet.NewPool("m", 1, []*fleet.Worker{w})}, Prompts: given{}, Index: x, Policy: newPolicy(t, policy.CacheAware, nil),
	})
	if _, err := r.Place(context.Background(), completion(320, 0)); err != nil {
		t.Fatal(err)
	}
	if len(x.queries) != 2 || r.Stats().OtherBlocks != 1 {
		t.Fatalf("%d lookups, want one of each size", len(x.queries))
	}
	q := x.queries[1]
	want, _ := (&lookup.Query{Tokens: completion(320, 0).Call.Tokens}).AppendHashes(nil, 16)
	if fmt.Sprint(q.Hashes) != fmt.Sprint(want) {
		t.Errorf("the second lookup has %d hashes, not those of 16 tokens", len(q.Hashes))
	}
}

func TestFailedLookupRoutesByLoad(t *testing.T) {
	p := pool(2, 1)
	x := &fakeIndex{err: lookup.ErrOverdue}
	r := New(Options{Fleet: models{"m": p}, Prompts: given{}, Index: x, Policy: newPolicy(t, policy.CacheAware, nil)})
	used := map[*fleet.Holder]bool{}
	for range 2 {
		got, err := r.Place(context.Background(), completion(320, 0))
		if err != nil {
			t.Fatal(err)
		}
		used[got.Holder] = true
	}
	if len(used) != 2 || r.Stats().LookupsFailed != 2 {
		t.Errorf("%d holders, stats %+v", len(used), r.Stats())
	}
}

// Of many holders the deepest are asked for; what another one has is looked up as it is
// named.
func TestManyHolders(t *testing.T) {
	p := pool(100, 1)
	x := &fakeIndex{answer: lookup.Answer{BlockSize: 16}}
	for i, h := range p.Holders {
		blocks := uint32(3)
		if i >= 60 {
			blocks = 2
		}
		x.answer.Matches = append(x.answer.Matches, lookup.Match{Instance: h.Worker.Spec.Instance, Device: blocks, Host: blocks, Any: blocks})
	}
	r := New(Options{Fleet: models{"m": p}, Prompts: given{}, Index: x, Policy: newPolicy(t, policy.CacheAware, nil)})
	used := map[*fleet.Holder]bool{}
	for range 200 {
		got, err := r.Place(context.Background(), completion(320, 0))
		if err != nil {
			t.Fatal(err)
		}
		used[got.Holder] = true
		want := int64(48)
		if slices.Index(p.Holders, got.Holder) >= 60 {
			want = 32
		}
		if got.Decision.Cached != want || got.Expected != uint32(want/16) || got.Decision.Guess {
			t.Fatalf("%s: cached %d, expected %d blocks, want %d tokens", got.Holder.Worker.ID, got.Decision.Cached, got.Expected, want)
		}
	}
	if len(used) < 90 {
		t.Errorf("%d of 100 were used: the few that the answers name are preferred", len(used))
	}
	// Where the deepest are another gateway's the others are asked for, too.
	few := fleet.NewPool("m", 2, p.Workers[30:])
	r = New(Options{Fleet: models{"m": few}, Prompts: given{}, Index: x, Policy: newPolicy(t, policy.CacheAware, nil)})
	got, err := r.Place(context.Background(), completion(320, 0))
	if err != nil || got.Decision.Cached == 0 || x.queries[len(x.queries)-1].Limit != 0 {
		t.Errorf("%v: cached %d", err, got.Decision.Cached)
	}
}

func TestWithoutAPromptByLoad(t *testing.T) {
	p := pool(3, 1)
	x := &fakeIndex{}
	r := New(Options{Fleet: models{"m": p}, Prompts: given{}, Index: x, Policy: newPolicy(t, policy.CacheAware, nil), Plain: newPolicy(t, policy.LeastLoad, nil)})
	used := map[*fleet.Holder]bool{}
	for range 3 {
		q := completion(320, 0)
		q.Call.Kind = openai.Tokenize
		got, err := r.Place(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		used[got.Holder] = true
	}
	if len(used) != 3 || len(x.queries) != 0 {
		t.Errorf("%d holders and %d lookups, want 3 and none", len(used), len(x.queries))
	}
}

// burst places 64 identical prompts of 4,096 tokens at once and returns who got them.
func burst(t *testing.T, o *overlay.Overlay) (map[*fleet.Holder]int, *fakeIndex) {
	t.Helper()
	p := pool(4, 1)
	x := &fakeIndex{answer: lookup.Answer{BlockSize: 16}}
	r := New(Options{
		Fleet: models{"m": p}, Prompts: given{}, Index: x, Overlay: o,
		Policy: newPolicy(t, policy.CacheAware, func(o *policy.Options) { o.Spread = 2 }),
	})
	var mu sync.Mutex
	used := map[*fleet.Holder]int{}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 64 {
		wg.Go(func() {
			q := completion(4096, 0)
			<-start
			got, err := r.Place(context.Background(), q)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			used[got.Holder]++
		})
	}
	close(start)
	wg.Wait()
	return used, x
}

// TestBurstOfSiblings: no event comes, so that without predictions nothing keeps 64
// identical prompts together.
func TestBurstOfSiblings(t *testing.T) {
	for range 10 {
		o := overlay.New(overlay.DefaultOptions())
		if used, _ := burst(t, o); len(used) > 2 {
			t.Fatalf("on %d engines, and the bound is 2", len(used))
		}
		o.Sweep(fleet.Now() + int64(time.Minute))
		if s := o.Stats(); s.PredictedEntries != 0 || s.PredictedBytes != 0 {
			t.Fatalf("%d predicted entries are left past their life", s.PredictedEntries)
		}
	}
	if used, _ := burst(t, nil); len(used) != 4 {
		t.Errorf("without predictions on %d engines: the control wants all 4", len(used))
	}
}

// TestLeases has requests end in every way, with retries, while workers drain.
func TestLeases(t *testing.T) {
	p := pool(6, 2)
	var told atomic.Int64
	r := New(Options{
		Fleet: models{"m": p}, Prompts: given{}, Index: &fakeIndex{answer: lookup.Answer{BlockSize: 16}},
		Overlay: overlay.New(overlay.DefaultOptions()), Policy: newPolicy(t, policy.CacheAware, nil),
		Told: func(*fleet.Holder, Outcome) { told.Add(1) },
	})
	var wg sync.WaitGroup
	var placed atomic.Int64
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			q := NewRequest()
			for i := range 300 {
				q.Reset()
				q.Call = completion(64+rng.IntN(64), uint32(g*1000+i+1)).Call
				q.Call.Stream = i%2 == 0
				for range 4 {
					got, err := r.Place(context.Background(), q)
					if err != nil {
						if len(q.Exclude) == 0 {
							t.Errorf("request %d: %v", i, err)
						}
						break
					}
					placed.Add(1)
					for range rng.IntN(3) {
						got.Token(fleet.Now())
					}
					kind := OutcomeKind(rng.IntN(int(outcomeKinds)))
					twice := make(chan bool, 2)
					for range 2 {
						go func() { twice <- got.Done(Outcome{Kind: kind}) }()
					}
					if a, b := <-twice, <-twice; a == b {
						t.Error("Done counted not exactly once")
					}
					if kind < ConnectFailed {
						break
					}
					q.Failed(got.Holder.Worker)
				}
				if g == 0 && i%100 == 50 {
					p.Workers[i/100].SetState(fleet.Draining)
				}
			}
		})
	}
	wg.Wait()
	idle(t, p)
	if told.Load() != placed.Load() || placed.Load() < 2400 {
		t.Errorf("%d outcomes were told of %d placements", told.Load(), placed.Load())
	}
}

func TestConfirmedAfterAPublisherBeganAnew(t *testing.T) {
	p := pool(4, 1)
	x := &fakeIndex{answer: lookup.Answer{BlockSize: 16}}
	oo := overlay.DefaultOptions()
	oo.Grace, oo.PredictLife = time.Millisecond, time.Millisecond
	r := New(Options{Fleet: models{"m": p}, Prompts: given{}, Index: x, Overlay: overlay.New(oo), Policy: newPolicy(t, policy.CacheAware, nil)})
	ctx := t.Context()
	go r.Run(ctx)
	q := completion(320, 0)
	first, err := r.Place(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	first.Done(Outcome{Kind: OK, Usage: openai.Usage{Known: true, CachedKnown: true, Prompt: 320, Cached: 19 * 16}})
	for r.o.Overlay.Stats().Confirmed == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	for range 10 {
		q.Reset()
		q.Call = completion(320, 0).Call
		got, err := r.Place(ctx, q)
		if err != nil || got.Holder != first.Holder || got.Expected < 19 {
			t.Fatalf("placed on %s with %d blocks expected, want %s and 19: %v", got.Holder.Worker.ID, got.Expected, first.Holder.Worker.ID, err)
		}
		got.Done(Outcome{Kind: OK, Usage: openai.Usage{Known: true, CachedKnown: true, Prompt: 320, Cached: 19 * 16}})
	}
}

func TestOnly(t *testing.T) {
	p := pool(4, 1)
	m := models{"m": p}
	odd := NewOnly(m, func(w *fleet.Worker) bool { return w.ID == "w1" || w.ID == "w3" })
	if got := odd.Pool("m"); len(got.Workers) != 2 || got != odd.Pool("m") || odd.Models()["m"] != got {
		t.Errorf("2 of 4 workers are %d, and the same each time: %t", len(got.Workers), got == odd.Pool("m"))
	}
	if got := NewOnly(m, func(*fleet.Worker) bool { return true }).Pool("m"); got != p {
		t.Error("a pool that is kept whole is not the same")
	}
	none := NewOnly(m, func(*fleet.Worker) bool { return false })
	if none.Pool("m") != nil || len(none.Models()) != 0 || none.Pool("x") != nil {
		t.Error("a pool of nobody is there")
	}
	m["m"] = fleet.NewPool("m", 2, p.Workers[:2])
	if got := odd.Pool("m"); len(got.Workers) != 1 {
		t.Errorf("after a change %d workers, want 1", len(got.Workers))
	}
}

func TestSteadyPathAllocations(t *testing.T) {
	p := pool(8, 1)
	x := &steady{lookup.Match{Instance: "2", Any: 256, Host: 256, Device: 256}}
	r := New(Options{Fleet: models{"m": p}, Prompts: given{}, Index: x, Overlay: overlay.New(overlay.DefaultOptions()), Policy: newPolicy(t, policy.CacheAware, nil)})
	q, call := NewRequest(), completion(4096, 0).Call
	n := testing.AllocsPerRun(200, func() {
		q.Reset()
		q.Call = call
		got, err := r.Place(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		got.Done(Outcome{Kind: OK})
	})
	if n > 2 { // the placement and its lease
		t.Errorf("%v allocations a request, want 2", n)
	}
}

// steady answers the same match, without allocating.
type steady struct{ m lookup.Match }

func (s *steady) Lookup(_ context.Context, _ *lookup.Query, a *lookup.Answer) error {
	a.Reset()
	a.BlockSize = 16
	a.Matches = append(a.Matches, s.m)
	return nil
}

func BenchmarkPlace(b *testing.B) {
	p := pool(128, 1)
	x := &steady{lookup.Match{Instance: "2", Any: 256, Host: 256, Device: 256}}
	r := New(Options{Fleet: models{"m": p}, Prompts: given{}, Index: x, Overlay: overlay.New(overlay.DefaultOptions()), Policy: newPolicy(b, policy.CacheAware, nil)})
	q, call := NewRequest(), completion(4096, 0).Call
	b.ReportAllocs()
	for b.Loop() {
		q.Reset()
		q.Call = call
		got, err := r.Place(context.Background(), q)
		if err != nil {
			b.Fatal(err)
		}
		got.Done(Outcome{Kind: OK})
	}
}
