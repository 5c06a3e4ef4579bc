// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventually waits until cond holds; it fails the test after ten seconds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// engine is an HTTP server that answers paths by handlers, to be changed at will.
type engine struct {
	*httptest.Server
	handler atomic.Pointer[http.HandlerFunc]
	asked   atomic.Int64
}

func newEngine(t *testing.T, h http.HandlerFunc) *engine {
	e := &engine{}
	e.handler.Store(&h)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.asked.Add(1)
		(*e.handler.Load())(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

// serves answers one path with text, all others with 404.
func serves(path, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(text))
	}
}

// run runs a meter for the length of the test.
func run(t *testing.T, cfg Config) *Meter {
	t.Helper()
	if cfg.Interval == 0 {
		cfg.Interval = minInterval
	}
	m := meter(t, cfg)
	start(t, m)
	return m
}

func start(t *testing.T, m *Meter) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func running(m *Meter, rank int) string {
	r := m.Rank(rank)
	if r == nil {
		return "none"
	}
	return fmt.Sprint(r.Running.Value, "/", r.Waiting.Value)
}

const getLoad = `[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":3},{"dp_rank":1,"num_reqs":1,"num_waiting_reqs":0}]`

// TestDetect: what is there is found, whatever kind the engine is said to be.
func TestDetect(t *testing.T) {
	vllm, loads := string(testdata(t, "vllm032.prom")), string(testdata(t, "sglang0523_loads.json"))
	for _, kind := range []string{"vllm", "sglang"} {
		for _, c := range []struct{ serve, text, path, want, version string }{
			{"/metrics", vllm, "", "8/4", ""},
			{"/metrics", vllm, "/", "8/4", ""},
			{"/v1/loads", loads, "", "4/0", "0.5.23"},
			{"/get_load", getLoad, "", "1/0", ""},
			{"/a/path", getLoad, "/a/path?x=y", "1/0", ""},
			{"/other", vllm, "/other", "8/4", ""},
		} {
			e := newEngine(t, serves(c.serve, c.text))
			m := run(t, Config{Engine: kind, Ranks: 2, Metrics: e.URL + c.path})
			eventually(t, kind+" "+c.serve, func() bool { return running(m, 1) == c.want && m.Version() == c.version })
			eventually(t, "a source that is named", func() bool { s := m.Stats(); return strings.Contains(s.Source, c.serve) && s.LastErr == "" })
		}
	}
}

// TestDetectAgain: an engine that is replaced by another release is found again,
// and one that is gone keeps its last reading, which ages.
func TestDetectAgain(t *testing.T) {
	e := newEngine(t, serves("/get_load", getLoad))
	m := run(t, Config{Engine: "sglang", Ranks: 2, Metrics: e.URL})
	eventually(t, "get_load", func() bool { return running(m, 0) == "2/3" })
	h := serves("/metrics", "sglang:num_running_reqs 9\n")
	e.handler.Store(&h)
	eventually(t, "metrics after get_load went", func() bool { return running(m, 0) == "9/0" })
	h = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) }
	e.handler.Store(&h)
	eventually(t, "failures counted", func() bool { s := m.Stats(); return s.Failures[FailStatus] > 0 && strings.Contains(s.LastErr, "503") })
	r := m.Rank(0)
	if r == nil || r.Running.Value != 9 || r.Age(time.Now().Add(time.Hour)) < time.Hour {
		t.Errorf("the last reading is %+v, want the one from before, grown old", r)
	}
}

func TestSamplesGrow(t *testing.T) {
	e := newEngine(t, serves("/metrics", "vllm:num_requests_running 1\n"))
	m := run(t, Config{Engine: "vllm", Ranks: 1, Metrics: e.URL})
	last := uint64(0)
	eventually(t, "five readings", func() bool {
		if r := m.Rank(0); r != nil {
			if r.Sample < last {
				t.Fatalf("sample %d after %d", r.Sample, last)
			}
			last = r.Sample
		}
		return last >= 5
	})
	if rs := m.Readings(nil); len(rs) != 1 || m.Rank(1) != nil || m.Rank(-1) != nil || m.Source(1) != nil {
		t.Errorf("%d readings of one rank, or some of ranks that are not there", len(rs))
	}
}

func TestToken(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte("vllm:num_requests_running 1\n"))
	})
	m := run(t, Config{Engine: "vllm", Ranks: 1, Metrics: e.URL, Token: "secret"})
	eventually(t, "a reading", func() bool { return running(m, 0) == "1/0" })
	m = run(t, Config{Engine: "vllm", Ranks: 1, Metrics: e.URL})
	eventually(t, "a refusal", func() bool { return strings.Contains(m.Stats().LastErr, "401") })
}

// TestBadServers: each is counted under its own kind, and breaks nothing.
func TestBadServers(t *testing.T) {
	good := newEngine(t, serves("/metrics", "vllm:num_requests_running 1\n"))
	hang := make(chan struct{})
	defer close(hang)
	for _, c := range []struct {
		name string
		h    http.HandlerFunc
		want Failure
	}{
		{"redirects", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, good.URL+"/metrics", http.StatusFound)
		}, FailStatus},
		{"too much", func(w http.ResponseWriter, _ *http.Request) {
			line := []byte("vllm:num_requests_running 1\n" + strings.Repeat("#", 1<<12) + "\n")
			for range 1 << 10 {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}, FailTooLarge},
		{"malformed", serves("/metrics", "vllm:num_requests_running{{ 1\n"), FailMalformed},
		{"not JSON", serves("/metrics", "{"), FailMalformed},
		{"other ranks", serves("/metrics", "vllm:num_requests_running{engine=\"4\"} 1\nvllm:num_requests_running{engine=\"5\"} 1\n"), FailEmpty},
		{"other metrics", serves("/metrics", "up 1\n"), FailEmpty},
		{"breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("vllm:num_requests_running 1\n"))
		}, FailTransport},
		{"never answers", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}, FailTransport},
		{"trickles", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte("#\n"))
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
		}, FailTransport},
	} {
		e := newEngine(t, c.h)
		m := run(t, Config{Engine: "vllm", Ranks: 1, Metrics: e.URL + "/metrics", MaxBody: 1 << 20, Timeout: 100 * time.Millisecond})
		eventually(t, c.name, func() bool { return m.Stats().Failures[c.want] >= 2 })
		if m.Rank(0) != nil || m.Stats().Good > 0 {
			t.Errorf("%s: a reading %v", c.name, running(m, 0))
		}
		h := serves("/metrics", "vllm:num_requests_running 1\n")
		e.handler.Store(&h)
		eventually(t, c.name+", then well", func() bool { return running(m, 0) == "1/0" && m.Stats().LastErr == "" })
	}
}

// TestNobodyThere: no server at all.
func TestNobodyThere(t *testing.T) {
	e := newEngine(t, serves("/", ""))
	url := e.URL
	e.Close()
	m := run(t, Config{Engine: "vllm", Ranks: 1, Metrics: url})
	eventually(t, "a failure", func() bool { return m.Stats().Failures[FailTransport] > 1 })
}

// TestRanksFromElsewhere: a part of a larger engine, whose ranks are numbered on.
func TestRanksFromElsewhere(t *testing.T) {
	e := newEngine(t, serves("/metrics", "vllm:num_requests_running{engine=\"5\"} 15\nvllm:num_requests_running{engine=\"4\"} 14\n"))
	m := run(t, Config{Engine: "vllm", Ranks: 2, Metrics: e.URL})
	eventually(t, "both ranks", func() bool { return running(m, 0) == "14/0" && running(m, 1) == "15/0" })
}

func TestAsk(t *testing.T) {
	var n atomic.Int64
	m := run(t, Config{Engine: "vllm", Ranks: 1, Ask: func(context.Context) ([]Reading, error) {
		if n.Add(1)%2 == 0 {
			return nil, errors.New("not now")
		}
		return []Reading{{Running: Some(uint32(n.Load()))}}, nil
	}})
	eventually(t, "readings and failures", func() bool {
		return m.Rank(0) != nil && m.Rank(0).Sample >= 2 && m.Stats().Failures[FailTransport] >= 2
	})
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Engine: "trt", Ranks: 1, Ask: nothing}, `engine "trt": must be vllm or sglang`},
		{Config{Engine: "vllm", Ask: nothing}, "ranks 0: must be 1 to 1024"},
		{Config{Engine: "vllm", Ranks: 1}, "no source of load: give metrics="},
		{Config{Engine: "vllm", Ranks: 1, Ask: nothing, Interval: 1}, "load-interval 1ns: must be 10ms or more"},
		{Config{Engine: "vllm", Ranks: 1, Ask: nothing, MaxBody: -1}, "must not be negative"},
		{Config{Engine: "vllm", Ranks: 1, Metrics: "127.0.0.1:80"}, "metrics=127.0.0.1:80: must be http://host:port"},
		{Config{Engine: "vllm", Ranks: 1, Metrics: "http://u:p@h/"}, "must be http://host:port"},
		{Config{Engine: "vllm", Ranks: 1, Metrics: "http://h:99999"}, "must be http://host:port"},
		{Config{Engine: "vllm", Ranks: 1, Metrics: "http://:8000"}, "must be http://host:port"},
		{Config{Engine: "vllm", Ranks: 1, Loads: "ipc://x"}, "loads=ipc://x: must be tcp://host:port"},
		{Config{Engine: "vllm", Ranks: 3, Loads: "tcp://h:65534"}, "with ports enough for 3 ranks"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}

// TestNilMeter: an engine without any source has no load.
func TestNilMeter(t *testing.T) {
	var m *Meter
	m.Output(0, t0)
	if m.Rank(0) != nil || m.Source(0) != nil || len(m.Readings(nil)) > 0 || m.Version() != "" || m.rankCount() != 0 {
		t.Error("a nil meter knows something")
	}
}
