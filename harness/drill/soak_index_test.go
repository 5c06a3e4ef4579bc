// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kindex/harness/publish"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/internal/longtest"
)

func soakOptions(t *testing.T) SoakOptions {
	o := DefaultSoakOptions()
	o.Window, o.Duration, o.Workers, o.Seed = minWindow, 2*minWindow, 2, 3
	o.Out = filepath.Join(t.TempDir(), "soak")
	o.Progress = trial.NewProgress(nil, "soak")
	return o
}

func TestSoakOptions(t *testing.T) {
	for want, spoil := range map[string]func(*SoakOptions){
		"":                 func(*SoakOptions) {},
		"--window 1s":      func(o *SoakOptions) { o.Window = time.Second },
		"--duration 16s":   func(o *SoakOptions) { o.Window, o.Duration = time.Minute, 16*time.Second },
		"--workers 0":      func(o *SoakOptions) { o.Workers = 0 },
		"--rate 0":         func(o *SoakOptions) { o.Rate = 0 },
		"--out":            func(o *SoakOptions) { o.Out = "" },
		"--duration 721h0": func(o *SoakOptions) { o.Duration = 721 * time.Hour },
	} {
		o := soakOptions(t)
		spoil(&o)
		if err := o.Validate(); want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestSeries goes through what a folder can be: none, one of a soak, one of another soak,
// one whose last line was cut off.
func TestSeries(t *testing.T) {
	o := soakOptions(t)
	o.Resume = true
	refused := func(o SoakOptions, want string) {
		t.Helper()
		if _, err := o.openSeries(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	refused(o, "there is no soak to go on with")
	o.Resume = false
	if got, err := o.openSeries(); err != nil || len(got) != 0 {
		t.Fatalf("%v, %v", got, err)
	}
	for n := range 3 {
		if err := appendWindow(o.Out, &Window{Number: n + 1, Segment: 1, Batches: uint64(n)}); err != nil {
			t.Fatal(err)
		}
	}
	refused(o, "--resume goes on with it")
	o.Resume = true
	other := o
	other.Seed++
	refused(other, "is of seed 3")
	path := filepath.Join(o.Out, windowsFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(slices.Clone(whole), `{"window":4,"seg`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := o.openSeries(); err != nil || len(got) != 3 || got[2].Batches != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(whole) {
		t.Errorf("%v: the line that was cut off is still there: %s", err, now)
	}
	if err := appendWindow(o.Out, &Window{Number: 9}); err != nil {
		t.Fatal(err)
	}
	refused(o, "line 4 is window 9")
}

// TestPlan shows that a window's faults depend on seed and number alone, are over within
// the span, and are of every kind in the end.
func TestPlan(t *testing.T) {
	workers := []*soakWorker{{name: "w0"}, {name: "w1"}, {name: "w2"}}
	const span = 45 * time.Second
	kinds := map[string]int{}
	for n := range 300 {
		in := plan(1, n, workers, span)
		if again := plan(1, n, workers, span); !slices.Equal(in, again) {
			t.Fatalf("window %d: %+v, then %+v", n, in, again)
		}
		used := map[string]bool{}
		for _, f := range in {
			kinds[f.Kind]++
			if f.At < 0 || f.Seconds < 0.5 || f.At+f.Seconds > span.Seconds() {
				t.Errorf("window %d: %+v is not within %v", n, f, span)
			}
			if key := f.Kind + f.Worker; used[f.Worker] && f.Worker != "" || used[key] {
				t.Errorf("window %d: two faults of one: %+v", n, in)
			}
			used[f.Worker], used[f.Kind+f.Worker] = true, true
		}
		if len(in) == 0 {
			t.Errorf("window %d: no fault", n)
		}
	}
	if len(kinds) != len(soakFaults) {
		t.Errorf("of %d kinds come %v", len(soakFaults), kinds)
	}
	if slices.Equal(plan(1, 1, workers, span), plan(2, 1, workers, span)) {
		t.Error("another seed gives the same faults")
	}
}

// made returns a series without a fault, spoilt.
func made(n int, spoil func(i int, w *Window)) []Window {
	out := make([]Window, n)
	for i := range out {
		wave := float64(i % 5)
		out[i] = Window{
			Number: i + 1, Segment: 1, Lookups: 1_000, HitTokens: 990, Oracle: 1_000, HitRatio: 0.99, P50: 0.5 + wave/10, P99: 3 + wave,
			RSS:   map[string]uint64{"harness": uint64(1e8 + i*1e7), "index steady": uint64(2e8 + 1e6*wave), "index restarted": 1e8, "relay w1": 6e7},
			Bytes: map[string]float64{"steady": 5e7 + 1e5*wave},
		}
		spoil(i, &out[i])
	}
	return out
}

// TestSummary plants every kind of drift, and every fault, in a series of an hour.
func TestSummary(t *testing.T) {
	for _, test := range []struct {
		name    string
		windows []Window
		drifted string // the figure; "": none
		ok      bool
	}{
		{"steady", made(60, func(int, *Window) {}), "", true},
		{"short", made(leastDrift-1, func(i int, w *Window) { w.P50 = float64(i * 100) }), "", true},
		{"a leak", made(60, func(i int, w *Window) { w.RSS["index steady"] += uint64(i) * 2e6 }), "RSS of index steady, bytes", false},
		{"a leak of a relay", made(60, func(i int, w *Window) { w.RSS["relay w1"] += uint64(i) * 1e6 }), "RSS of relay w1, bytes", false},
		{"live bytes", made(60, func(i int, w *Window) { w.Bytes["steady"] += float64(i) * 1e6 }), "live bytes of index steady", false},
		{"slower", made(60, func(i int, w *Window) { w.P50 += float64(i) / 10 }), "lookup p50, ms", false},
		{"slower at times", made(60, func(i int, w *Window) { w.P99 += float64(i) / 2 }), "lookup p99, ms", false},
		{"worse answers", made(60, func(i int, w *Window) { w.HitRatio -= float64(i) / 1_000 }), "hit/oracle", false},
		{"one wild window", made(60, func(i int, w *Window) {
			if i == 58 {
				w.P99, w.HitRatio, w.RSS["index steady"] = 1_000, 0.1, 9e9
			}
		}), "", true},
		{"warm early", made(60, func(i int, w *Window) {
			if i < 5 {
				w.RSS["index steady"] = 1e7
			}
		}), "", true},
		{"begun anew", made(60, func(i int, w *Window) {
			w.Segment = 1 + i/30
			w.RSS["index steady"] = uint64(1e8 * w.Segment)
		}), "", true},
		{"interrupted again and again", made(60, func(i int, w *Window) {
			w.Segment = 1 + i/9
			w.RSS["index steady"] += uint64(i) * 2e6
		}), "", true},
		{"wrong once", made(60, func(i int, w *Window) {
			if i == 9 {
				w.Wrong = []string{"that"}
			}
		}), "", false},
		{"overclaims", made(60, func(i int, w *Window) { w.Overclaims = i / 59 }), "", false},
		{"no lookups", made(60, func(_ int, w *Window) { w.Lookups = 0 }), "", false},
		{"nothing", nil, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := summarize(series{Window: 60}, test.windows)
			drifted := ""
			for _, d := range s.Drifts {
				if d.Drifted {
					drifted += d.Name
				}
			}
			if drifted != test.drifted || s.OK != test.ok {
				t.Errorf("drifted %q, ok %v, want %q, %v: %+v", drifted, s.OK, test.drifted, test.ok, s.Drifts)
			}
			var text, object strings.Builder
			if err := errors.Join(s.WriteText(&text), s.WriteJSON(&object)); err != nil {
				t.Fatal(err)
			}
			if said := strings.Contains(text.String(), "RSS, live bytes  not judged"); said != (test.name == "interrupted again and again") || said != (s.Unweighed > 0) {
				t.Errorf("memory that was not judged:\n%s", text.String())
			}
			if !slices.Equal(s.Drifted, strings.FieldsFunc(drifted, func(r rune) bool { return r == ';' })) {
				t.Errorf("%q drifted, the summary names %q", drifted, s.Drifted)
			}
			if strings.Contains(text.String(), "DRIFTED") != (drifted != "") || strings.Contains(text.String(), "FAIL") == s.OK || !strings.Contains(object.String(), fmt.Sprintf(`"ok":%v`, s.OK)) {
				t.Errorf("%s\n%s", text.String(), object.String())
			}
		})
	}
}

func TestReadMetrics(t *testing.T) {
	bytes, held, err := readMetrics(strings.NewReader("# HELP kindex_index_bytes Index memory.\n# TYPE kindex_index_bytes gauge\n" +
		"kindex_index_bytes{node=\"0\",purpose=\"a b\"} 100\nkindex_index_bytes{node=\"1\",purpose=\"c\"} 2.5e+01\nkindex_index_memberships 7\nkindex_index_blocks 9\n"))
	if err != nil || bytes != 125 || held != 7 {
		t.Errorf("%v bytes, %v held, %v", bytes, held, err)
	}
	if _, _, err := readMetrics(strings.NewReader("kindex_index_memberships seven\n")); err == nil {
		t.Error("seven is taken for a number")
	}
}

// TestSoakIndex runs two windows: well; interrupted and gone on with; and beside an index
// that forgets a block of all that it is asked for.
func TestSoakIndex(t *testing.T) {
	longtest.Skip(t)
	build(t)
	o := soakOptions(t)
	ctx, cancel := context.WithTimeout(t.Context(), minWindow+10*time.Second)
	defer cancel()
	if _, err := Soak(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want it interrupted", err)
	}
	o.Resume = true
	s, err := Soak(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", s)
	if !s.OK || s.Windows != 2 || s.Segments != 2 || s.Looks == 0 || s.HitRatio < 0.5 || s.Batches == 0 {
		t.Errorf("%+v", s)
	}
	windows, err := readWindows(filepath.Join(o.Out, windowsFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range windows {
		if w.RSS["index steady"] == 0 || w.RSS["relay w1"] == 0 || w.Bytes["steady"] == 0 || w.Held["steady"] == 0 || w.P99 < w.P50 || w.P50 == 0 {
			t.Errorf("%+v", w)
		}
	}
	o = soakOptions(t)
	o.Duration = minWindow
	o.plant = func(rank int, e *publish.Event) bool { return rank != 1 || e.Kind != kv.KindStored || e.HasParent }
	if s, err = Soak(t.Context(), o); err != nil || s.OK || s.Overclaims == 0 || len(s.Wrong) != 1 {
		t.Errorf("%v: beside a forgetful index: %+v", err, s)
	}
}
