// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kindex/gateway/fleet"
	mock "kindex/harness/mockworker/engine"
)

// mocks starts n engines that take pass for each pass.
func mocks(t testing.TB, n int, key string, pass time.Duration) []string {
	t.Helper()
	f, err := mock.OpenFleet(mock.Config{
		Engine: mock.VLLM, Model: "m", HTTP: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", APIKey: key, PassTime: pass,
	}, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	var urls []string
	for _, w := range f.Workers() {
		urls = append(urls, "http://"+w.HTTP())
	}
	return urls
}

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// served is a gateway that serves.
type served struct {
	*Gateway
	t   testing.TB
	url string
	log *logBuffer
	end func()
}

// startGateway starts a gateway before workers, and waits until it is ready.
func startGateway(t testing.TB, change func(*Config), workers ...string) *served {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	for _, w := range workers {
		if err := cfg.addWorker(w); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(&cfg)
	}
	s := &served{t: t, log: &logBuffer{}}
	g, err := New(&cfg, slog.New(slog.NewTextHandler(s.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Listen(); err != nil {
		t.Fatal(err)
	}
	s.Gateway, s.url = g, g.gate.scheme()+g.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Serve(ctx) }()
	s.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(s.end)
	if len(workers) > 0 {
		eventually(t, func() string { return strings.Join(g.unready(), ", ") })
	}
	return s
}

// reply is an answer of a gateway.
type reply struct {
	code   int
	body   string
	header http.Header
}

func (s *served) ask(method, url, key, body string) reply {
	s.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Header.Set("X-Kindex-Explain", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{resp.StatusCode, string(b), resp.Header}
}

// prompt is a body that asks for the tokens from first on.
func promptBody(first, n, tokens int, more string) string {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = first + i
	}
	b, _ := json.Marshal(ids) //nolint:errchkjson // numbers
	return fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d%s}`, b, tokens, more)
}

// TestGatewayServes: the second request for a prompt goes where the first one was
// cached, and finds there what was expected; everything is counted.
func TestGatewayServes(t *testing.T) {
	s := startGateway(t, nil, mocks(t, 3, "", 0)...)
	eventually(t, func() string { // an index hears of what happens once it listens
		return strings.Join(s.index.Unready(), ", ")
	})
	first := s.ask("POST", s.url+"/v1/completions", "", promptBody(1, 100, 2, ""))
	if first.code != 200 || first.header.Get("X-Kindex-Worker") == "" {
		t.Fatalf("%+v", first)
	}
	eventually(t, func() string {
		second := s.ask("POST", s.url+"/v1/completions", "", promptBody(1, 100, 2, ""))
		switch {
		case second.header.Get("X-Kindex-Worker") != first.header.Get("X-Kindex-Worker"):
			return "another worker than the first time"
		case !strings.Contains(second.header.Get("X-Kindex-Explain"), `"branch":"hit"`):
			return "no hit: " + second.header.Get("X-Kindex-Explain")
		case !strings.Contains(second.body, `"cached_tokens":96`):
			return "not what is cached: " + second.body
		case s.router.Stats().Matched == 0:
			return fmt.Sprintf("the index named nobody: %+v", s.router.Stats())
		}
		return ""
	})
	got := s.ask("GET", s.url+"/metrics", "", "")
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(got.body))
	if err != nil {
		t.Fatalf("%v in\n%s", err, got.body)
	}
	for name, want := range map[string]float64{"cache_answers_exact_total": 2, "lookups_matched_total": 1, "requests_in_flight": 0} {
		f := families["kindex_gateway_"+name]
		if f == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		v := f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		if v < want || want == 0 && v != 0 {
			t.Errorf("%s is %g, want %g or more", name, v, want)
		}
	}
	eventually(t, func() string { // nobody pushes: they are asked
		for _, w := range s.fleet.Workers() {
			if r := w.Holders[0].Reading(); r == nil || r.Pushed || r.Running < 0 {
				return fmt.Sprintf("%s: reading %+v", w.Spec.URL, r)
			}
		}
		return ""
	})
}

// metricNames are all series of a gateway's own. A name that is changed breaks
// somebody's dashboard.
var metricNames = strings.Fields(`
build_info requests_total time_to_first_token_seconds request_seconds tokenise_seconds lookup_seconds decide_seconds place_seconds
requests_in_flight own_answers_total malformed_requests_total unknown_requests_total retries_total hang_ups_total cut_answers_total
admitted_in_flight queue_length queued_total admission_refused_total
policy_branch_total tries_total unknown_model_total unplaced_total blind_total lookups_total lookups_failed_total lookups_matched_total
lookups_unknown_only_total unknown_holders_total other_block_size_total other_prompt_total drained_decisions_total
index_answered_total index_fail_open_total index_pauses_total index_paused index_lost_seconds_total index_loads_total index_blocks index_waiting_workers
cache_tokens_total cache_answers_total cache_answers_exact_total cache_entries cache_entries_bytes cache_entries_total cache_difference_total
vetoes_total vetoed_workers workers breaker_changes_total probes_total shed_total
worker_usable worker_ready worker_in_flight worker_prefill_in_flight_tokens worker_running worker_waiting worker_kv_usage worker_load_age_seconds
worker_blocks worker_silent_seconds worker_tries_total worker_cache_answers_total worker_cache_at_odds
prompts_total prompts_unknown_total tokenize_calls_total tokenize_failed_total tokenize_bytes_total tokenize_seconds_total tokenize_shared_total
tokenize_cache_entries tokenize_cache_bytes tokenize_cache_evicted_total tokenize_joined_total tokenize_confirmed_total tokenizer_local
load_questions_total load_question_failures_total load_questions_spared_total load_answers_total index_partial_total index_twice_total
refusals_total log_lines_dropped_total config_reloads_total config_reloads_failed_total
`)

// TestMetricNames holds the families against the list.
func TestMetricNames(t *testing.T) {
	s := startGateway(t, nil)
	var e exposition
	s.writeMetrics(&e)
	have := map[string]bool{}
	for line := range strings.Lines(string(e.b)) {
		if name, ok := strings.CutPrefix(line, "# TYPE kindex_gateway_"); ok {
			name, _, _ = strings.Cut(name, " ")
			if have[name] {
				t.Errorf("%s stands twice", name)
			}
			have[name] = true
		}
	}
	for _, name := range metricNames {
		if !have[name] {
			t.Errorf("%s is missing", name)
		}
		delete(have, name)
	}
	for name := range have {
		t.Errorf("%s is not in the list", name)
	}
}

// TestMetricsBounded: a scrape of a large fleet has a bound.
func TestMetricsBounded(t *testing.T) {
	s := startGateway(t, nil)
	for i := range maxWorkerSeries + 100 {
		if _, err := s.fleet.Add(fleet.Spec{URL: fmt.Sprintf("http://127.0.0.1:%d", 1+i), Models: []string{"m"}, Ranks: 1}); err != nil {
			t.Fatal(err)
		}
	}
	var e exposition
	s.writeMetrics(&e)
	if n := strings.Count(string(e.b), "kindex_gateway_worker_ready{"); n != maxWorkerSeries {
		t.Errorf("%d workers have series, want %d", n, maxWorkerSeries)
	}
	if len(e.b) > 4<<20 {
		t.Errorf("a scrape has %d bytes", len(e.b))
	}
}

const keyText = `# who may do what
user-key-12345
read   reader-key-1   reader
write  writer-key-1   deployer
admin  admin-key-12   ops
`

// TestKeysAndRoles: who may do what, at which address, and what an engine and the log
// see of it.
func TestKeysAndRoles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keys")
	engineKey := filepath.Join(dir, "engine")
	for name, text := range map[string]string{path: keyText, engineKey: "engine-secret\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	urls := mocks(t, 1, "engine-secret", 0)
	s := startGateway(t, func(c *Config) { c.APIKeyFile, c.AdminListen = path, "127.0.0.1:0" }, urls[0]+",api_key_file="+engineKey)
	admin := "http://" + s.adminLn.Addr().String()
	body := promptBody(1, 4, 1, "")
	for _, c := range []struct {
		method, url, key string
		code             int
		say              string
	}{
		{"POST", s.url + "/v1/completions", "", 401, "missing_api_key"},
		{"POST", s.url + "/v1/completions", "nobodys-key", 401, "invalid_api_key"},
		{"POST", s.url + "/v1/completions", "user-key-12345", 200, `"choices"`}, // the engine asks for a key of its own, and is shown that
		{"POST", s.url + "/v1/completions", "admin-key-12", 200, `"choices"`},
		{"GET", s.url + "/v1/models", "", 401, "missing_api_key"},
		{"GET", s.url + "/v1/models", "reader-key-1", 200, `"m"`},
		{"GET", s.url + "/health", "", 200, "ok"},
		{"GET", s.url + "/readyz", "", 200, "ready"},
		{"GET", s.url + "/metrics", "reader-key-1", 403, "asks for a key of role admin"},
		{"GET", s.url + "/metrics", "admin-key-12", 403, "admin-listen"},
		{"GET", s.url + "/workers", "admin-key-12", 403, "admin-listen"},
		{"GET", admin + "/metrics", "", 401, "missing_api_key"},
		{"GET", admin + "/metrics", "reader-key-1", 200, "kindex_gateway_build_info"},
		{"GET", admin + "/workers", "reader-key-1", 200, urls[0]},
		{"POST", admin + "/workers", "reader-key-1", 403, "role write"},
		{"POST", admin + "/workers", "writer-key-1", 202, "accepted"},
		{"GET", admin + "/debug/pprof/", "writer-key-1", 403, "role admin"},
		{"GET", admin + "/debug/pprof/goroutine?debug=1", "admin-key-12", 200, "goroutine profile"},
		{"GET", admin + "/livez", "", 200, "ok"},
		{"GET", admin + "/v1/models", "admin-key-12", 404, "unknown_url"},
	} {
		b := ""
		if c.method == "POST" {
			if b = body; strings.HasSuffix(c.url, "/workers") {
				b = `{"url":"http://127.0.0.1:9","models":["other"]}`
			}
		}
		got := s.ask(c.method, c.url, c.key, b)
		if got.code != c.code || !strings.Contains(got.body, c.say) {
			t.Errorf("%s %s with %q: %d %.300s, want %d with %q", c.method, c.url, c.key, got.code, got.body, c.code, c.say)
		}
		if c.code == 401 && !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s %s: no challenge: %v", c.method, c.url, got.header)
		}
	}
	eventually(t, func() string {
		for _, want := range []string{"who=deployer", "action=workers", "method=POST", "reason=no_key", "reason=wrong_key", "reason=role"} {
			if !strings.Contains(s.log.String(), want) {
				return "the log lacks " + want
			}
		}
		return ""
	})
	workers := s.ask("GET", admin+"/workers", "admin-key-12", "").body
	for _, secret := range []string{"engine-secret", "user-key-12345", "writer-key-1", "nobodys-key"} {
		if strings.Contains(s.log.String(), secret) || strings.Contains(workers, secret) {
			t.Errorf("%s stands in the log or in /workers", secret)
		}
	}
}

// TestExposed: beyond loopback, where nobody has to say who he is, workers cannot be
// changed.
func TestExposed(t *testing.T) {
	s := startGateway(t, func(c *Config) { c.Listen = "0.0.0.0:0" })
	s.url = strings.Replace(s.url, "[::]", "127.0.0.1", 1)
	if got := s.ask("POST", s.url+"/workers", "", `{"url":"http://127.0.0.1:9"}`); got.code != 403 || !strings.Contains(got.body, "open-admin") {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := s.ask("GET", s.url+"/workers", "", ""); got.code != 200 {
		t.Errorf("%d %s", got.code, got.body)
	}
	if !strings.Contains(s.log.String(), "listening beyond loopback without authentication") {
		t.Error("the log does not warn")
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
