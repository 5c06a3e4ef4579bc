// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"context"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"kindex/harness/trial"
)

func TestSchedule(t *testing.T) {
	rows := []Row{{At: 10 * time.Second}, {At: 13 * time.Second}, {At: math.MaxInt64}}
	for speedup, want := range map[float64][]time.Duration{
		1:      {0, 3 * time.Second, math.MaxInt64 - 10*time.Second},
		3:      {0, time.Second, (math.MaxInt64 - 10*time.Second) / 3},
		1e-300: {0, math.MaxInt64, math.MaxInt64},
		5e-324: {0, math.MaxInt64, math.MaxInt64},
		1e300:  {0, 0, 0},
	} {
		got := schedule(rows, speedup)
		for i := range want {
			if math.Abs(float64(got[i]-want[i])) > 1e-15*float64(want[i]) {
				t.Errorf("%g times as fast: %v, want %v", speedup, got, want)
			}
		}
	}
	if got := schedule([]Row{{At: math.MinInt64}, {At: math.MaxInt64}}, 1); got[1] != math.MaxInt64 {
		t.Errorf("from end to end: %v", got)
	}
}

// TestPace runs in virtual time: each at its time, at once when late, none after the
// end.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		due := []time.Duration{0, 0, 5 * time.Millisecond, time.Second, 2 * time.Second, time.Hour, math.MaxInt64}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		var at []time.Duration
		n := pace(ctx, began, due, func(i int) {
			if i != len(at) {
				t.Errorf("%d after %d", i, len(at))
			}
			at = append(at, time.Since(began))
			if i == 3 {
				time.Sleep(3 * time.Second) // late for the next one
			}
		})
		want := []time.Duration{0, 0, 5 * time.Millisecond, time.Second, 4 * time.Second, time.Hour}
		if n != len(want) || !slices.Equal(at, want) || time.Since(began) != 2*time.Hour {
			t.Errorf("%d sent at %v, want %v; ended after %v", n, at, want, time.Since(began))
		}
		cancel()
		if n := pace(ctx, began, due, func(int) { t.Error("sent after the end") }); n != 0 {
			t.Errorf("%d sent after the end", n)
		}
	})
}

func TestHistogram(t *testing.T) {
	for v := time.Duration(1); v > 0 && v < math.MaxInt64/2; v = v*3/2 + 1 {
		if got := value(bucket(v)); math.Abs(float64(got-v)) > 0.008*float64(v)+0.5 {
			t.Errorf("%d is told as %d", v, got)
		}
	}
	var h histogram
	var all []time.Duration
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		d := time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond))
		h.add(d)
		all = append(all, d)
	}
	h.add(-5)
	all = append(all, 0)
	slices.Sort(all)
	for _, p := range []float64{0, 0.5, 0.9, 0.99, 1} {
		want := trial.Quantile(all, p)
		if got := h.quantile(p); math.Abs(float64(got-want)) > 0.01*float64(want)+1 {
			t.Errorf("p%g: %v, want %v", 100*p, got, want)
		}
	}
	if h.quantile(1) != all[len(all)-1] || (&histogram{}).quantile(0.5) != 0 {
		t.Error("the ends")
	}
}

// TestAnswer feeds one answer whole, cut at every place, and byte by byte.
func TestAnswer(t *testing.T) {
	const text = ": a comment\r\n\r\nevent: x\ndata: {\"id\":\"a\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}\n\n" +
		"data: {\"id\":\"a\",\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n" +
		"data:{\"id\":\"a\",\"choices\":[{\"delta\":{\"content\": \"say \\\"usage\\\":{\"},\"finish_reason\":null}]}\n\n" +
		"data: {\"id\":\"a\",\"choices\":[{\"delta\":{\"reasoning_content\":\"z\",\"content\":null}}]}\r\n\r\n" +
		"data: {\"id\":\"a\",\"choices\":[{\"text\":\"\"}]}\n\n" +
		"data: {\"id\":\"a\",\"choices\":[{\"text\":\"end\",\"finish_reason\": \"stop\"}],\"usage\":{\"prompt_tokens\":9}}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\ndata: [DONE]\n\n"
	check := func(parts ...string) {
		t.Helper()
		rec := &newRecords(make([]Row, 1), make([]time.Duration, 1))[0]
		rec.Error = ""
		var gaps histogram
		a := answer{rec: rec, gaps: &gaps}
		for i, p := range parts {
			if err := a.feed([]byte(p), time.Duration(i)); err != nil {
				t.Fatal(err)
			}
		}
		if !a.ended || rec.ID != "a" || rec.Pieces != 4 || rec.Finish != "stop" || rec.Prompt != 7 || rec.Completion != 4 || rec.Cached != 3 || rec.Error != "" || gaps.n.Load() != 3 || rec.First > rec.Last {
			t.Fatalf("%v, %+v", a.ended, rec)
		}
	}
	check(text)
	for i := range text {
		check(text[:i], text[i:])
	}
	check(strings.Split(text, "")...)
}

func TestAnswerErrors(t *testing.T) {
	for in, want := range map[string]string{
		`{"error":{"message":"m","code":400}}`:                 "error 400",
		`{"error":{"type":"overloaded"}}`:                      "error overloaded",
		`{"error":{"code":"` + strings.Repeat("x", 99) + `"}}`: "error " + strings.Repeat("x", maxErrorName),
		`{"error":"text"}`:                                     "error unnamed",
		`[1`:                                                   errProtocol,
		`{"error":null,"id":"q"}`:                              "",
	} {
		rec := Record{First: unknown}
		a := answer{rec: &rec, gaps: &histogram{}}
		if err := a.feed([]byte("data: "+in+"\n"), 0); err != nil || rec.Error != want {
			t.Errorf("%s: %q, %v; want %q", in, rec.Error, err, want)
		}
	}
	a := answer{rec: &Record{}, gaps: &histogram{}}
	long := make([]byte, maxEvent)
	if a.feed(long, 0) != nil || a.feed(long, 0) == nil {
		t.Error("an endless line is taken")
	}
}

// TestForms finds requests under the ids that engines and gateways give them.
func TestForms(t *testing.T) {
	f := newFleet("http://x")
	for _, q := range []*served{{ID: "cmpl-a-0"}, {ID: "b", ClientID: "mine"}, {ID: "chatcmpl-c"}, {ID: "d"}} {
		f.keep(q)
	}
	for _, test := range [][3]string{{"a", "", "cmpl-a-0"}, {"x", "cmpl-a", "cmpl-a-0"}, {"mine", "d", "b"}, {"x", "chatcmpl-c", "chatcmpl-c"}, {"c", "", "chatcmpl-c"}, {"x", "chatcmpl-d", "d"}, {"x", "y", ""}, {"x", "", ""}} {
		got := ""
		if q := f.of(test[0], test[1]); q != nil {
			got = q.ID
		}
		if got != test[2] {
			t.Errorf("sent %q, answered %q: %q, want %q", test[0], test[1], got, test[2])
		}
	}
}

// FuzzAnswer: however an answer is cut, its record is the same, and sound.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("data: {\"id\":\"a\",\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\ndata: [DONE]\n\n"), 9)
	f.Add([]byte("data:{\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":-3}}}\r\n"), 3)
	f.Add([]byte("data: {\"error\":{\"code\":5}}\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, at int) {
		read := func(parts ...[]byte) (*Record, bool) {
			rec := &newRecords(make([]Row, 1), make([]time.Duration, 1))[0]
			rec.Error = ""
			a := answer{rec: rec, gaps: &histogram{}}
			for _, p := range parts {
				if a.feed(p, 1) != nil {
					return &Record{}, false
				}
			}
			if rec.Pieces < 0 || rec.Prompt < unknown || rec.Cached < unknown || rec.Pieces > 0 && rec.First < 0 || len(rec.Error) > utf8.UTFMax*maxErrorName+len("error ") {
				t.Errorf("%+v", rec)
			}
			return &Record{ID: rec.ID, Pieces: rec.Pieces, Prompt: rec.Prompt, Cached: rec.Cached, Completion: rec.Completion, Finish: rec.Finish, Error: rec.Error}, a.ended
		}
		at = min(max(at, 0), len(in))
		whole, ended := read(in)
		cut, alsoEnded := read(in[:at], in[at:])
		if !reflect.DeepEqual(whole, cut) || ended != alsoEnded {
			t.Errorf("%+v, %v; cut at %d: %+v, %v", whole, ended, at, cut, alsoEnded)
		}
	})
}
