// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/gateway/fleet"
)

func TestSpecReadsEveryField(t *testing.T) {
	body := `{
		"url": "HTTP://Host:8000/", "models": ["m", {"id": "l", "parent": "m", "context_length": 5}, {"id": "n"}], "model_id": "m",
		"worker_type": "regular", "connection_mode": "http", "runtime": "sglang", "labels": {"zone": "a"}, "priority": 7, "cost": 2.5,
		"api_key": "k", "dp_size": 4, "dp_rank": 0, "kv_block_size": 32, "max_connection_attempts": 3, "load_monitor_interval_secs": 9,
		"health": {"timeout_secs": 1, "check_interval_secs": 2, "success_threshold": 3, "failure_threshold": 4, "disable_health_check": true, "drain_settle_secs": 0},
		"resilience": {"max_retries": 1, "disable_retry": false, "cb_failure_threshold": 2, "cb_success_threshold": 3, "cb_timeout_secs": 4,
			"disable_circuit_breaker": true, "retryable_status_codes": [500], "capacity_status_codes": [], "jitter_factor": 0.1},
		"overload": {"waiting_requests": 5, "token_usage": 0.5}, "http_pool": {"http2": true},
		"kv_events": {"endpoint": "tcp://h:1", "replay_endpoint": "tcp://h:2", "relay": "h:3", "name": "e"},
		"instance_id": "i", "name": "w1", "provider": null, "kv_role": "both"}`
	got, ignored, err := fleet.ParseSpec([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Spec{
		URL: "http://host:8000", Models: []string{"m", "n"}, Adapters: map[string]string{"l": "m"}, Engine: fleet.SGLang, Ranks: 4, BlockSize: 32,
		Instance: "i", Name: "w1", MaxAttempts: 3, Events: fleet.Events{Endpoint: "tcp://h:1", Replay: "tcp://h:2", Relay: "h:3", Name: "e"},
		Terms: fleet.Terms{
			Priority: 7, Cost: 2.5, Labels: map[string]string{"zone": "a"}, APIKey: "k", LoadInterval: 9 * time.Second,
			Health: fleet.Health{Timeout: new(time.Second), Interval: new(2 * time.Second), Successes: new(3), Failures: new(4), Off: new(true), Settle: new(time.Duration(0))},
			Resilience: fleet.Resilience{
				MaxRetries: new(1), NoRetry: new(false), BreakerFailures: new(2), BreakerSuccess: new(3), BreakerTimeout: new(4 * time.Second),
				NoBreaker: new(true), Retryable: []int{500}, Capacity: []int{},
			},
			Overload: fleet.Overload{Waiting: new(int64(5)), Usage: new(0.5)},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spec (-want +got):\n%s", d)
	}
	if want := []string{"dp_rank", "http_pool.http2", "kv_role", "resilience.jitter_factor"}; !slices.Equal(ignored, want) {
		t.Errorf("ignored %q, want %q", ignored, want)
	}
}

func TestSpecDefaults(t *testing.T) {
	if _, _, err := fleet.ParseSpec([]byte(`{"url":"https://h","connection_mode":"grpc"}`)); err == nil {
		t.Error("gRPC without a port is no fault")
	}
	got, ignored, err := fleet.ParseSpec([]byte(`{"url":"http://[::1]:5","connection_mode":"grpc","model_id":"m"}`))
	want := fleet.Spec{URL: "grpc://[::1]:5", Models: []string{"m"}, MaxAttempts: 20, Terms: fleet.Terms{Priority: 50, Cost: 1}}
	if ignored != nil {
		t.Errorf("ignored %q, want nothing", ignored)
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestSpecsOfOldReleases(t *testing.T) {
	got, ignored, err := fleet.ParseSpec([]byte(`{"url":"http://h:1","health_check_timeout_secs":3,"health_failure_threshold":2,"disable_health_check":true,"tool_parser":"x"}`))
	if want := (fleet.Health{Timeout: new(3 * time.Second), Failures: new(2), Off: new(true)}); err != nil || cmp.Diff(want, got.Terms.Health) != "" {
		t.Errorf("health is %+v, %v", got.Terms.Health, err)
	}
	if !slices.Equal(ignored, []string{"tool_parser"}) {
		t.Errorf("ignored %q", ignored)
	}
}

func TestSpecFaults(t *testing.T) {
	for body, want := range map[string]string{
		``:                         "the body must be one JSON object",
		`null`:                     "the body must be a JSON object",
		`[]`:                       "the body must be a JSON object",
		`{"url":"http://h:1"} {}`:  "more than one value",
		`{"url":`:                  "the body must be",
		`{}`:                       "url: it is missing",
		`{"url":5}`:                "url: it must be a string",
		`{"url":"ipc:///x"}`:       "ipc is not spoken here",
		`{"url":"zmq://h:1"}`:      "zmq is not spoken here",
		`{"url":"http://h:1@3"}`:   "a rank is not part of it: register the engine once, with dp_size",
		`{"url":"http://u:p@h:1"}`: "give api_key",
		`{"url":"http://h:0"}`:     "the port must be 1 to 65535",
		`{"url":"http://h:1?x"}`:   "it must end after the port",
		`{"url":"h:1"}`:            "it must be http, https, grpc or grpcs://HOST:PORT",
		`{"url":"http://` + strings.Repeat("h", 600) + `"}`:                 "url: 607 bytes: it must be at most 512",
		`{"url":"http://h:1","priorty":5}`:                                  "priorty: no such field: is priority meant?",
		`{"url":"http://h:1","zzzzzz":5}`:                                   "zzzzzz: no such field: it must be one of api_key, ",
		`{"url":"http://h:1","health":{"timeout":5}}`:                       "health.timeout: no such field: is health.timeout_secs meant?",
		`{"url":"http://h:1","health":{"timeout_sec":5}}`:                   "health.timeout_sec: no such field: is health.timeout_secs meant?",
		`{"url":"http://h:1","health":[]}`:                                  "health: it must be a JSON object",
		`{"url":"http://h:1","health":{"timeout_secs":0}}`:                  "health.timeout_secs: 0: it must be an integer from 1 to 86400",
		`{"url":"http://h:1","worker_type":"prefill"}`:                      `worker_type: "prefill": only regular workers`,
		`{"url":"http://h:1","connection_mode":"zmq"}`:                      `connection_mode: "zmq": it must be http or grpc`,
		`{"url":"grpc://h:1","connection_mode":"http"}`:                     "connection_mode: http, but the URL says grpc",
		`{"url":"http://h:1","runtime_type":"trtllm"}`:                      `runtime_type: "trtllm": it must be vllm or sglang`,
		`{"url":"http://h:1","priority":1.5}`:                               "priority: 1.5: it must be an integer",
		`{"url":"http://h:1","priority":-1}`:                                "priority: -1: it must be an integer",
		`{"url":"http://h:1","cost":0}`:                                     "cost: 0: it must be a number above 0",
		`{"url":"http://h:1","cost":1e9}`:                                   "cost: 1e+09: it must be above 0",
		`{"url":"http://h:1","cost":"1"}`:                                   `cost: "1": it must be a number`,
		`{"url":"http://h:1","api_key":"a b"}`:                              "api_key: it must be of visible ASCII",
		`{"url":"http://h:1","labels":{"a":1}}`:                             "labels: it must be an object of strings",
		`{"url":"http://h:1","labels":{"":"x"}}`:                            "labels: ",
		`{"url":"http://h:1","labels":{"a":"\u0000"}}`:                      "without control characters",
		`{"url":"http://h:1","models":"m"}`:                                 "models: it must be a list of names",
		`{"url":"http://h:1","models":[{"name":"m"}]}`:                      "models: a name is missing",
		`{"url":"http://h:1","models":[null]}`:                              "models: a name is missing",
		`{"url":"http://h:1","models":["m\n"]}`:                             "without control characters",
		`{"url":"http://h:1","models":[{"id":"l","parent":"m"}]}`:           "models: a worker has at least one that is no adapter",
		`{"url":"http://h:1","models":["n",{"id":"l","parent":"m"}]}`:       `adapter "l" adapts "m", which is not one`,
		`{"url":"http://h:1","models":["m"],"model_id":"n"}`:                `model_id: "n" is not one of models`,
		`{"url":"http://h:1","kv_events":{"endpoint":"h:5557"}}`:            `kv_events.endpoint: "h:5557" must be tcp://HOST:PORT or ipc://PATH`,
		`{"url":"http://h:1","kv_events":{"replay_endpoint":"tcp://h"}}`:    `kv_events.replay_endpoint: "tcp://h" must be`,
		`{"url":"http://h:1","kv_events":{"relay":"http://h:1"}}`:           `kv_events.relay: "http://h:1" must be HOST:PORT`,
		`{"url":"http://h:1","dp_size":65}`:                                 "dp_size: 65: it must be an integer from 1 to 64",
		`{"url":"http://h:1","overload":{"token_usage":1.5}}`:               "overload.token_usage: 1.5: it must be above 0, at most 1",
		`{"url":"http://h:1","resilience":{"retryable_status_codes":[99]}}`: "resilience.retryable_status_codes: [99]: it must be a list",
		`{"url":"http://h:1","x":` + strings.Repeat("[", 20_000) + `}`:      "the body must be",
	} {
		_, _, err := fleet.ParseSpec([]byte(body))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.100s: got %v, want one line with %q", body, err, want)
		}
	}
}

func TestChangeKeepsWhatItDoesNotName(t *testing.T) {
	terms := fleet.Terms{Priority: 1, Cost: 2, APIKey: "old", Labels: map[string]string{"a": "b"}, Health: fleet.Health{Failures: new(9)}}
	c, err := fleet.ParseChange([]byte(`{"cost":3,"health":{"timeout_secs":4},"api_key":"new"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(&terms); err != nil {
		t.Fatal(err)
	}
	want := fleet.Terms{
		Priority: 1, Cost: 3, APIKey: "new", Labels: map[string]string{"a": "b"},
		Health: fleet.Health{Failures: new(9), Timeout: new(4 * time.Second)},
	}
	if d := cmp.Diff(want, terms); d != "" || c.Models != nil {
		t.Errorf("models %v, terms (-want +got):\n%s", c.Models, d)
	}
	if _, err := fleet.ParseChange([]byte(`{"url":"http://h:1"}`)); err == nil || !strings.Contains(err.Error(), "url: it cannot be changed") {
		t.Errorf("a change of the URL: %v", err)
	}
}

func TestFlagsRoundTrip(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	given := "http://h:1,name=w,model=m|n,engine=vllm,dp_size=2,block=16,instance=i,events=tcp://h:2,replay=tcp://h:3,relay=h:4,relay_name=e," +
		"api_key_file=" + key + ",priority=3,cost=1.5,label=a:b|c:d"
	s, err := fleet.ParseFlag(given)
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Spec{
		URL: "http://h:1", Name: "w", Models: []string{"m", "n"}, Engine: "vllm", Ranks: 2, BlockSize: 16, Instance: "i", KeyFile: key,
		Events: fleet.Events{Endpoint: "tcp://h:2", Replay: "tcp://h:3", Relay: "h:4", Name: "e"},
		Terms:  fleet.Terms{Priority: 3, Cost: 1.5, APIKey: "secret", Labels: map[string]string{"a": "b", "c": "d"}},
	}
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("spec (-want +got):\n%s", d)
	}
	var r fleet.FlagReader
	for _, pair := range s.Pairs() {
		if err := r.Set(pair.Key, pair.Value); err != nil {
			t.Fatal(err)
		}
	}
	again, err := r.End()
	if d := cmp.Diff(want, again); d != "" || err != nil {
		t.Errorf("again: %v (-want +got):\n%s", err, d)
	}
	for flag, want := range map[string]string{
		"":                            "url is empty",
		"http://h:1,":                 "it must be URL[,model=",
		"http://h:1,model=":           "model is empty",
		"http://h:1,cost=NaN":         "cost: ",
		"http://h:1,cost=1,cost=2":    "cost is given twice",
		"http://h:1,dp_size=0":        "dp_size: ",
		"http://h:1,events=h:1":       `events: "h:1" must be tcp://HOST:PORT or ipc://PATH`,
		"http://h:1,relay=h":          `relay: "h" must be HOST:PORT`,
		"http://h:1,api_key_file=/no": "api_key_file: ",
		"http://h:1,label=x":          `label: "x" must be KEY:VALUE`,
		"http://h:1,model=m|":         "models: a name of 0 bytes",
	} {
		if _, err := fleet.ParseFlag(flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", flag, err, want)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(`{"url":"http://h:1","models":["m",{"id":"l","parent":"m"}],"health":{"timeout_secs":1}}`))
	f.Add([]byte(`{"url":"grpc://[::1]:1","cost":1e308,"labels":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, _, err := fleet.ParseSpec(body)
		if err != nil {
			if strings.ContainsRune(err.Error(), '\n') {
				t.Errorf("a fault of several lines: %q", err)
			}
			return
		}
		again := s
		if err := again.Validate(); err != nil || !again.Same(&s) {
			t.Errorf("%+v is not in its own canonical form: %v, %+v", s, err, again)
		}
		if c, err := fleet.ParseChange(body); err == nil {
			if err := c.Apply(&s.Terms); err != nil {
				t.Errorf("a change that was read cannot be applied: %v", err)
			}
		}
	})
}
