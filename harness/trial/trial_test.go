// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain is also the child that the tests start.
func TestMain(m *testing.M) {
	if os.Getenv(ChildEnv) == "" {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "json":
		fmt.Fprintln(os.Stdout, `{"p50": 7}`)
	case "spin":
		for began := time.Now(); time.Since(began) < 200*time.Millisecond; {
			continue
		}
	case "fail":
		fmt.Fprintln(os.Stderr, "one line\nharness: the reason")
		os.Exit(3)
	}
	os.Exit(0)
}

func TestSelf(t *testing.T) {
	var l Latency
	if _, err := SelfInto(t.Context(), nil, &l, "json"); err != nil || l.P50 != 7 {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := SelfInto(t.Context(), nil, &l, "nothing"); err == nil || !strings.Contains(err.Error(), "the trial's output") {
		t.Errorf("no output: %v", err)
	}
	var errs bytes.Buffer
	if _, err := Self(t.Context(), &errs, "fail"); err == nil || !strings.Contains(err.Error(), "harness: the reason") || !strings.Contains(errs.String(), "one line") {
		t.Errorf("%v, standard error %q", err, errs.String())
	}
	ran, err := Self(t.Context(), nil, "spin")
	if err != nil || ran.CPU <= 0 || ran.Wall < 0.2 || ran.Foreign < 0 {
		t.Errorf("%+v, %v", ran, err)
	}
	if _, err := Command(t.Context(), nil, "/nowhere/at/all"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
}

func TestFresh(t *testing.T) {
	all, foreign, err := Fresh(t.Context(), 3, []string{"json"}, NewProgress(nil, "x"), nil, func(l *Latency) string { return fmt.Sprint(l.P50) })
	if err != nil || len(all) != 3 || len(foreign) != 3 || all[2].P50 != 7 {
		t.Errorf("%+v, %v, %v", all, foreign, err)
	}
	if _, _, err := Fresh(t.Context(), 3, []string{"fail"}, NewProgress(nil, "x"), nil, func(*Latency) string { return "" }); err == nil || !strings.Contains(err.Error(), "trial 1 of 3: harness: the reason") {
		t.Errorf("%v", err)
	}
}

func TestSummarize(t *testing.T) {
	yes, no := true, false
	r := Summarize([]*Report{
		{Command: "x", CPUPerBlockOp: 3, Lookup: &Latency{P50: 5, P99: 9}, KeptUp: &yes, Exact: &Exact{10, 0}},
		{Command: "x", CPUPerBlockOp: 1, Lookup: &Latency{P50: 7, P99: 9}, KeptUp: &no, Exact: &Exact{10, 2}},
		{Command: "x", CPUPerBlockOp: 2, Lookup: &Latency{P50: 6, P99: 30}, KeptUp: &yes, Exact: &Exact{10, 0}},
	})
	if r.Command != "x" || r.CPUPerBlockOp != 2 || r.Lookup.P50 != 6 || r.Lookup.P99 != 9 || *r.KeptUp || *r.Exact != (Exact{30, 2}) {
		t.Errorf("%+v, %+v, %v, %+v", r, r.Lookup, *r.KeptUp, r.Exact)
	}
	if one := Summarize([]*Report{{Wall: 4}}); one.Wall != 4 || one.Lookup != nil || one.KeptUp != nil || one.Exact != nil {
		t.Errorf("%+v", one)
	}
}

func TestQuantiles(t *testing.T) {
	samples := make([]uint32, 1000)
	for i := range samples {
		samples[len(samples)-1-i] = uint32(i + 1)
	}
	if l := NewLatency(samples); *l != (Latency{Samples: 1000, P50: 500, P99: 990, P999: 999, Max: 1000}) {
		t.Errorf("%+v", l)
	}
	if NewLatency(nil) != nil || Quantile([]int{}, 0.5) != 0 || Median(nil) != 0 {
		t.Error("something of nothing")
	}
	if m := Median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median %v, want 2.5", m)
	}
}

// TestBootstrap holds intervals against what is known. Medians of an odd sample of n
// values drawn n times: the chance that the median is at or below the k-th smallest is
// that of a binomial, so the interval's ends are known order statistics.
func TestBootstrap(t *testing.T) {
	var samples []float64
	for i := range 21 {
		samples = append(samples, float64(i+1))
	}
	e := Bootstrap(samples, 1)
	// P(median <= k) = P(Binomial(21, k/21) >= 11): 0.025 is crossed at k=7, 0.975 at 15.
	if e.Median != 11 || e.Low != 7 || e.High != 15 || e.N != 21 {
		t.Errorf("%+v, want 11 within 7 to 15", e)
	}
	if again := Bootstrap(samples, 1); again != e {
		t.Errorf("%+v the second time, %+v the first", again, e)
	}
	same := Bootstrap([]float64{5, 5, 5}, 2)
	if same.Low != 5 || same.High != 5 {
		t.Errorf("equal samples: %+v", same)
	}
	double := make([]float64, len(samples))
	for i, x := range samples {
		double[i] = 1000 + x
		samples[i] = 500 + x/2
	}
	r := BootstrapRatio(samples, double, 3)
	if math.Abs(r.Median-0.5) > 1e-9 || r.Low > 0.5 || r.High < 0.5 || r.Low < 0.49 || r.High > 0.51 {
		t.Errorf("ratio %+v, want close about 0.5", r)
	}
	if BootstrapRatio(nil, double, 1) != (Estimate{}) {
		t.Error("a ratio of nothing")
	}
}

func TestLoad(t *testing.T) {
	if s, ok := busy("cpu  100 20 30 400 50 6 7 8 0 0"); !ok || s != 1.71 {
		t.Errorf("busy %v, %v, want 1.71 s", s, ok)
	}
	for _, line := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h i j"} {
		if _, ok := busy(line); ok {
			t.Errorf("%q is taken", line)
		}
	}
	if s := own("12 (a) b) c) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0"); s != 3 {
		t.Errorf("own %v, want 3 s", s)
	}
	if own("") != 0 || own("1 (x) R") != 0 {
		t.Error("own time out of nothing")
	}
	at := time.Now()
	a := CPUSample{at: at, busy: 10, own: 1, ok: true}
	b := CPUSample{at: at.Add(2 * time.Second), busy: 14, own: 1.5, ok: true}
	if f := a.Foreign(b, 2.5); f != 0.5 {
		t.Errorf("foreign %v, want 0.5 CPUs", f)
	}
	if s := CPUs(); s.ok && (s.busy <= 0 || s.own < 0) {
		t.Errorf("%+v", s)
	}
}

func TestProgress(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b, "x")
	p.Sayf("soon")
	p.Alwaysf("now %d", 1)
	p.last = p.last.Add(-time.Minute)
	p.Sayf("later")
	NewProgress(nil, "x").Alwaysf("nowhere")
	if want := "harness x: now 1\nharness x: later\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestMachine(t *testing.T) {
	if m := ThisMachine(); m.CPUs < 1 || m.Go == "" || !strings.Contains(m.String(), "CPUs") {
		t.Errorf("%+v", m)
	}
}
