// SPDX-License-Identifier: Apache-2.0

package load

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var readingOpts = []cmp.Option{cmp.AllowUnexported(Reading{}, totals{}), cmpopts.IgnoreFields(Reading{}, "events")}

func TestParse(t *testing.T) {
	count := func(v uint32) Opt[uint32] { return Some(v) }
	tokens := func(v int32) Opt[int32] { return Some(v) }
	for _, c := range []struct {
		name, text string
		version    string
		want       []Reading
	}{
		{"vLLM 0.32", string(testdata(t, "vllm032.prom")), "", []Reading{
			{
				Rank: 0, Taken: t0, Running: count(2), Waiting: count(0), Usage: Some(0.0), ActiveUsage: Some(0.0), UsedTokens: tokens(0), MaxTokens: tokens(2048), ReportsSteps: true,
				totals: totals{generated: Some(0.0), prompt: Some(0.0), queries: Some(0.0), hits: Some(0.0)},
			},
			{
				Rank: 1, Taken: t0, Running: count(8), Waiting: count(4), Usage: Some(0.5079365079365079), ActiveUsage: Some(0.5079365079365079), UsedTokens: tokens(1040), MaxTokens: tokens(2048), ReportsSteps: true,
				totals: totals{generated: Some(900.0), prompt: Some(4000.0), queries: Some(4000.0), hits: Some(1000.0), steps: Some(320.0)},
			},
		}},
		{"an old vLLM, no labels of ranks, no end of line", "vllm:num_requests_running{model_name=\"m\"} 3\nvllm:gpu_cache_usage_perc 0.25\nvllm:gpu_prefix_cache_queries_total 8\nvllm:gpu_prefix_cache_hits 2 1796010653000", "", []Reading{
			{Taken: t0, Running: count(3), Usage: Some(0.25), ActiveUsage: Some(0.25), totals: totals{queries: Some(8.0), hits: Some(2.0)}},
		}},
		{"an engine that starts", "vllm:num_requests_running{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} NaN\nvllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"None\"} 1\n", "", []Reading{
			{Taken: t0, Running: count(0)},
		}},
		{"an exemplar, as OpenMetrics has it", "vllm:num_requests_running{engine=\"0\"} 1 # {trace_id=\"a\"} 0.5\n# EOF\n", "", []Reading{{Taken: t0, Running: count(1)}}},
		{"a hybrid vLLM's pool, in tokens", "vllm:num_requests_running{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"2000\",num_gpu_blocks=\"2917\",block_size=\"768\"} 1.0\n", "", []Reading{
			{Taken: t0, Running: count(0), Usage: Some(0.5), ActiveUsage: Some(0.5), UsedTokens: tokens(1000), MaxTokens: tokens(2000)},
		}},
		{"SGLang's priorities, and a counter that is called like a gauge", "sglang:num_running_reqs{priority=\"\",tp_rank=\"0\"} 14.0\nsglang:num_running_reqs{priority=\"-1\",tp_rank=\"0\"} 4.0\nsglang:num_running_reqs{priority=\"0\",tp_rank=\"0\"} 10.0\nsglang:num_running_reqs_total 100\nsglang:num_running_reqs_count 100\n", "", []Reading{
			{Taken: t0, Running: count(14)},
		}},
		{"SGLang's ranks of tensor parallelism", "sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 4\nsglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"1\"} 4\nsglang:num_queue_reqs{dp_rank=\"1\"} 2\nsglang:num_used_tokens{dp_rank=\"1\"} 30\nsglang:max_total_num_tokens{dp_rank=\"1\"} 120\nsglang:cache_hit_rate{dp_rank=\"1\"} 0.5\nsglang:gen_throughput{dp_rank=\"1\"} 12.5\nsglang:generation_tokens_total{model_name=\"m\"} 7\n", "", []Reading{
			{Rank: 1, Taken: t0, Running: count(4), Waiting: count(2), Usage: Some(0.25), UsedTokens: tokens(30), MaxTokens: tokens(120), HitRate: Some(0.5), Throughput: Some(12.5)},
		}},
		{"SGLang's loads as text", "sglang_num_running_reqs{dp_rank=\"0\"} 24\nsglang_num_waiting_reqs{dp_rank=\"0\"} 1\nsglang_num_waiting_uncached_tokens{dp_rank=\"0\"} 9\nsglang_memory_weight_gb{dp_rank=\"0\"} 15.5\nsglang_max_running_requests{dp_rank=\"0\"} 256\n", "", []Reading{
			{Taken: t0, Running: count(24), Waiting: count(1), WaitingUncached: count(9), PrefillPending: count(9), MaxRunning: count(256), Memory: Some(Memory{WeightGB: 15.5})},
		}},
		{"SGLang 0.5.23", string(testdata(t, "sglang0523_loads.json")), "0.5.23", []Reading{{
			Rank: 1, Taken: t0.Add(-1500 * time.Millisecond), Running: count(4), Waiting: count(0), WaitingUncached: count(2187), PrefillPending: count(2187),
			UsedTokens: tokens(59375), MaxTokens: tokens(120000), MaxRunning: count(64), Usage: Some(0.754), Throughput: Some(281.2), HitRate: Some(0.25),
			Memory: Some(Memory{15.234, 42.117, 1.882, 120000}), LoRA: Some(LoRA{3, 8, 0.375}), Queues: Some(Queues{3, 1, 0, 2}),
			Disaggregation: Some(Disaggregation{Mode: "prefill", PrefillPrealloc: 2, PrefillInflight: 1, TransferSpeedGBs: 12.5, TransferLatencyMs: 3.5}),
		}}},
		{"get_load", `[{"dp_rank":0,"num_reqs":27,"num_waiting_reqs":3,"num_tokens":401294,"num_pending_tokens":18384,"ts_tic":128374.55},{"dp_rank":1,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]`, "", []Reading{
			{Taken: t0, Running: count(24), Waiting: count(3), UsedTokens: tokens(382910)},
			{Rank: 1, Taken: t0, Running: count(0), Waiting: count(0), UsedTokens: tokens(0)},
		}},
		{"one bare object", `{"num_reqs":2,"num_waiting_reqs":1}`, "", []Reading{{Taken: t0, Running: count(1), Waiting: count(1)}}},
		{"odd values", `{"version":"x","loads":[{"dp_rank":"a","num_running_reqs":-1,"num_waiting_reqs":1e300,"token_usage":7,"gen_throughput":null,"max_running_requests":true}, {"dp_rank":-4,"num_running_reqs":1}, {"dp_rank":2}]}`, "x", []Reading{
			{Taken: t0, Waiting: count(1<<32 - 1), Usage: Some(1.0)},
		}},
		{"nothing of ours", "python_gc_objects_collected_total 1\n", "", nil},
		{"no ranks yet", `{"timestamp":"2026-11-30T11:50:55","version":"0.5.23","loads":[]}`, "0.5.23", nil},
	} {
		a, err := parse([]byte(c.text), t0)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if d := cmp.Diff(c.want, a.readings, append(readingOpts, cmpopts.EquateApproxTime(time.Millisecond))...); d != "" || a.version != c.version {
			t.Errorf("%s: version %q, want %q (-want +got):\n%s", c.name, a.version, c.version, d)
		}
	}
}

func TestParseErrors(t *testing.T) {
	many := strings.Builder{}
	for i := range MaxRanks + 1 {
		many.WriteString("vllm:num_requests_running{engine=\"" + strings.Repeat("1", i%9+1) + string(rune('0'+i%10)) + string(rune('0'+i/10%10)) + string(rune('0'+i/100%10)) + "\"} 1\n")
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", " \n", "empty answer"},
		{"cut off", `{"loads":[{"dp_rank":0`, "loads: "},
		{"cut off array", `[{`, "loads: "},
		{"another shape", `{"loads":7}`, "loads: "},
		{"a broken line of ours", "vllm:num_requests_running{engine=\"0\" 1\n", "metrics: "},
		{"too many ranks", many.String(), "more than 1024 ranks"},
		{"too many ranks of loads", "[" + strings.Repeat("{},", MaxRanks) + "{}]", "more than 1024"},
	} {
		if _, err := parse([]byte(c.text), t0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %q", c.name, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(testdata(f, "vllm032.prom"))
	f.Add(testdata(f, "sglang0523_loads.json"))
	f.Add([]byte(`[{"dp_rank":0,"num_reqs":27,"num_waiting_reqs":3}]`))
	f.Add([]byte("sglang:num_running_reqs 1 # {} 2\nsglang:token_usage +Inf\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := parse(text, t0)
		if err != nil {
			return
		}
		var k rank
		for i := range a.readings {
			r := &a.readings[i]
			if r.Rank < 0 || r.Taken.After(t0) || t0.Sub(r.Taken) > maxBacklog {
				t.Fatalf("rank %d, taken at %v", r.Rank, r.Taken)
			}
			for _, v := range []Opt[float64]{r.Usage, r.ActiveUsage, r.HitRate} {
				if !(v.Value >= 0 && v.Value <= 1) {
					t.Fatalf("a share of %v", v.Value)
				}
			}
			k.take(r, false)
			decodeRecord(t, k.now.Load().AppendRecord(nil, t0, true, true))
		}
	})
}

// TestRates follows counters over readings.
func TestRates(t *testing.T) {
	var k rank
	at, generated, queries, hits := 0, 0.0, 0.0, 0.0
	step := func(ms int, g, q, h float64) *Reading {
		at, generated, queries, hits = at+ms, generated+g, queries+q, hits+h
		k.take(&Reading{Taken: t0.Add(time.Duration(at) * time.Millisecond), totals: totals{generated: Some(generated), queries: Some(queries), hits: Some(hits)}}, false)
		return k.now.Load()
	}
	near := func(what string, got Opt[float64], want float64) {
		t.Helper()
		if !got.Known || got.Value < want-0.001 || got.Value > want+0.001 {
			t.Errorf("at %d ms: %s %v, want %v", at, what, got, want)
		}
	}
	r := step(0, 1000, 400, 100)
	if r.Throughput.Known {
		t.Errorf("throughput %v of one reading, want none", r.Throughput)
	}
	near("hit rate since the start", r.HitRate, 0.25)
	for range 20 {
		r = step(250, 100, 8, 8)
	}
	near("throughput", r.Throughput, 400)
	near("hit rate", r.HitRate, 1)
	r = step(10_000, 0, 0, 0)
	near("throughput after a pause", r.Throughput, 0)
	near("hit rate kept", r.HitRate, 1)
	for range 200 {
		r = step(250, 50, 10, 5)
	}
	near("throughput", r.Throughput, 200)
	near("hit rate of the window", r.HitRate, 0.5)
	if n := len(k.window.points); n > maxPoints {
		t.Errorf("%d points kept, want %d at most", n, maxPoints)
	}
	generated, queries, hits = 0, 0, 0 // a new process
	r = step(250, 10, 0, 0)
	if r.Throughput.Known || r.HitRate.Known {
		t.Errorf("rates %v, %v across a restart", r.Throughput, r.HitRate)
	}
	near("throughput of the new process", step(250, 10, 10, 1).Throughput, 40)
	for range 3000 { // as fast as the interval may be
		r = step(10, 1, 0, 0)
	}
	near("throughput of readings close together", r.Throughput, 100)
	if n := len(k.window.points); n > maxPoints {
		t.Errorf("%d points kept, want %d at most", n, maxPoints)
	}
}

func TestMerge(t *testing.T) {
	pulled := &Reading{Taken: t0, Running: Some(uint32(1)), Throughput: Some(10.0), HitRate: Some(0.5), ReportsSteps: true, Output: t0}
	pushed := &Reading{Taken: t0.Add(time.Second), Running: Some(uint32(2)), WaitingUncached: Some(uint32(7))}
	want := Reading{Taken: pushed.Taken, Running: Some(uint32(2)), WaitingUncached: Some(uint32(7)), Throughput: Some(10.0), HitRate: Some(0.5), ReportsSteps: true, Output: t0}
	for _, got := range []*Reading{merge(pulled, pushed), merge(pushed, pulled)} {
		if d := cmp.Diff(want, *got, readingOpts...); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	pushed.Taken = t0.Add(time.Minute)
	for _, got := range []*Reading{merge(pulled, pushed), merge(pushed, pulled), merge(nil, pushed), merge(pushed, nil)} {
		if got != pushed {
			t.Errorf("%+v, want the newer alone", got)
		}
	}
}
