// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"sync"
	"testing"

	"kindex/gateway/fleet"
	"kindex/gateway/index"
	"kindex/harness/mockworker/engine"
	"kindex/internal/lookup"
)

// TestEmbedded: whatever a worker's events come by, lookups say what the engines hold,
// rank by rank, after joins, leaves, a worker that comes back and one that leaves for
// good; an engine's restart empties it.
func TestEmbedded(t *testing.T) {
	for _, kind := range []string{index.Chain, index.Positional} {
		t.Run(kind, func(t *testing.T) {
			f := engines(t, 4, engine.Config{HTTP: "127.0.0.1:0", GRPC: "127.0.0.1:0"})
			all := f.Workers()
			ps := prompts(1, 40)
			for i, p := range ps[:20] {
				send(t, all[i%4], i/4%2, p)
			}
			r := newRig(t, index.Options{Kind: kind})
			specs := []fleet.Spec{spec(0, all[0]), spec(1, all[1]), spec(2, all[2]), spec(3, all[3])}
			specs[1].Events = fleet.Events{Relay: relayOf(t, all[1])}
			specs[2].Events = fleet.Events{Relay: all[2].GRPC()}
			specs[3].URL, specs[3].Events = "grpc://"+all[3].GRPC(), fleet.Events{} // looked for
			var ws []*fleet.Worker
			for _, s := range specs {
				ws = append(ws, r.add(s))
			}
			r.exact("what was before", f, ps, ws...)
			for i, p := range ps[20:] {
				send(t, all[i%4], i/4%2, p)
			}
			r.exact("what comes", f, ps, ws...)
			var a lookup.Answer
			if err := r.index.Lookup(t.Context(), &lookup.Query{Model: "alias", Tokens: ps[0]}, &a); err != nil || len(a.Matches) == 0 {
				t.Errorf("by the model's other name: %+v, %v", a, err)
			}
			for _, w := range ws {
				if s := r.index.Stream(w); s.Status != "active" {
					t.Errorf("%s is followed as %+v", w.Spec.Instance, s)
				}
			}
			for _, k := range []int{0, 1, 3} {
				r.remove(ws[k])
				ws[k] = r.add(specs[k]) // at once
			}
			r.exact("those that came back", f, ps, ws...)
			r.remove(ws[3])
			r.exact("one that left", f, ps, ws[:3]...)
			all[0].Engine.Restart()
			r.exact("one that restarted", f, ps, ws[:3]...)
			if why := r.index.Unready(); len(why) != 0 {
				t.Errorf("not ready: %q", why)
			}
			if s := r.index.Stats(); s.Answered == 0 || s.Paused {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// TestEmbeddedAssumptions: where nobody says how long blocks are the events do; a gRPC
// worker that serves no events is left alone, and no fault.
func TestEmbeddedAssumptions(t *testing.T) {
	f := engines(t, 2, engine.Config{BlockSize: 64, HTTP: "127.0.0.1:0"})
	all := f.Workers()
	r := newRig(t, index.Options{})
	specs := []fleet.Spec{spec(0, all[0]), spec(1, all[1])}
	var ws []*fleet.Worker
	for i := range specs {
		specs[i].BlockSize = 0
		ws = append(ws, r.add(specs[i]))
	}
	ps := prompts(3, 10)
	for i, p := range ps {
		send(t, all[i%2], i%2, p)
	}
	r.exact("blocks of another size", f, ps, ws...)

	for i, at := range []string{noEvents(t), noEvents(t)} {
		s := fleet.Spec{URL: "grpc://" + at, Models: []string{"m"}, Ranks: 1, Instance: "silent" + at}
		if i > 0 {
			s.Events.Relay, s.BlockSize = at, 64 // as who looks at its server assumes
		}
		silent := r.add(s)
		until(t, "it is left alone", func() (bool, string) {
			s := r.index.Stream(silent)
			return s.Status == "none" && s.Why != "", s.Why
		})
	}
	until(t, "the index is ready", func() (bool, string) { return len(r.index.Unready()) == 0, "" })
	r.exact("the others", f, ps, ws...)
	none := r.add(fleet.Spec{URL: "http://127.0.0.1:9", Models: []string{"m"}, Ranks: 1, Instance: "none"})
	if s := r.index.Stream(none); s.Status != "none" {
		t.Errorf("one without events is followed as %+v", s)
	}
}

// TestEmbeddedFlaps: workers that come and go while others look up leave nothing behind.
func TestEmbeddedFlaps(t *testing.T) {
	f := engines(t, 3, engine.Config{})
	all := f.Workers()
	ps := prompts(5, 12)
	for i, p := range ps {
		send(t, all[i%3], i%2, p)
	}
	r := newRig(t, index.Options{})
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			var a lookup.Answer
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := r.index.Lookup(t.Context(), &lookup.Query{Model: "m", Tokens: ps[i%len(ps)]}, &a); err != nil && lookup.KindOf(err) != lookup.ErrNotFound {
					t.Error(err)
					return
				}
			}
		})
	}
	ws := make([]*fleet.Worker, 3)
	for round := range 30 {
		k := round % 3
		if ws[k] != nil {
			r.remove(ws[k])
		}
		ws[k] = r.add(spec(k, all[k]))
	}
	r.exact("after all", f, ps, ws...)
	close(stop)
	asking.Wait()
	for _, w := range ws {
		r.remove(w)
	}
	until(t, "nothing is left", func() (bool, string) { return r.index.Stats().Blocks == 0, "" })
	if _, known := ws[0].Holders[0].Held(); known {
		t.Error("a holder that has gone keeps its level")
	}
}

// TestLoadsReachHolders: what a relay says of its engine's load is its holders' reading,
// with the age it had.
func TestLoadsReachHolders(t *testing.T) {
	f := engines(t, 1, engine.Config{HTTP: "127.0.0.1:0"})
	w := f.Workers()[0]
	s := spec(0, w)
	s.Events = fleet.Events{Relay: relayOf(t, w)}
	h := startHost(t, nil)
	h.follow(t, s)
	ways := map[string]index.Options{"embedded": {}}
	for name, target := range h.targets() {
		ways[name] = index.Options{Kind: index.Remote, Target: target}
	}
	for name, o := range ways {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, o)
			worker := r.add(s)
			began := fleet.Now()
			for n, holder := range worker.Holders {
				until(t, "a reading", func() (bool, string) { return holder.Reading() != nil && holder.Reading().At > began, "" })
				got := holder.Reading()
				if !got.Pushed || got.Running != 0 || got.Waiting != 0 || got.Usage < 0 || got.At > fleet.Now() {
					t.Errorf("rank %d: %+v", n, got)
				}
			}
			if worker.LastContact() < began {
				t.Errorf("no sign of life since %d: %d", began, worker.LastContact())
			}
			if r.index.Stats().Readings == 0 {
				t.Error("no reading is counted")
			}
		})
	}
}
