// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/valyala/fasthttp"

	"kindex/gateway/fleet"
	"kindex/gateway/fleet/enroll"
	"kindex/gateway/health"
	"kindex/gateway/upstream"
)

// workersRig is /workers over engines that never answer, but for those that are told to.
func workersRig(t testing.TB) *Workers {
	t.Helper()
	get := upstream.New(upstream.DefaultOptions())
	r := fleet.NewRegistry()
	p := enroll.New(r, get, enroll.Options{First: 5 * time.Millisecond, Most: 50 * time.Millisecond}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { p.Close(); r.Close(); get.Close() })
	return &Workers{Fleet: r, Prober: p, Drain: time.Minute}
}

// ask asks as a client does, and decodes the answer.
func (s *Workers) ask(t testing.TB, method, path, body string) (int, map[string]any) {
	t.Helper()
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.SetMethod(method)
	ctx.Request.SetRequestURI(path)
	ctx.Request.SetBodyString(body)
	s.Handle(&ctx)
	var v map[string]any
	if err := json.Unmarshal(ctx.Response.Body(), &v); err != nil {
		t.Fatalf("%s %s: %v in %q", method, path, err, ctx.Response.Body())
	}
	if at, _ := v["location"].(string); at != string(ctx.Response.Header.Peek("Location")) {
		t.Errorf("%s %s: location %q, and %q in the header", method, path, at, ctx.Response.Header.Peek("Location"))
	}
	return ctx.Response.StatusCode(), v
}

// must asks and wants a status.
func (s *Workers) must(t testing.TB, status int, method, path, body string) map[string]any {
	t.Helper()
	got, v := s.ask(t, method, path, body)
	if got != status {
		t.Fatalf("%s %s %s: status %d, want %d: %v", method, path, body, got, status, v)
	}
	return v
}

func message(v map[string]any) string {
	e, _ := v["error"].(map[string]any)
	m, _ := e["message"].(string)
	return m
}

// vllmAt is an engine of one model.
func vllmAt(t testing.TB, model string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/v1/models":
			_, _ = fmt.Fprintf(w, `{"data":[{"id":%q,"owned_by":"vllm"},{"id":"l","parent":%q}]}`, model, model)
		case "/metrics":
			_, _ = fmt.Fprint(w, `vllm:cache_config_info{block_size="16",engine="0"} 1`)
		default:
			http.NotFound(w, q)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// waitFor waits for what must come.
func waitFor(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(end) {
			t.Fatalf("%s: it never came", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func TestWorkersShapes(t *testing.T) {
	s := workersRig(t)
	e := vllmAt(t, "m")
	got := s.must(t, 202, "POST", "/workers", fmt.Sprintf(`{"url":%q,"api_key":"hunter2","labels":{"z":"1"},"dp_rank":0,"health":{"timeout_secs":3}}`, e.URL))
	id, _ := got["worker_id"].(string)
	want := map[string]any{
		"status": "accepted", "worker_id": id, "url": e.URL, "location": "/workers/" + id, "ignored": []any{"dp_rank"},
		"message": "the engine is asked what it is; the worker joins when it has answered",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("POST (-want +got):\n%s", d)
	}
	waitFor(t, "the worker", func() bool { return s.Fleet.Pool("m") != nil })
	w := s.Fleet.Get(id).Worker()
	waitFor(t, "the end of its job", func() bool { return s.Fleet.Get(id).Job().Status == "done" })
	w.SetState(fleet.Ready)
	w.Steer(fleet.Wedged|fleet.FaultyCache, true)
	w.Holders[0].Take(fleet.Work{Prompt: 100, Cached: 40, Stream: true})
	r := &fleet.Reading{At: fleet.Now(), Pushed: true, Running: 3, Waiting: 0, WaitingUncached: -1, Usage: 0.25, ActiveUsage: -1, Throughput: -1, MaxRunning: 256, PrefillPending: -1, SilenceMS: -1}
	w.Holders[0].Stamp(r)
	w.Holders[0].SetReading(r)

	list := s.must(t, 200, "GET", "/workers", "")
	one := s.must(t, 200, "GET", "/workers/"+url.PathEscape(e.URL), "")
	delete(one["holders"].([]any)[0].(map[string]any), "reading_age_ms")
	all := list["workers"].([]any)[0].(map[string]any)
	delete(all["holders"].([]any)[0].(map[string]any), "reading_age_ms")
	for _, v := range []map[string]any{one, all} {
		delete(v, "last_contact_age_ms")
	}
	wantOne := map[string]any{
		"id": id, "model_id": "m", "url": e.URL, "models": []any{map[string]any{"id": "m"}, map[string]any{"id": "l", "parent": "m"}},
		"worker_type": "regular", "connection_mode": "http", "runtime_type": "vllm", "labels": map[string]any{"z": "1"}, "priority": 50.0, "cost": 1.0,
		"dp_size": 1.0, "kv_block_size": 16.0, "health": map[string]any{"timeout_secs": 3.0}, "max_connection_attempts": 20.0,
		"is_healthy": true, "status": "ready", "load": 1.0, "http2": false, "stalled": "wedged",
		"engine_load": map[string]any{"dp_rank_count": 1.0, "loads": []any{map[string]any{
			"dp_rank": 0.0, "num_running_reqs": 3.0, "num_waiting_reqs": 0.0, "token_usage": 0.25, "max_running_requests": 256.0,
		}}},
		"in_flight": 1.0, "vetoes": []any{"wedged", "faulty_cache"}, "instance_id": e.URL, "has_api_key": true,
		"holders": []any{map[string]any{
			"dp_rank": 0.0, "in_flight": 1.0, "prefill_tokens_in_flight": 60.0, "streams": 1.0, "in_flight_not_in_reading": 0.0, "reading_pushed": true,
		}},
	}
	if d := cmp.Diff(wantOne, one); d != "" {
		t.Errorf("GET one, by its URL (-want +got):\n%s", d)
	}
	if d := cmp.Diff(one, all); d != "" {
		t.Errorf("GET all is not GET one (-one +all):\n%s", d)
	}
	wantStats := map[string]any{
		"total_workers": 1.0, "healthy_workers": 1.0, "total_models": 2.0, "total_load": 1.0, "by_type": map[string]any{"regular": 1.0, "prefill": 0.0, "decode": 0.0},
	}
	if d := cmp.Diff(wantStats, list["stats"]); d != "" || list["total"] != 1.0 {
		t.Errorf("total %v, stats (-want +got):\n%s", list["total"], d)
	}
	for _, v := range []any{got, list, one} {
		if b, _ := json.Marshal(v); bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("an answer shows the key: %s", b)
		}
	}
}

func TestWorkersLife(t *testing.T) {
	s := workersRig(t)
	e := vllmAt(t, "m")
	spec := fmt.Sprintf(`{"url":%q,"priority":5}`, e.URL)
	id := s.must(t, 202, "POST", "/workers", spec)["worker_id"].(string)
	waitFor(t, "the worker", func() bool { return s.Fleet.Pool("m") != nil })
	if again := s.must(t, 202, "POST", "/workers/", spec)["worker_id"]; again != id {
		t.Errorf("the same again is %v, want %v", again, id)
	}
	if got := message(s.must(t, 409, "POST", "/workers", fmt.Sprintf(`{"url":%q}`, e.URL))); !strings.Contains(got, id) {
		t.Errorf("another specification at the URL: %q, want it to name %s", got, id)
	}
	w := s.Fleet.Get(id).Worker()
	w.SetState(fleet.Ready)
	s.must(t, 202, "PUT", "/workers/"+id, `{"priority":9,"api_key":"k","health":{"failure_threshold":2},"models":["m","n"]}`)
	old := w
	if w = s.Fleet.Get(id).Worker(); w == old || w.State() != fleet.Ready || old.State() != fleet.Removed {
		t.Errorf("with other models it is %v, and was %v: want another one that serves on", w.State(), old.State())
	}
	if x := w.Terms(); x.Priority != 9 || x.Cost != 1 || x.APIKey != "k" || *x.Health.Failures != 2 {
		t.Errorf("terms are %+v", x)
	}
	if p := s.Fleet.Pool("n"); p == nil || p.Workers[0] != w || s.Fleet.Pool("l") != nil {
		t.Errorf("n is served by %v, l by %v: want the same worker, and nobody", p, s.Fleet.Pool("l"))
	}
	lease := w.Holders[0].Take(fleet.Work{})
	s.must(t, 202, "POST", "/workers/"+id+"/drain?timeout_secs=60", "")
	if v := s.must(t, 200, "GET", "/workers/"+id, ""); v["status"] != "draining" || v["is_healthy"] != false {
		t.Errorf("it is %v while it drains", v["status"])
	}
	s.must(t, 409, "POST", "/workers", spec)
	lease.Release()
	waitFor(t, "its end", func() bool { return s.Fleet.Get(id) == nil })
	s.must(t, 404, "GET", "/workers/"+id, "")
	again := s.must(t, 202, "POST", "/workers", spec)["worker_id"].(string)
	if again == id {
		t.Error("registered again it has the old id")
	}
	s.must(t, 202, "DELETE", "/workers/"+url.PathEscape(e.URL), "")
	s.must(t, 404, "DELETE", "/workers/"+again, "")
	if got := s.must(t, 200, "GET", "/workers", ""); got["total"] != 0.0 {
		t.Errorf("%v workers are left", got["total"])
	}
}

func TestWorkersThatAreNotKnownYet(t *testing.T) {
	s := workersRig(t)
	s.must(t, 202, "POST", "/workers", `{"url":"http://127.0.0.1:1","max_connection_attempts":2}`)
	v := map[string]any{}
	waitFor(t, "a failure", func() bool {
		v = s.must(t, 200, "GET", "/workers", "")["workers"].([]any)[0].(map[string]any)
		return v["status"] == "failed"
	})
	job := v["job_status"].(map[string]any)
	if job["status"] != "failed" || !strings.Contains(job["message"].(string), "connect") || v["is_healthy"] != false || v["model_id"] != nil {
		t.Errorf("it is shown as %v", v)
	}
	s.must(t, 202, "DELETE", "/workers/http%3A%2F%2F127.0.0.1%3A1?drain=true", "")
	if got := s.must(t, 200, "GET", "/workers?model=x", ""); got["total"] != 0.0 {
		t.Errorf("%v workers are left", got["total"])
	}
}

func TestWorkersRefuse(t *testing.T) {
	s := workersRig(t)
	for _, c := range []struct {
		status       int
		method, path string
		body, want   string
	}{
		{400, "POST", "/workers", `{`, "the body must be"},
		{400, "POST", "/workers", `{"url":"ipc:///x"}`, "ipc is not spoken here"},
		{400, "POST", "/workers", `{"url":"http://h:1","worker_type":"decode"}`, "only regular"},
		{400, "POST", "/workers", `{"url":"http://h:1","apikey":"x"}`, "is api_key meant?"},
		{413, "POST", "/workers", strings.Repeat(" ", fleet.MaxSpecBody+1), "at most"},
		{404, "GET", "/workers/w-0", "", "no worker has"},
		{404, "PUT", "/workers/w-0", "{}", "no worker has"},
		{404, "DELETE", "/workers/w-0", "", "no worker has"},
		{404, "POST", "/workers/w-0/drain", "", "no worker has"},
		{400, "GET", "/workers/%zz", "", "not escaped"},
		{405, "DELETE", "/workers", "", "GET, POST"},
		{405, "POST", "/workers/w-0", "", "GET, PUT"},
		{405, "GET", "/workers/w-0/drain", "", "POST"},
		{400, "PUT", "/workers/w-0", `{"cost":-1}`, "cost: -1"},
		{400, "GET", "/workers?%zz", "", "not escaped"},
	} {
		v := s.must(t, c.status, c.method, c.path, c.body)
		if got := message(v); !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%s %s %.60s: %q, want one line with %q", c.method, c.path, c.body, got, c.want)
		}
	}
	e := s.must(t, 400, "POST", "/workers", `{"url":"http://h:1","health":{"timeout_secs":"x"}}`)["error"].(map[string]any)
	if e["param"] != "health.timeout_secs" || e["code"] != "invalid_worker_spec" || e["type"] != "invalid_request_error" {
		t.Errorf("the fault is %v", e)
	}
}

func TestAWorkersOwnStatusRules(t *testing.T) {
	own := &fleet.Resilience{Retryable: []int{418, 500}, Capacity: []int{502}}
	for _, c := range []struct {
		rules  *fleet.Resilience
		status int
		is     health.Kind
		want   health.Kind
	}{
		{&fleet.Resilience{}, 500, health.WorkerError, health.WorkerError},
		{&fleet.Resilience{}, 429, health.BackPressure, health.BackPressure},
		{own, 418, health.ClientError, health.WorkerError},
		{own, 500, health.WorkerError, health.WorkerError},
		{own, 502, health.WorkerError, health.BackPressure},
		{own, 504, health.WorkerError, health.ClientError},
		{own, 429, health.BackPressure, health.ClientError},
		{own, 400, health.ClientError, health.ClientError},
		{own, 500, health.ClientGone, health.ClientGone},
		{own, 500, health.Broken, health.Broken},
	} {
		if got := ruled(c.rules, c.status, c.is); got != c.want {
			t.Errorf("status %d of kind %v under %+v: %v, want %v", c.status, c.is, *c.rules, got, c.want)
		}
	}
}

func BenchmarkWorkersList(b *testing.B) {
	s := workersRig(b)
	for i := range 500 {
		w, err := s.Fleet.Add(fleet.Spec{URL: fmt.Sprintf("http://10.0.%d.%d:8000", i/250, i%250), Models: []string{"m"}})
		if err != nil {
			b.Fatal(err)
		}
		r := &fleet.Reading{At: fleet.Now(), Usage: 0.5}
		w.Holders[0].SetReading(r)
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := s.Serve("GET", "/workers", nil, nil); r.Status != 200 {
			b.Fatal(r.Status)
		}
	}
}
