// SPDX-License-Identifier: Apache-2.0

package frames

import (
	"math"
	"strings"
	"testing"

	"kindex/harness/bench"
	"kindex/harness/trial"
)

func small() Options {
	o := DefaultOptions()
	o.Streams, o.Prompts, o.Cache, o.Rounds = 3, 60, leastCache, 2
	return o
}

// TestOne: every stream is exact at the end whatever the lanes and shards (One says
// otherwise), and the parts add up to the whole.
func TestOne(t *testing.T) {
	for _, n := range [][3]int{{1, 1, leastCache}, {2, 1, leastCache}, {4, 3, 0}} {
		o := small()
		o.Lanes, o.Shards, o.Cache = n[0], n[1], n[2]
		r, err := One(t.Context(), o, trial.NewProgress(nil, ""))
		if err != nil {
			t.Fatalf("%d lanes: %v", o.Lanes, err)
		}
		c := r.Costs
		if sum := c.Decode + c.Hash + c.Copies + c.Apply + c.Queue; math.Abs(sum-c.All) > 1e-6*c.All || c.Decode <= 0 || c.All <= 0 {
			t.Errorf("%d lanes: %+v add up to %.3f", o.Lanes, c, sum)
		}
		if r.Ops != int64(o.Streams*o.Prompts) || r.Stored < 3*60*32 || (r.Removed == 0) != (o.Cache == 0) || r.BlockOps != r.Stored+r.Removed || r.Wall <= 0 || r.PerS <= 0 {
			t.Errorf("%d lanes: %+v", o.Lanes, r)
		}
	}
}

// TestCheck: a stream that lacks a message is seen.
func TestCheck(t *testing.T) {
	o := small()
	f := &fleet{o: &o, streams: []*bench.Stream{bench.MakeStream(20, 0, 1), bench.MakeStream(20, 0, 2), bench.MakeStream(20, 0, 3)}}
	if _, err := f.direct(true); err != nil {
		t.Fatal(err)
	}
	f.streams[1].Frames = append(f.streams[1].Frames[:7:7], f.streams[1].Frames[8:]...)
	if _, err := f.direct(true); err == nil || !strings.Contains(err.Error(), "stream 1 is active with") {
		t.Errorf("%v, want stream 1", err)
	}
}

// TestRatio holds the verdict against known throughputs and loads.
func TestRatio(t *testing.T) {
	row := func(lanes int, perS, foreign float64) Row {
		return Row{Lanes: lanes, Foreign: []float64{foreign}, Runs: []*Result{{Lanes: lanes, PerS: perS}}}
	}
	for _, test := range []struct {
		foreign float64
		cpus    int
		void    string
	}{{0.05, 2, ""}, {0.4, 2, "others kept up to 0.40 of 2 CPUs busy"}, {0.4, 4, ""}, {0, 1, "one CPU"}} {
		s := &Summary{Rows: []Row{row(1, 2e6, 0), row(2, 3.8e6, test.foreign), row(4, 4e6, 9)}}
		s.summarize(test.cpus)
		if math.Abs(s.Ratio-1.9) > 1e-9 || (s.Void == "") != (test.void == "") || !strings.Contains(s.Void, test.void) {
			t.Errorf("%+v: ratio %v, void %q", test, s.Ratio, s.Void)
		}
		var b strings.Builder
		if err := s.WriteText(&b); err != nil || !strings.Contains(b.String(), "two lanes to one: 1.90") || strings.Contains(b.String(), "void") != (test.void != "") {
			t.Errorf("%v:\n%s", err, b.String())
		}
	}
	s := &Summary{Rows: []Row{row(4, 1, 0)}}
	if s.summarize(2); s.Ratio != 0 {
		t.Errorf("ratio %v of one row", s.Ratio)
	}
}
