// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bufio"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"kindex/internal/kv"

	kindexv1 "kindex/proto/kindex/v1"
	"kindex/relay/feed"
)

// metricNames is the golden list of what we export: type and labels of each.
const metricNames = "testdata/metrics.txt"

// TestMetricNames: names, types and labels change only on purpose, and promlint
// has nothing to say. UPDATE_GOLDEN=1 writes the list anew.
func TestMetricNames(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	h.register(reg("1", "m", ""))
	st := h.rank("m", "", "1", 0)
	h.put(st, kv.TierDevice, "", "", 1, tokens(1, 8), nil)
	h.must(200, "POST", "/query", query(t, tokens(1, 8), ""))
	if _, err := dialRPC(t, h.Host).stats.GetStats(t.Context(), &kindexv1.GetStatsRequest{}); err != nil {
		t.Fatal(err)
	}
	text := h.must(200, "GET", "/metrics", "")

	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "kindex_") {
			t.Errorf("promlint: %s: %s", p.Metric, p.Text)
		}
	}
	var got []string
	types := map[string]string{}
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		line := sc.Text()
		if rest, ok := strings.CutPrefix(line, "# TYPE kindex_"); ok {
			name, kind, _ := strings.Cut(rest, " ")
			types[name] = kind
			continue
		}
		rest, ok := strings.CutPrefix(line, "kindex_")
		if !ok {
			continue
		}
		series, _, _ := strings.Cut(rest, " ")
		name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); types[base] == "histogram" {
				name = base
			}
		}
		var keys []string
		for l := range strings.SplitSeq(labels, ",") {
			if key, _, _ := strings.Cut(l, "="); key != "" && key != "le" {
				keys = append(keys, key)
			}
		}
		got = append(got, "kindex_"+name+" "+types[name]+" ["+strings.Join(keys, " ")+"]")
	}
	// Some series need a batch before they show.
	for _, m := range streamMetrics {
		_, rest, _ := strings.Cut(m.desc.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		kind := "counter"
		if m.kind == prometheus.GaugeValue {
			kind = "gauge"
		}
		got = append(got, name+" "+kind+" [dp_rank instance_id model_name routing_group tenant_id]")
	}
	// Not where the kernel knows no nodes, or tells nobody.
	got = append(got, "kindex_memory_placed_bytes gauge [policy wanted]", "kindex_memory_remote_ratio gauge [wanted]")
	slices.Sort(got)
	got = slices.Compact(got)
	list := strings.Join(got, "\n") + "\n"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(metricNames, []byte(list), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(metricNames)
	if err != nil {
		t.Fatal(err)
	}
	if list != string(want) {
		t.Errorf("metrics differ from %s (UPDATE_GOLDEN=1 writes it anew):\n%s", metricNames, list)
	}
	for _, line := range []string{
		"kindex_index_memberships 2", "kindex_index_blocks 2", "kindex_index_holders 1", "kindex_workers 1",
		"kindex_lookup_seconds_count 1", "kindex_log_lines_dropped_total 0",
		`kindex_http_requests_total{code="200",route="/query"} 1`, `kindex_http_requests_total{code="201",route="/register"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	for _, want := range []string{"go_goroutines ", "process_resident_memory_bytes "} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no metric %q", want)
		}
	}
}

// TestMetricsBounded: streams past the bound share one set of series, and what
// they count is added up.
func TestMetricsBounded(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.MetricsMaxStreams = 2 })
	h.register(reg("1", "m", `,"dp_size":3`))
	h.register(strings.Replace(reg("2", "m", `,"dp_size":40`), "21001", "23001", 1))
	text := h.must(200, "GET", "/metrics", "")
	labels := func(id, rank string) string {
		return `{dp_rank="` + rank + `",instance_id="` + id + `",model_name="m",routing_group="default",tenant_id="default"} `
	}
	for series, n := range map[string]int{
		"kindex_stream_gaps_total" + labels("1", "0"):                                                            1,
		"kindex_stream_gaps_total" + labels("1", "1"):                                                            1,
		"kindex_stream_gaps_total" + labels("1", "2"):                                                            0,
		`kindex_stream_gaps_total{dp_rank="",instance_id="_other",model_name="",routing_group="",tenant_id=""} `: 1,
	} {
		if got := strings.Count(text, "\n"+series); got != n {
			t.Errorf("%s: %d series, want %d", series, got, n)
		}
	}
	if got := strings.Count(text, "\nkindex_stream_gaps_total{"); got != 3 {
		t.Errorf("%d series for 43 streams, want 3", got)
	}
	a := StreamStatus{Status: feed.Status{LastSeq: 7, HasSeq: true, Gaps: 1}, Dropped: map[string]uint64{"x": 1}}
	b := StreamStatus{Status: feed.Status{LastSeq: 5, HasSeq: true, Gaps: 2}, Dropped: map[string]uint64{"x": 2, "y": 1}}
	var s series
	s.add(&a, time.Now())
	s.add(&b, time.Now())
	for i, m := range streamMetrics {
		switch name := m.desc.String(); {
		case strings.Contains(name, "stream_gaps_total") && s.values[i] != 3:
			t.Errorf("gaps: got %v, want 3", s.values[i])
		case strings.Contains(name, "stream_last_sequence") && s.values[i] != 7:
			t.Errorf("last sequence: got %v, want the greatest, 7", s.values[i])
		case strings.Contains(name, "stream_age_seconds") && s.known[i]:
			t.Error("an age without a batch")
		}
	}
	if s.dropped["x"] != 3 || s.dropped["y"] != 1 {
		t.Errorf("drops: got %v", s.dropped)
	}
}

// TestHistogram: parallel observers lose nothing, and each lands in its bucket.
func TestHistogram(t *testing.T) {
	var h histogram
	var wg sync.WaitGroup
	const each = 1_000
	for g := range 2 * histogramStripes {
		wg.Go(func() {
			for range each {
				h.observe(g, 30*time.Microsecond)
			}
		})
	}
	wg.Wait()
	h.observe(-1, -time.Second) // a clock that went back
	h.observe(0, time.Hour)
	counts := map[int]uint64{}
	for s := range h.stripes {
		for i := range h.stripes[s].buckets {
			counts[i] += h.stripes[s].buckets[i].Load()
		}
	}
	in, _ := slices.BinarySearch(bucketBounds[:], 30*time.Microsecond)
	if counts[in] != 2*histogramStripes*each || counts[0] != 1 || counts[len(bucketBounds)] != 1 {
		t.Errorf("got %v", counts)
	}
	if got := testing.AllocsPerRun(100, func() { h.observe(3, time.Millisecond) }); got != 0 {
		t.Errorf("%v allocations to observe", got)
	}
}

func BenchmarkHistogramParallel(b *testing.B) {
	var h histogram
	var next int
	var mu sync.Mutex
	b.RunParallel(func(pb *testing.PB) {
		mu.Lock()
		next++
		stripe := next
		mu.Unlock()
		for pb.Next() {
			h.observe(stripe, 30*time.Microsecond)
		}
	})
}
