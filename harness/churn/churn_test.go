// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"slices"
	"strings"
	"testing"

	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/shard"
)

func small(kind string) Options {
	o := DefaultOptions()
	o.Index, o.Workers, o.Memberships, o.Pool, o.Prompts, o.Length, o.Decode, o.Segments, o.Events = kind, 5, 5_000, 12, 6, 10, 8, 4, 3_000
	return o
}

// TestOne churns every index: it stays as big as it is, every answer is right, and
// every event is counted once.
func TestOne(t *testing.T) {
	for _, kind := range shard.Kinds {
		for _, minutes := range []float64{0, 0.000_5} {
			o := small(kind)
			if o.Minutes = minutes; minutes > 0 {
				o.Events = 0
			}
			r, err := One(t.Context(), o, trial.NewProgress(nil, ""))
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if r.Exact.Wrong != 0 || r.Exact.Lookups == 0 || len(r.Segments) != o.Segments {
				t.Errorf("%s: %d of %d lookups wrong, %d segments", kind, r.Exact.Wrong, r.Exact.Lookups, len(r.Segments))
			}
			sum := int64(0)
			for _, s := range r.Segments {
				if sum += s.Events; s.Memberships != uint64(o.Memberships) || s.PerMembership <= 0 || s.Lookup.Samples == 0 || s.Lookup.P99 < s.Lookup.P50 || s.Events < int64(o.Events) {
					t.Errorf("%s: %+v", kind, s)
				}
			}
			if r.Ops != sum || r.BlockOps != sum {
				t.Errorf("%s: %d events, %d in segments", kind, r.Ops, sum)
			}
		}
	}
}

// TestEvents holds the workload against plain maps: a removal takes what is held, a
// store comes below what is held, and workers go past their room by nothing.
func TestEvents(t *testing.T) {
	o := small("chain")
	f := newFleet(&o)
	held := make([]map[kv.EngineHash]bool, o.Workers)
	for i := range held {
		held[i] = map[kv.EngineHash]bool{}
		for _, p := range f.workers[i].prompts {
			for _, e := range f.engines(p) {
				held[i][e] = true
			}
		}
	}
	chunk, stored, removed := make([]event, 101), 0, 0
	for range 300 {
		for _, ev := range chunk[:f.events(chunk)] {
			h, e := held[ev.worker], ev.engine[0]
			switch {
			case ev.store && (h[e] || !h[ev.parent]):
				t.Fatalf("worker %d stores what it holds, or below what it does not hold", ev.worker)
			case ev.store:
				h[e] = true
				stored++
			case !h[e]:
				t.Fatalf("worker %d removes what it does not hold", ev.worker)
			default:
				delete(h, e)
				removed++
			}
			if len(h) > o.capacity() {
				t.Fatalf("worker %d holds %d blocks, may hold %d", ev.worker, len(h), o.capacity())
			}
		}
	}
	if !f.full() || removed < 10_000 || stored-removed != o.decoding() {
		t.Errorf("%d stored, %d removed, %d decode blocks are held, full: %v", stored, removed, o.decoding(), f.full())
	}
}

// TestWrong: an index that lost an event is seen.
func TestWrong(t *testing.T) {
	o := small("chain")
	x := &run{f: newFleet(&o), worker: map[uint32]int{}, chunk: make([]event, 500), took: make([]int64, 500)}
	if err := x.begin(&o); err != nil {
		t.Fatal(err)
	}
	n := x.f.events(x.chunk)
	if _, err := x.apply(x.chunk[:n-100]); err != nil {
		t.Fatal(err)
	}
	x.lookups()
	if x.exact.Wrong == 0 {
		t.Errorf("%d lookups, none wrong, though 100 events are missing", x.exact.Lookups)
	}
	if err := x.bytes(&Segment{}); err == nil || !strings.Contains(err.Error(), "memberships") {
		t.Errorf("%v, want a count that differs", err)
	}
}

// TestDrift holds verdicts against known segments.
func TestDrift(t *testing.T) {
	seg := func(cpu, bytes float64, p50 uint32) Segment {
		return Segment{CPUPerEvent: cpu, PerMembership: bytes, Resident: bytes, Lookup: &trial.Latency{P50: p50, P99: 2 * p50}}
	}
	result := func(last Segment, slow ...int64) *Result {
		r := &Result{Report: trial.Report{Exact: &trial.Exact{}}, Fill: seg(1, 1, 1), Segments: []Segment{seg(9, 9, 9), seg(100, 20, 1000), last}}
		r.Drift = driftOf(r.Segments)
		for _, e := range slow {
			r.Slowest = append(r.Slowest, Slowest{Event: e})
		}
		return r
	}
	s := summarize([]*Result{result(seg(150, 22, 1110), 4, 9), result(seg(150, 21, 1300), 9, 5), result(seg(150, 21, 900), 7)}, []float64{0, 0, 0})
	if d := s.Drift["lookup_p50"]; d.Median < 10.9 || d.Median > 11.1 || s.FlatLookup || !s.FlatMemory || s.Drift["cpu_per_event"].Min != 50 {
		t.Errorf("%+v, flat memory %v, flat lookup %v", s.Drift, s.FlatMemory, s.FlatLookup)
	}
	if !slices.Equal(s.Again, []int64{9}) {
		t.Errorf("again: %v, want event 9", s.Again)
	}
	var b strings.Builder
	if err := s.WriteText(&b); err != nil || !strings.Contains(b.String(), "(NOT flat)") || !strings.Contains(b.String(), "more than one trial: 1") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}
