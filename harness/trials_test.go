// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// object runs a command with --json and returns what it prints.
func object(t *testing.T, args ...string) map[string]any {
	t.Helper()
	out, code := program(t, append(args, "--json")...)
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("%v: exit %d, %v: %s", args, code, err, out)
	}
	return got
}

// want reports keys that an object lacks.
func want(t *testing.T, got any, keys ...string) {
	t.Helper()
	m, ok := got.(map[string]any)
	if !ok {
		t.Fatalf("%v is no object", got)
	}
	for _, k := range keys {
		if m[k] == nil {
			t.Errorf("no %s in %v", k, m)
		}
	}
}

// item returns element i of a list.
func item(t *testing.T, got any, i int) any {
	t.Helper()
	l, ok := got.([]any)
	if !ok || len(l) <= i {
		t.Fatalf("%v has no element %d", got, i)
	}
	return l[i]
}

func TestMemoryCommand(t *testing.T) {
	args := []string{"memory", "--holders", "1,3", "--private-at", "3", "--workers", "6", "--memberships", "6000", "--chain", "30", "--runs", "2"}
	got := object(t, args...)
	want(t, got, "corpus", "seed", "ops", "block_ops", "bytes_per_membership", "bytes_per_distinct_block", "exact", "machine", "rows")
	row := item(t, got["rows"], 2)
	want(t, row, "bytes_per_membership", "bytes_per_membership_by_purpose", "go_heap_bytes_per_membership", "resident_bytes_per_membership", "foreign_cpus")
	if r, ok := row.(map[string]any); !ok || r["private_names"] != true || len(r["runs"].([]any)) != 2 {
		t.Errorf("the last row: %v", row)
	}
	out, code := program(t, args...)
	if code != 0 || !strings.Contains(out, "| 3, names of their own |") || !strings.Contains(out, ", 0 wrong") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestChurnCommand(t *testing.T) {
	args := []string{"churn", "--workers", "4", "--memberships", "4000", "--pool", "9", "--prompts", "5", "--prompt-blocks", "8", "--decode-blocks", "6", "--events", "1000", "--runs", "2"}
	got := object(t, args...)
	want(t, got, "corpus", "seed", "ops", "block_ops", "cpu_ns_per_block_op", "block_ops_per_cpu_s", "wall_s", "lookup_ns", "bytes_per_membership", "bytes_per_distinct_block",
		"exact", "machine", "drift_percent", "flat_memory", "flat_lookup", "operations", "control", "over_1ms_again", "foreign_cpus")
	run := item(t, got["runs"], 1)
	want(t, run, "fill", "segments", "clock_ns", "drift")
	m, _ := run.(map[string]any)
	want(t, item(t, m["segments"], 11), "events", "cpu_ns_per_event", "cpu_ns_per_block", "lookup_ns", "bytes_per_membership", "bytes_per_membership_by_purpose", "operations", "control")
	out, code := program(t, args...)
	if code != 0 || !strings.Contains(out, "last segment against second") || !strings.Contains(out, "| 12 |") || !strings.Contains(out, ", 0 wrong") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestExactCommand(t *testing.T) {
	args := []string{"exact", "--corpus", smallCorpus(t), "--steps", "100", "--lookups", "3000", "--shards", "1,3"}
	got := object(t, args...)
	want(t, got, "corpus", "seed", "ops", "block_ops", "exact", "wall_s", "machine", "runs")
	want(t, item(t, got["runs"], 0), "cpu_features", "parts", "indexes")
	out, code := program(t, args...)
	if code != 0 || !strings.Contains(out, " lookups, 0 wrong") || !strings.Contains(out, "| generic | chain, 3 shards |") || !strings.Contains(out, "| positional, 1 shards |") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestLadderCommand(t *testing.T) {
	args := []string{"ladder", "--corpus", smallCorpus(t), "--first", "1e5", "--factor", "3", "--steps", "2", "--runs", "2", "--max-foreign", "1000"}
	got := object(t, args...)
	want(t, got, "corpus", "seed", "ops", "block_ops", "cpu_ns_per_block_op", "block_ops_per_cpu_s", "lookup_ns", "offered", "achieved", "kept_up", "machine", "arms", "steps")
	want(t, item(t, got["steps"], 1), "arm", "window_ms", "offered", "achieved", "kept_up", "sustained", "lookup_ns", "trials", "foreign_cpus")
	line, err := os.ReadFile("peers/testdata/crtc.replay.json")
	if err != nil {
		t.Fatal(err)
	}
	peer := filepath.Join(t.TempDir(), "index-peers")
	if err := os.WriteFile(peer, []byte("#!/bin/sh\ncat <<'E'\n"+string(line)+"E\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	out, code := program(t, append(args, "--peer", "crtc", "--peers-bin", peer)...)
	if code != 0 || !strings.Contains(out, "| crtc |") || !strings.Contains(out, "| kindex |") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestLanesCommand(t *testing.T) {
	args := []string{"lanes", "--lanes", "1,2", "--streams", "3", "--prompts", "40", "--cache", "1100", "--rounds", "1", "--runs", "2"}
	got := object(t, args...)
	want(t, got, "corpus", "seed", "ops", "block_ops", "cpu_ns_per_block_op", "block_ops_per_cpu_s", "wall_s", "machine", "rows", "two_lanes_to_one")
	row := item(t, got["rows"], 1)
	want(t, row, "lanes", "stored_blocks_per_wall_s", "cpu_ns_per_stored_block", "costs", "foreign_cpus", "runs")
	m, _ := row.(map[string]any)
	want(t, m["costs"], "decode", "hash", "copies", "apply", "queue", "all")
	out, code := program(t, args...)
	if code != 0 || !strings.Contains(out, "two lanes to one: ") || !strings.Contains(out, "| 2 |") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// TestTrialsUsage: what cannot be right is refused with one line.
func TestTrialsUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"memory", "--holders", "1,x"}, `--holders "1,x": must be numbers from 1 with commas between`, 2},
		{[]string{"memory", "--holders", "200"}, "--holders 200: must be 1 to --workers 128", 2},
		{[]string{"memory", "--memberships", "5"}, "--memberships 5: must be 376 (one chain) to", 2},
		{[]string{"memory", "--chain", "0"}, "--chain 0: must be 1 to", 2},
		{[]string{"memory", "--turnover", "-1"}, "--turnover -1: must be 0 to 100", 2},
		{[]string{"memory", "--turnover", "NaN"}, "--turnover NaN: must be 0 to 100", 2},
		{[]string{"memory", "--one", "--holders", "1,4"}, "--holders 1,4: with --one it is one number", 2},
		{[]string{"memory", "--private"}, "--private: only with --one", 2},
		{[]string{"memory", "--kv-index", "tree"}, `--kv-index "tree": must be chain`, 2},
		{[]string{"memory", "--runs", "0"}, "--runs 0: must be 1 to 1000", 2},
		{[]string{"churn", "--segments", "2"}, "--segments 2: must be 3 to", 2},
		{[]string{"churn", "--memberships", "1000"}, "--memberships 1000: must be at least", 2},
		{[]string{"churn", "--prompts", "600"}, "--prompts 600: must be 1 to 512", 2},
		{[]string{"churn", "--minutes", "-1"}, "--minutes -1: must be above 0 to", 2},
		{[]string{"churn", "--minutes", "1", "--events", "5"}, "--events 5 with --minutes 1: give one of them", 2},
		{[]string{"exact", "--shards", "1,0"}, `--shards "1,0": must be numbers from 1`, 2},
		{[]string{"exact", "--kv-index", "chain,reference"}, `--kv-index "reference": must be of chain, positional`, 2},
		{[]string{"exact", "--lookups", "-1"}, "--lookups -1: must be 1 to", 2},
		{[]string{"exact", "--steps", "-1"}, "--steps -1: must be 0 to", 2},
		{[]string{"exact", "--corpus", "nowhere.kvc"}, "nowhere.kvc: no such file", 1},
		{[]string{"ladder", "--first", "5"}, "--first 5: must be 1000 to", 2},
		{[]string{"ladder", "--factor", "1"}, "--factor 1: must be 1.01 to 100", 2},
		{[]string{"ladder", "--peer", "llm-d"}, `--peer "llm-d": must be crtc`, 2},
		{[]string{"ladder", "--max-foreign", "0"}, "--max-foreign 0: must be above 0", 2},
		{[]string{"ladder", "--one"}, "--one: a ladder is many trials", 2},
		{[]string{"ladder", "--lanes", "0"}, "--lanes 0: must be 1 to", 2},
		{[]string{"lanes", "--lanes", "0"}, `--lanes "0": must be numbers from 1`, 2},
		{[]string{"lanes", "--streams", "0"}, "--streams 0: must be 1 to", 2},
		{[]string{"lanes", "--cache", "20"}, "--cache 20: must be 0 or at least 1024", 2},
		{[]string{"lanes", "--one"}, "--lanes 1,2,4: with --one it is one number", 2},
		{[]string{"memory", "x"}, `unexpected argument "x"`, 2},
	} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), test.args, &out, &errs)
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		if code != test.code || !strings.Contains(lines[len(lines)-1], test.want) || test.code == 2 && len(lines) != 1 {
			t.Errorf("%v: exit %d, %q, want %d and one line with %q", test.args, code, errs.String(), test.code, test.want)
		}
	}
}
