// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"kindex/harness/trial"
	"kindex/internal/lookup"
)

func small() Options {
	o := DefaultOptions()
	o.Workers, o.Rows, o.Questions, o.Rounds, o.Trial = 12, 300, 100, 2, 20*time.Millisecond
	o.Arms = []string{ArmPolicy, ArmChain}
	return o
}

// The content reaches the index by the wire, and every question is answered as a plain
// reading of the trace says: Measure does not go on before.
func TestMeasure(t *testing.T) {
	o := small()
	r, err := Measure(t.Context(), &o, trial.NewProgress(nil, "decide"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Trials) != 4 || len(r.Rows) != 2 || r.Goal == nil || r.Blocks == 0 {
		t.Fatalf("%d trials, %d rows, goal %v, %d blocks", len(r.Trials), len(r.Rows), r.Goal, r.Blocks)
	}
	for _, x := range r.Trials {
		if x.Decisions != 200 || x.Failed != 0 || x.Total.Samples != 200-x.Dropped || x.Total.P50 == 0 || x.Total.P99 < x.Total.P50 {
			t.Errorf("%+v", x)
		}
		sum := 0
		for _, n := range x.Branches {
			sum += n
		}
		if sum != x.Decisions || x.Branches["hit"] == 0 {
			t.Errorf("branches of %d decisions: %v", x.Decisions, x.Branches)
		}
	}
	var text, js bytes.Buffer
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "| chain |") {
		t.Errorf("%v: %s", err, &text)
	}
	var back Report
	if err := r.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || back.Goal.Got != r.Goal.Got {
		t.Errorf("%v: %s", err, &js)
	}
}

func TestMeasureEnds(t *testing.T) {
	o := small()
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := Measure(ctx, &o, trial.NewProgress(nil, "decide")); err == nil {
		t.Error("went on after its end")
	}
}

func TestLostSamples(t *testing.T) {
	for _, c := range []struct {
		s           sample
		waits, want bool
	}{
		{sample{look: 5000, choice: 1000, cpu: 6300}, false, false},
		{sample{look: 5000, choice: 1000, cpu: 6300, taken: 1}, false, true},
		{sample{look: 5000, choice: 1000, cpu: 6300, gave: 1}, false, true},
		{sample{look: 50_000, choice: 1000, cpu: 6300}, false, true},
		{sample{look: 50_000, choice: 1000, cpu: 6300, gave: 1}, true, false},
		{sample{look: 5000, choice: 1000, cpu: 6300, taken: 1}, true, true},
	} {
		if got := c.s.lost(c.waits, 300); got != c.want {
			t.Errorf("%+v, waits %v: lost %v, want %v", c.s, c.waits, got, c.want)
		}
	}
}

func TestTokensTellContentsApart(t *testing.T) {
	seen := map[string]uint32{}
	for _, x := range []uint32{0, 1, 255, 256, 65_535, 65_536, 1 << 24, math.MaxUint32} {
		var b strings.Builder
		for _, t := range tokensOf(x, nil) {
			b.WriteString(strconv.Itoa(int(t)) + " ")
		}
		if y, ok := seen[b.String()]; ok {
			t.Errorf("%d and %d have the same tokens", x, y)
		}
		seen[b.String()] = x
	}
}

func TestOptions(t *testing.T) {
	for flag, edit := range map[string]func(*Options){
		"--workers": func(o *Options) { o.Workers = 0 }, "--rate": func(o *Options) { o.Rate = -1 }, "--kv-index": func(o *Options) { o.Arms = []string{"tree"} },
		"--policy": func(o *Options) { o.Policy = "best" }, "--trial": func(o *Options) { o.Trial = 0 }, "--limit": func(o *Options) { o.Limit = -1 },
	} {
		o := DefaultOptions()
		edit(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// BenchmarkDecision is one decision with the embedded index, as the command times it.
func BenchmarkDecision(b *testing.B) {
	p := trial.NewProgress(nil, "decide")
	for _, workers := range []int{128, 1024} {
		for _, limit := range []int{0, 32} {
			b.Run(strconv.Itoa(workers)+"/limit-"+strconv.Itoa(limit), func(b *testing.B) {
				o := DefaultOptions()
				o.Workers, o.Rows, o.Questions, o.Limit, o.Arms = workers, 2000, 500, limit, []string{ArmChain}
				w, err := newWorld(b.Context(), &o, p)
				if err != nil {
					b.Fatal(err)
				}
				f, err := newFeed(o.Workers)
				if err != nil {
					b.Fatal(err)
				}
				defer f.close()
				x, err := newBench(&o, w, f.at, p)
				if err == nil {
					err = x.open(b.Context(), &machines{b.TempDir()}, f)
				}
				defer func() {
					for _, a := range x.arms {
						a.close()
					}
				}()
				if err != nil {
					b.Fatal(err)
				}
				var answer lookup.Answer
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					q := &w.questions[i%len(w.questions)]
					s, err := x.decide(b.Context(), x.arms[0], q, &answer)
					if err != nil {
						b.Fatal(err)
					}
					x.move(s.d, q)
				}
			})
		}
	}
}
