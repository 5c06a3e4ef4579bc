// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/internal/kv"
)

func inMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// TestPassTime holds passes against the fits worked out by hand.
func TestPassTime(t *testing.T) {
	table := &Timing{Table: []Point{{100, 10}, {200, 30}, {1000, 60}}, Decode: [3]float64{2, 0, 0}, Pass: &PassFit{5, 0.1}, Reference: 50}
	steep := &Timing{Prefill: [3]float64{1, 0, 0}, Decode: [3]float64{1, 100, 0}, Reference: 200}
	for _, test := range []struct {
		what   string
		timing *Timing
		pass   pass
		used   int // of 100
		want   float64
	}{
		{"nothing", DefaultTiming(), pass{}, 0, 0},
		{"one prompt", DefaultTiming(), pass{prompt: 1000, prompts: 1, largest: 1000}, 10, 16.50142 + 15.18344 + 0.4209989},
		{"two prompts", DefaultTiming(), pass{prompt: 1000, prompts: 2, largest: 600}, 10, 16.50142 + 15.18344 + 0.4209989},
		{"answers, cache half full", DefaultTiming(), pass{decoding: 3}, 50, 5.74 + 27.005 - 6.435},
		{"both", DefaultTiming(), pass{prompt: 1000, prompts: 1, largest: 1000, decoding: 1}, 0, 16.50142 + 15.18344 + 0.4209989 + 5.74},
		{"on the table", table, pass{prompt: 150, prompts: 1, largest: 150}, 0, 20},
		{"at a point of it", table, pass{prompt: 200, prompts: 1, largest: 200}, 0, 30},
		{"above it", table, pass{prompt: 1800, prompts: 1, largest: 1800}, 0, 90},
		{"below it", table, pass{prompt: 50, prompts: 1, largest: 50}, 0, 0},
		{"several prompts", table, pass{prompt: 400, prompts: 3, largest: 150}, 0, 45},
		{"several prompts, one of them long", table, pass{prompt: 250, prompts: 2, largest: 240}, 0, 31.5},
		{"never below a millisecond", &Timing{Decode: [3]float64{-3, 0, 0}}, pass{decoding: 1}, 0, 1},
		{"a share of the measured cache", steep, pass{decoding: 1}, 100, 51},
		{"a full one", &Timing{Decode: [3]float64{0, 10, 0}, Reference: 10}, pass{decoding: 1}, 100, 10},
	} {
		if got := inMs(test.timing.took(&test.pass, test.used, 100)); math.Abs(got-test.want) > 1e-4 {
			t.Errorf("%s: %v ms, want %v", test.what, got, test.want)
		}
	}
}

// TestCalibrationFile reads each form, and refuses what is none, in one line.
func TestCalibrationFile(t *testing.T) {
	const decode = `"decode_fit_vs_utilisation_ms":{"d":1,"e":2,"f":3}`
	for _, test := range []struct {
		file string
		want Timing
	}{
		{`{"prefill_ms":[1,2,3],` + decode + `}`, Timing{Prefill: [3]float64{1, 2, 3}}},
		{`{"prefill_fit_ms":{"a_ms":1,"b_ms_per_token":2,"c_ms_per_token2":3},"decode_ms":{"d_ms":1,"e_ms_per_u":2,"f_ms_per_u2":3}}`, Timing{Prefill: [3]float64{1, 2, 3}}},
		{
			`{"prefill_table_ms":[[512,9],[64,3]],"prefill_pass_ms":{"intercept_ms":4,"ms_per_token":0.5},"kv_capacity_tokens":1000,` + decode + `}`,
			Timing{Table: []Point{{64, 3}, {512, 9}}, Pass: &PassFit{4, 0.5}, Reference: 1000},
		},
		{
			`{"prefill_points_ms":{"512":{"median_ms":9},"64":3},"kv_capacity_blocks":100,"block_size":16,"request_overhead_ms":1.5,` + decode + `}`,
			Timing{Table: []Point{{64, 3}, {512, 9}}, Reference: 1600, Blocks: 100, BlockSize: 16, Overhead: 1500 * time.Microsecond},
		},
	} {
		test.want.Decode = [3]float64{1, 2, 3}
		got, err := ParseTiming([]byte(test.file))
		if err != nil {
			t.Errorf("%s: %v", test.file, err)
		} else if diff := cmp.Diff(&test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.file, diff)
		}
	}
	for file, want := range map[string]string{
		``:                                    "EOF",
		`[]`:                                  "cannot unmarshal",
		`{` + decode + `}`:                    "prefill is told in 0 forms",
		`{"prefill_ms":[1,2,3]}`:              "decode is told in 0 forms",
		`{"prefill_ms":[1,2],` + decode + `}`: "2 coefficients: must be 3",
		`{"prefill_ms":{"a":1,"b":2},` + decode + `}`:                                                        "must be [x,y,z] or an object of three",
		`{"prefill_ms":[1,2,3],"prefill_table_ms":[[1,2],[3,4]],` + decode + `}`:                             "told in 2 forms",
		`{"prefill_table_ms":[[1,2]],` + decode + `}`:                                                        "1 measured prefills: must be 2",
		`{"prefill_table_ms":[[1,2],[3]],` + decode + `}`:                                                    "row 1 has 1 numbers",
		`{"prefill_table_ms":[[1,2],[1,3]],` + decode + `}`:                                                  "two prefills of 1 tokens",
		`{"prefill_table_ms":[[1,2],[2,-3]],` + decode + `}`:                                                 "in -3 ms",
		`{"prefill_points_ms":{"x":1,"2":2},` + decode + `}`:                                                 `"x": must be a number of tokens`,
		`{"prefill_points_ms":{"1":{},"2":2},` + decode + `}`:                                                "without median_ms",
		`{"prefill_ms":[1e300,2,3],` + decode + `}`:                                                          "coefficient 1e+300",
		`{"prefill_ms":[1,2,3],"colour":1,` + decode + `}`:                                                   `unknown field "colour"`,
		`{"prefill_ms":[1,2,3],"kv_capacity_blocks":5,` + decode + `}`:                                       "needs block_size",
		`{"prefill_ms":[1,2,3],"block_size":0,` + decode + `}`:                                               "block_size 0: must be 1",
		`{"prefill_ms":[1,2,3],"request_overhead_ms":-1,` + decode + `}`:                                     "request_overhead_ms -1",
		`{"prefill_ms":[1,2,3],"prefill_pass_ms":{"intercept_ms":-1},` + decode + `}`:                        "prefill_pass_ms",
		`{"prefill_ms":[1,2,3],"kv_capacity_blocks":5,"kv_capacity_tokens":5,"block_size":1,` + decode + `}`: "must be one of them",
		`{"prefill_ms":[1,2,3],` + decode + `} {}`:                                                           "something follows",
	} {
		_, err := ParseTiming([]byte(file))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", file, err, want)
		}
	}
}

// FuzzCalibration parses anything: a timing that is taken is one that can be used.
func FuzzCalibration(f *testing.F) {
	f.Add([]byte(`{"prefill_points_ms":{"512":{"median_ms":9},"64":3},"kv_capacity_blocks":100,"block_size":16,"decode_ms":[1,2,3]}`), 100, 7)
	f.Fuzz(func(t *testing.T, b []byte, tokens, used int) {
		timing, err := ParseTiming(b)
		if err != nil {
			return
		}
		p := pass{prompt: max(tokens, 0), prompts: 2, largest: max(tokens, 0) / 2, decoding: 1}
		if d := timing.took(&p, max(used, 0), 1000); d < 0 || d > maxMs*time.Millisecond {
			t.Errorf("a pass of %v", d)
		}
	})
}

// TestCalibrationFlags tells the engine its times by flags.
func TestCalibrationFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fit.json")
	if err := os.WriteFile(path, []byte(`{"prefill_ms":[1,2,3],"decode_ms":[1,2,3],"block_size":8,"kv_capacity_tokens":800}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--calibration /nowhere/x.json":        "--calibration: open /nowhere/x.json",
		"--calibration " + path + " --pass 1s": "--pass: goes with neither",
		"--speed 2 --pass 1s":                  "--pass: goes with neither",
		"--speed 0":                            "--speed 0: must be at least 0.001",
		"--speed -1":                           "--speed -1: must be 0.001 to",
		"--speed NaN":                          "--speed NaN",
		"--budget 0":                           "--budget 0: must be at least 1",
	} {
		var out, errs bytes.Buffer
		if code := Main(t.Context(), strings.Fields("--engine vllm "+args), &out, &errs); code != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit %d and %q, want 2 and %q", args, code, errs.String(), want)
		}
	}
	s := start(t, "--engine vllm --speed 1000 --calibration "+path)
	var fleet FleetStatus
	s.get(t, "/admin/fleet", &fleet)
	loads := fleet.Workers[0].Loads
	if s.BlockSize != 8 || loads[0].MaxTokens != 800 {
		t.Errorf("blocks of %d tokens and %d in all, the file says 8 and 800", s.BlockSize, loads[0].MaxTokens)
	}
}

// timed is one request's times in a run, in ms.
type timed struct{ Arrived, Admitted, First, Ended float64 }

// TestVirtualTime runs requests in a model's own time: what each waited for and
// when it got its tokens is the sum of the passes before.
func TestVirtualTime(t *testing.T) {
	var ended []Stats
	cfg := Config{
		Engine: VLLM, BlockSize: 4, Budget: 100, MaxRunning: 1, Speed: 2,
		Timing: &Timing{Prefill: [3]float64{10, 1, 0}, Decode: [3]float64{4, 0, 0}, Overhead: 6 * time.Millisecond},
		Ended:  func(s Stats) { ended = append(ended, s) },
	}
	m, err := NewModel(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range []int{150, 20} {
		if _, err := m.Submit(Request{ID: string(rune('a' + i)), Tokens: make([]uint32, n), MaxTokens: 3}); err != nil {
			t.Fatal(err)
		}
	}
	for ok := true; ok; {
		_, ok = m.Step()
	}
	var got []timed
	for i := range ended {
		s := &ended[i]
		ms := func(at time.Time) float64 { return inMs(at.Sub(m.begun)) }
		got = append(got, timed{ms(s.Arrived), ms(s.Admitted), ms(s.FirstToken), ms(s.Ended)})
	}
	// At twice the speed: 3 ms on the way; 100 and 50 tokens in 55 and 30 ms, the
	// second's 20 of which 16 are cached in 7 ms; 2 ms for each token more.
	want := []timed{{0, 3, 88, 92}, {0, 92, 99, 103}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if q := ended[1].Queued(); q != 92*time.Millisecond || ended[1].Cached != 16 || ended[1].Output != 3 || ended[1].Finish != filled {
		t.Errorf("queued for %v, %+v", q, ended[1])
	}
	if m.Now() != 103*time.Millisecond {
		t.Errorf("the time is %v, want 103 ms", m.Now())
	}
	m.Wait(time.Second)
	if m.Now() != time.Second {
		t.Errorf("the time is %v after waiting for a second", m.Now())
	}
}

// TestSeeded makes the same run twice: everything is equal, times included.
func TestSeeded(t *testing.T) {
	run := func(seed uint64) (stats []Stats, events []kv.Event) {
		m, err := NewModel(Config{Engine: VLLM, BlockSize: 4, Blocks: 50, Budget: 40, Timing: DefaultTiming(), Seed: seed, Ended: func(s Stats) { stats = append(stats, s) }})
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range 60 {
			if _, err := m.Submit(Request{ID: string(rune('A' + i)), Tokens: tokensOf(rng, 1+rng.IntN(60)), MaxTokens: 1 + rng.IntN(20)}); err != nil {
				t.Fatal(err)
			}
			for range rng.IntN(8) {
				told, _ := m.Step()
				events = append(events, told...)
			}
		}
		for ok := true; ok; {
			var told []kv.Event
			told, ok = m.Step()
			events = append(events, told...)
		}
		return stats, events
	}
	stats, events := run(1)
	again, events2 := run(1)
	if diff := cmp.Diff(stats, again); diff != "" || len(stats) != 60 {
		t.Errorf("%d requests; the same run twice:\n%s", len(stats), diff)
	}
	if diff := cmp.Diff(events, events2); diff != "" {
		t.Errorf("the same run twice:\n%s", diff)
	}
	if _, other := run(2); cmp.Equal(events, other) {
		t.Error("another seed and the same answers")
	}
}
