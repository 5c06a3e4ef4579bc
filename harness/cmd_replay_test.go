// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"kindex/harness/openloop"
)

func TestReplayCommand(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"m"}]}`) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if r.Header.Get("X-Mine") != "a: b" {
			return
		}
		fmt.Fprint(w, "data: {\"id\":\"q\",\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	dir := filepath.Join(t.TempDir(), "out")
	out, code := program(t, "replay", server.URL+"/v1", "--trace", "generated", "--rows", "0-19", "--speedup", "1e9", "--prompt", "chat", "--header", "X-Mine: a: b", "--late", "1m", "--json", "--out", dir)
	var s openloop.Summary
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 || s.Requests.OK != 20 || s.Finish["stop"] != 20 || s.Model != "m" {
		t.Fatalf("exit %d, %v:\n%s", code, err, out)
	}
	if got, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(got) < 5 {
		t.Errorf("%v, %v", got, err)
	}
	out, code = program(t, "replay", "--url", server.URL, "--trace", "generated", "--rows", "0-19", "--speedup", "1e9", "--prompt", "chat", "--late", "1ns")
	if code != exitDiffers || !strings.Contains(out, "INVALID") || !strings.Contains(out, "error: cut | 20") {
		t.Errorf("a late replay of cut answers: exit %d:\n%s", code, out)
	}
}

func TestReplayRefuses(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"replay"}, "--url: give"},
		{[]string{"replay", "http://x", "--speedup", "0"}, "--speedup 0: must be positive and finite"},
		{[]string{"replay", "http://x", "--speedup", "nan"}, "--speedup NaN: must be"},
		{[]string{"replay", "http://x", "--speedup=-Inf"}, "--speedup -Inf: must be"},
		{[]string{"replay", "http://x", "--rows", "9-3"}, "must be FIRST-LAST"},
		{[]string{"replay", "http://x", "more"}, "unexpected argument"},
		{[]string{"replay", "http://x", "--trace", "nowhere.jsonl"}, "nowhere.jsonl: no such file"},
		{[]string{"replay", "http://x", "--header", "none"}, "must be \"Name: value\""},
		{[]string{"replay", "http://127.0.0.1:1"}, "the endpoint names no model"},
		{[]string{"replay", "http://127.0.0.1:1", "--model", "m", "--oracle", "http://127.0.0.1:1"}, "--oracle: "},
		{[]string{"proxy"}, "--upstream: give"},
		{[]string{"proxy", "--upstream", "ftp://x"}, "--upstream \"ftp://x\""},
		{[]string{"proxy", "--upstream", "x", "--listen", "nowhere"}, "--listen: "},
	} {
		out, code := program(t, test.args...)
		if code != exitUsage || !strings.Contains(out, test.want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%v: exit %d, want one line with %q:\n%s", test.args, code, test.want, out)
		}
	}
}
