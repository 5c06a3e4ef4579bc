// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"kindex/gateway/fleet"
)

func add(t testing.TB, r *fleet.Registry, s fleet.Spec) *fleet.Worker {
	t.Helper()
	w, err := r.Add(s)
	if err != nil {
		t.Fatalf("Add(%q): %v", s.URL, err)
	}
	return w
}

func TestPoolsHoldWhoServesTheModel(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	a := add(t, r, fleet.Spec{URL: "http://A:1/", Models: []string{"m"}, Ranks: 2})
	b := add(t, r, fleet.Spec{URL: "grpc://b:2", Models: []string{"m", "n"}, Instance: "b"})
	if got, want := a.Spec.URL, "http://a:1"; got != want {
		t.Errorf("the URL is kept as %q, want %q", got, want)
	}
	if got := r.Pool("m").Workers; !slices.Equal(got, []*fleet.Worker{a, b}) {
		t.Errorf("m is served by %v, want both", got)
	}
	if got := r.Pool("n").Workers; !slices.Equal(got, []*fleet.Worker{b}) {
		t.Errorf("n is served by %v, want b alone", got)
	}
	if p := r.Pool("x"); p != nil {
		t.Errorf("an unknown model has a pool %v", p)
	}
	if h := r.Pool("m").Holder("http://a:1", 1); h != a.Holders[1] {
		t.Errorf("rank 1 of a is %v", h)
	}
	seats := []int{a.Holders[0].Seat, a.Holders[1].Seat, b.Holders[0].Seat}
	if !slices.Equal(seats, []int{0, 1, 2}) {
		t.Errorf("seats are %v, want 0 1 2", seats)
	}
	if _, err := r.Remove(a.ID); err != nil {
		t.Fatal(err)
	}
	if a.State() != fleet.Removed || len(r.Pool("m").Workers) != 1 || r.Pool("m").Holder("http://a:1", 0) != nil {
		t.Error("a is still there after its removal")
	}
	if c := add(t, r, fleet.Spec{URL: "http://a:1", Models: []string{"m"}}); c.Holders[0].Seat != 0 || c.ID == a.ID {
		t.Errorf("a again has seat %d and id %s: want seat 0, and an id of its own", c.Holders[0].Seat, c.ID)
	}
	if _, err := r.Add(fleet.Spec{URL: "HTTP://a:1", Models: []string{"m"}}); !errors.Is(err, fleet.ErrExists) {
		t.Errorf("the same URL again: %v, want %v", err, fleet.ErrExists)
	}
	if _, err := r.Add(fleet.Spec{URL: "http://c:1", Models: []string{"m"}, Instance: "b"}); !errors.Is(err, fleet.ErrExists) {
		t.Errorf("the same instance again: %v, want %v", err, fleet.ErrExists)
	}
	if r.Get("http://c:1") != nil {
		t.Error("a worker that could not join left a registration behind")
	}
}

func TestAdaptersResolveToTheirBase(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	s := fleet.Spec{URL: "http://a:1", Models: []string{"m"}, Adapters: map[string]string{"l": "m"}}
	a := add(t, r, s)
	if r.Pool("l") != r.Pool("m") || !r.Adapter("l") || r.Adapter("m") {
		t.Error("an adapter that every worker has is not its base's pool")
	}
	b := add(t, r, fleet.Spec{URL: "http://b:1", Models: []string{"m"}})
	if p := r.Pool("l"); len(p.Workers) != 1 || p.Workers[0] != a || p.Base != "m" || !r.Adapter("l") {
		t.Errorf("an adapter that one of two has: pool %+v, want a alone", p)
	}
	if _, err := r.Remove(b.ID); err != nil {
		t.Fatal(err)
	}
	if r.Pool("l") != r.Pool("m") {
		t.Error("an adapter that every worker has again is not its base's pool")
	}
}

func TestOtherModelsOfOneEngineLeaveNoGap(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	w := add(t, r, fleet.Spec{URL: "http://a:1", Models: []string{"m"}, Adapters: map[string]string{"l": "m"}})
	w.SetState(fleet.Ready)
	stop := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			p := r.Pool("m")
			if p == nil || len(p.Workers) != 1 || p.Workers[0].State() == fleet.Removed && r.Pool("m") == p {
				t.Errorf("m is served by nobody: %+v", p)
				return
			}
		}
	})
	for i := range 200 {
		if _, err := r.Pin(w.ID, fleet.Served{Models: []string{"m", "n"}[:1+i%2]}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	looks.Wait()
	if now := r.Get(w.ID).Worker(); now.State() != fleet.Ready || now == w || w.State() != fleet.Removed || len(r.Workers()) != 1 || r.Seats() > 2 {
		t.Errorf("it is %v now, the first one %v, of %d workers on %d seats", now.State(), w.State(), len(r.Workers()), r.Seats())
	}
}

func TestWhoServesOnWhenItJoinsAnew(t *testing.T) {
	base := fleet.Spec{URL: "http://a:1", Models: []string{"m"}, Engine: fleet.VLLM, Ranks: 1, BlockSize: 16, Events: fleet.Events{Endpoint: "tcp://a:2"}}
	for name, c := range map[string]struct {
		change func(*fleet.Spec)
		want   fleet.State
	}{
		"events":  {func(s *fleet.Spec) { s.Events.Endpoint = "tcp://a:3" }, fleet.Ready},
		"ranks":   {func(s *fleet.Spec) { s.Ranks = 2 }, fleet.Pending},
		"model":   {func(s *fleet.Spec) { s.Models = []string{"n"} }, fleet.Pending},
		"blocks":  {func(s *fleet.Spec) { s.BlockSize = 32 }, fleet.Pending},
		"engine":  {func(s *fleet.Spec) { s.Engine = fleet.SGLang }, fleet.Pending},
		"grpc":    {func(s *fleet.Spec) { s.URL = "grpc://a:1" }, fleet.Pending},
		"nothing": {func(*fleet.Spec) {}, fleet.Ready},
	} {
		r := fleet.NewRegistry()
		defer r.Close()
		w := add(t, r, base)
		w.SetState(fleet.Ready)
		next := base
		c.change(&next)
		got, err := r.Join(r.Get(w.ID), next)
		if err != nil || got.State() != c.want || w.State() != fleet.Removed {
			t.Errorf("%s: %v, the new one is %v, the old one %v: want %v and removed", name, err, got.State(), w.State(), c.want)
		}
	}
}

func TestPoolsAreWhatAModelSays(t *testing.T) {
	names := []string{"m", "n", "o", "p", "q"}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		r := fleet.NewRegistry()
		defer r.Close()
		is := make(map[string]*fleet.Spec) // by URL
		some := func() (models []string, adapters map[string]string) {
			models = slices.Clone(names[:1+rng.IntN(3)])
			rng.Shuffle(len(models), func(i, j int) { models[i], models[j] = models[j], models[i] })
			adapters = make(map[string]string)
			for _, a := range names {
				if rng.IntN(3) == 0 && !slices.Contains(models, a) {
					adapters[a] = models[rng.IntN(len(models))]
				}
			}
			return models, adapters
		}
		for range 150 {
			url := fmt.Sprintf("http://h:%d", 1+rng.IntN(6))
			s := is[url]
			models, adapters := some()
			var err error
			switch op := rng.IntN(4); {
			case s == nil:
				s = &fleet.Spec{URL: url, Models: models, Adapters: adapters, Ranks: 1 + rng.IntN(3)}
				_, err = r.Add(*s)
				is[url] = s
			case op == 0:
				_, err = r.Remove(url)
				delete(is, url)
			case op == 1:
				_, err = r.Pin(url, fleet.Served{Models: models, Adapters: adapters})
				s.Models, s.Adapters = models, adapters
			case op == 2:
				keep := make(map[string]string)
				for a, base := range adapters {
					if slices.Contains(s.Models, base) && !slices.Contains(s.Models, a) {
						keep[a] = base
					}
				}
				err = r.Adapters(r.Get(url).Worker(), keep)
				s.Adapters = keep
			default:
				_, err = r.Join(r.Get(url), *s)
			}
			if err != nil {
				t.Fatal(err)
			}
			checkPools(t, r, names, is)
		}
	}
}

// checkPools compares all that r says with who is there.
func checkPools(t *testing.T, r *fleet.Registry, names []string, is map[string]*fleet.Spec) {
	t.Helper()
	if len(r.Workers()) != len(is) {
		t.Fatalf("%d workers, want %d", len(r.Workers()), len(is))
	}
	seats := make(map[int]bool)
	for _, w := range r.Workers() {
		for _, h := range w.Holders {
			if seats[h.Seat] {
				t.Fatalf("seat %d is taken twice", h.Seat)
			}
			seats[h.Seat] = true
		}
	}
	for _, name := range names {
		var want, got []string
		ranks := 0
		for url, s := range is {
			if slices.Contains(s.Models, name) || s.Adapters[name] != "" {
				want, ranks = append(want, url), ranks+s.Ranks
			}
		}
		p := r.Pool(name)
		if p == nil {
			p = &fleet.Pool{}
		}
		for _, w := range p.Workers {
			got = append(got, w.Spec.URL)
			if p.Holder(w.Spec.Instance, 0) != w.Holders[0] || w.State() == fleet.Removed || r.Get(w.ID).Worker() != w {
				t.Fatalf("%s: %s is not the one of its registration", name, w.Spec.URL)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) || len(p.Holders) != ranks {
			t.Fatalf("%s: served by %v on %d ranks, want %v on %d", name, got, len(p.Holders), want, ranks)
		}
		for _, h := range p.Holders {
			if h.Seat >= p.Seats {
				t.Fatalf("%s: seat %d of a pool of %d seats", name, h.Seat, p.Seats)
			}
		}
	}
}

func TestSGLangsNameOfAnAdapter(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	add(t, r, fleet.Spec{URL: "http://a:1", Models: []string{"m"}, Adapters: map[string]string{"l": "m"}})
	for name, want := range map[string]bool{"m:l": true, "m:m": false, "n:l": false, ":l": false, "m:": false, "m:x": false} {
		if got := r.Pool(name) == r.Pool("m"); got != want {
			t.Errorf("%s is the pool of m: %v, want %v", name, got, want)
		}
	}
	add(t, r, fleet.Spec{URL: "http://b:1", Models: []string{"m"}})
	if p := r.Pool("m:l"); p == nil || len(p.Workers) != 1 || p.Weights() != "m" {
		t.Errorf("an adapter that one of two has, with its model: %+v", p)
	}
}

func TestSGLangsNameOfAnAdapterWithColons(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	add(t, r, fleet.Spec{URL: "http://a:1", Models: []string{"m:8b"}, Adapters: map[string]string{"l:v2": "m:8b"}})
	for name, want := range map[string]bool{"m:8b:l:v2": true, "m:l:v2": false, "m:8b": true, "l:v2": true, "m:8b:v2": false} {
		if got := r.Pool(name) != nil; got != want {
			t.Errorf("%s has a pool: %v, want %v", name, got, want)
		}
	}
}

func TestAnAdapterIsOneAgainWhenWhoDisagreedHasLeft(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	add(t, r, fleet.Spec{URL: "http://a:1", Models: []string{"m"}, Adapters: map[string]string{"l": "m"}})
	b := add(t, r, fleet.Spec{URL: "http://b:1", Models: []string{"m", "l"}})
	if p := r.Pool("l"); len(p.Workers) != 2 || p.Weights() != "l" {
		t.Fatalf("a name that is a model to one of two: %d workers, of %s", len(p.Workers), p.Weights())
	}
	if _, err := r.Remove(b.ID); err != nil {
		t.Fatal(err)
	}
	if p := r.Pool("l"); len(p.Workers) != 1 || p.Weights() != "m" {
		t.Errorf("%d workers, of %s, want one, of m", len(p.Workers), p.Weights())
	}
}

func TestHooksSeeEachChangeInOrder(t *testing.T) {
	r := fleet.NewRegistry()
	defer r.Close()
	var log []string
	note := func(what string) func(*fleet.Worker) {
		return func(w *fleet.Worker) {
			in := "out"
			if p := r.Pool("m"); p != nil && slices.Contains(p.Workers, w) {
				in = "in"
			}
			log = append(log, what+" "+w.Spec.URL+" "+in)
		}
	}
	add(t, r, fleet.Spec{URL: "http://a:1", Models: []string{"m"}})
	r.OnJoin(note("join"))
	r.OnLeave(note("leave"))
	r.OnChange(note("change"))
	b := add(t, r, fleet.Spec{URL: "http://b:1", Models: []string{"m"}})
	if _, err := r.Update(b.ID, func(t *fleet.Terms) error { t.Priority = 7; return nil }); err != nil {
		t.Fatal(err)
	}
	if got := b.Terms().Priority; got != 7 {
		t.Errorf("priority is %d, want 7", got)
	}
	if _, err := r.Remove("http://b:1"); err != nil {
		t.Fatal(err)
	}
	want := []string{"join http://a:1 in", "join http://b:1 out", "change http://b:1 in", "leave http://b:1 out"}
	if !slices.Equal(log, want) {
		t.Errorf("hooks saw %q, want %q", log, want)
	}
}
