// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// TestExplainReasons has one worker for each reason why a match ends, fed over real
// sockets, and holds what the tool says of it against the golden text, over gRPC and
// HTTP alike.
func TestExplainReasons(t *testing.T) {
	h := startHost(t, func(c *indexsrv.Config) { c.ConnectPeriod = 300 * time.Millisecond })
	small := stored("GPU", 1, 2)
	small.BlockSize, small.Tokens = testBlock/2, small.Tokens[:testBlock/2]
	whole := stored("GPU", 0, 1, 2, 3, 4, 5)
	feeds := map[string][]kv.Event{
		"whole":  {whole},
		"absent": {stored("GPU", 0, 1, 2)},
		"tiers":  {stored("GPU", 0, 1, 2), stored("CPU", 1, 2, 3), stored("DISK", 3, 4)},
		"hole":   {whole, removed(2, 3)},
		"orphan": {stored("GPU", 0, 1), stored("GPU", 77, 2, 3)},
		"size":   {stored("GPU", 0, 1), small},
	}
	for id, events := range feeds {
		e := startEngine(t, 100)
		e.publish(events...)
		h.follow(id, "m", e)
	}
	lossy := startEngine(t, 1)
	lossy.publish(whole)
	lossy.publish(stored("GPU", 0, 1))
	h.follow("lossy", "m", lossy)
	h.follow("away", "m", &engine{live: "tcp://127.0.0.1:1"})
	h.settled(func(w indexsrv.Worker, l indexsrv.Listener) bool {
		switch id := strings.Trim(string(w.Instance), `"`); id {
		case "size":
			return strings.Contains(l.LastError, "block size")
		case "lossy":
			return strings.Contains(l.LastError, "lost") || strings.Contains(l.LastError, "batch")
		case "away":
			return l.Status == "failed"
		}
		return l.Status == "active"
	})
	prompt := numbers(tokensOf(1, 2, 3, 4, 5))
	for id, want := range explainGolden {
		for _, host := range []string{h.grpc, h.http} {
			t.Run(id, func(t *testing.T) {
				code := 0
				if id == "away" {
					code = 1
				}
				args := []string{"explain", "--tokens", "-", "--instance", id, "--host", host}
				kindex(t, prompt, args...).want(t, code, want.text)
				r := kindex(t, prompt, append(args, "--json")...)
				var e lookup.Explanation
				if err := json.Unmarshal([]byte(r.out), &e); err != nil || len(e.Holders) != 1 {
					t.Fatalf("%v: %s %s", err, r.out, r.err)
				}
				if got := strings.Join(e.Holders[0].Reasons, "+"); got != want.reasons || r.code != code {
					t.Errorf("status %d, reasons %q, want %q", r.code, got, want.reasons)
				}
			})
		}
	}

	// A pending stream: nothing is known of it yet.
	h2 := startHost(t, nil)
	h2.follow("new", "m", &engine{live: "tcp://127.0.0.1:1"})
	r := kindex(t, prompt, "explain", "--tokens", "-", "--host", h2.grpc)
	if !strings.Contains(r.out, "instance new rank 0: 0 of 5 blocks, stream pending\n") || !strings.Contains(r.out, "  why: the stream is pending: ") || strings.Contains(r.out, "evicted") || r.code != 1 {
		t.Errorf("pending: status %d: %s", r.code, r.out)
	}

	// A tail, an adapter, all holders in order, no such model, and hashes.
	r = kindex(t, "["+strings.ReplaceAll(numbers(append(tokensOf(1, 2), 1, 2, 3)), " ", ",")+"]\n", "explain", "--tokens=-", "--instance", "whole", "--host", h.grpc)
	r.want(t, 0, explainTail)
	r = kindex(t, prompt, "explain", "--tokens", "-", "--host", h.grpc, "--lora", "a", "--limit", "1", "--json")
	if r.code != 1 || !strings.Contains(r.out, `"any":0`) || !strings.Contains(r.out, `"more_holders":7`) {
		t.Errorf("of an adapter: status %d, %s", r.code, r.out)
	}
	r = kindex(t, prompt, "explain", "--tokens", "-", "--host", h.grpc, "--model", "zz")
	if want := `: model_name: no worker is registered for model "zz" in routing group "default"` + "\n"; r.code != 1 || !strings.HasSuffix(r.err, want) {
		t.Errorf("no such model: status %d, %q", r.code, r.err)
	}
	hashes := []uint64{}
	for _, n := range []int{1, 2, 3} {
		hashes = append(hashes, uint64(kv.HashBlock(kv.HashSeed, tokensOf(n), nil)))
	}
	file := filepath.Join(t.TempDir(), "hashes")
	if err := os.WriteFile(file, []byte(numbers(hashes)), 0o600); err != nil {
		t.Fatal(err)
	}
	r = kindex(t, "", "explain", "--hashes", file, "--host", h.http, "--instance", "hole")
	if r.code != 0 || !strings.Contains(r.out, "instance hole rank 0: 1 of 3 blocks\n") {
		t.Errorf("by hashes: status %d: %s %s", r.code, r.out, r.err)
	}

	// Of two hosts between which the workers are split, the one without the model is
	// left out.
	r = kindex(t, prompt, "explain", "--tokens", "-", "--host", h.grpc+","+h2.http, "--model", "m", "--json")
	var both lookup.Explanation
	if err := json.Unmarshal([]byte(r.out), &both); err != nil || len(both.Holders) != len(feeds)+3 || both.Holders[0].Instance.Text != "whole" {
		t.Errorf("of two hosts: %v, %d holders: %s", err, len(both.Holders), r.err)
	}
	for _, r := range []result{r} {
		if strings.Contains(r.out+r.err, fmt.Sprint(secretToken/1000)) {
			t.Error("a token id is in the answer")
		}
	}
}

// TestReadIDs: both forms of a file of ids, and what is none.
func TestReadIDs(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]", "[]": "[]", "1": "[1]", " [1, 2,3]\n": "[1 2 3]", "1 2\n3\t4": "[1 2 3 4]", "4294967295": "[4294967295]", "1,2": "[1 2]",
	} {
		got, err := readIDs[uint32](strings.NewReader(text), false, 1<<32-1)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"[1": "must end with ]", "1]": "must be a JSON array", "[1] 2": "must end with the array", "[[1]]": "id 1", "x": "id 1, counted", "1 -2": "id 2, counted",
		"4294967296": "id 1", "1.5": "id 1", `{"a":1}`: "id 1", "[1]]": "must be a JSON array", strings.Repeat("9", 1000): "id 1", `["1"]`: "id 1",
	} {
		_, err := readIDs[uint32](strings.NewReader(text), false, 1<<32-1)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s...", text, err, want)
		}
	}
	got, err := readIDs[uint64](strings.NewReader("-1 18446744073709551615"), true, 1<<64-1)
	if err != nil || fmt.Sprint(got) != "[18446744073709551615 18446744073709551615]" {
		t.Errorf("signed: %v, %v", got, err)
	}
}
