// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/harness/corpus"
	"kindex/harness/trial"
	"kindex/numa"
	"kindex/shard"
)

// TestMain is also the program, for commands that start it anew.
func TestMain(m *testing.M) {
	if os.Getenv(trial.ChildEnv) != "" {
		os.Exit(Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// smallCorpus writes a corpus of some thousand operations.
func smallCorpus(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "small.kvc")
	out, code := program(t, "corpus", "--generate", "--rows", "150", "--dup", "2", "--len", "1", "--workers", "6", "--gpu-blocks", "1500", "--seed", "5", "--out", name)
	if code != 0 || !strings.Contains(out, "300 lookups") {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	return name
}

// program runs a command and returns what it prints, of a failing one everything.
func program(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out, errs bytes.Buffer
	code := Main(t.Context(), args, &out, &errs)
	if code == 0 {
		return out.String(), code
	}
	return out.String() + errs.String(), code
}

func TestCorpusCommand(t *testing.T) {
	name := smallCorpus(t)
	again := smallCorpus(t)
	a, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(again)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("equal arguments, different files (%v)", err)
	}
	var got corpusReport
	out, code := program(t, "corpus", name, "--compare", again, "--json")
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	if got.Counts.Requests != 300 || got.Workers != 6 || got.BlockSize != corpus.DefaultBlockSize || len(got.Sections) != 6 || got.Source["duplication"] != 2.0 {
		t.Errorf("%+v", got)
	}
	out, code = program(t, "corpus", "--generate", "--rows", "150", "--dup", "2", "--len", "1", "--workers", "6", "--gpu-blocks", "1500", "--seed", "6", "--compare", name)
	if code != 1 || !strings.Contains(out, "DIFFERS") {
		t.Errorf("another seed: exit %d:\n%s", code, out)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(name), "*.part")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestMooncakeCommand runs every mode on every index in fresh processes.
func TestMooncakeCommand(t *testing.T) {
	name := smallCorpus(t)
	for _, kind := range shard.Kinds {
		for _, mode := range []string{"mixed", "write", "lookup", "contend", "bare", "open"} {
			args := []string{"mooncake", "--corpus", name, "--kv-index", kind, "--json", "--check"}
			if mode == "open" {
				args = append(args, "--window-ms", "50", "--lanes", "2", "--shards", "3", "--runs", "2")
			} else {
				args = append(args, "--mode", mode)
			}
			out, code := program(t, args...)
			var got map[string]any
			if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
				t.Fatalf("%v: exit %d, %v: %s", args, code, err, out)
			}
			want := []string{"corpus", "ops", "block_ops", "cpu_ns_per_block_op", "block_ops_per_cpu_s", "lookup_ns", "cpu_ns_per_lookup", "wall_s", "exact", "seed", "runs", "machine"}
			if kind == "chain" {
				want = append(want, "bytes_per_membership", "bytes_per_distinct_block")
			}
			if mode == "open" {
				want = append(want, "offered", "achieved", "kept_up")
			}
			for _, key := range want {
				if got[key] == nil {
					t.Errorf("%v: no %s: %s", args, key, out)
				}
			}
			exact, ok := got["exact"].(map[string]any)
			if lookups := map[bool]float64{false: 300, true: 600}[mode == "open"]; !ok || exact["lookups"] != lookups || exact["wrong"] != 0.0 {
				t.Errorf("%v: exact %v, want %v lookups, none wrong", args, got["exact"], lookups)
			}
		}
	}
	out, code := program(t, "mooncake", "--corpus", name, "--runs", "2", "--check")
	if code != 0 || !strings.Contains(out, "600 lookups, 0 wrong") || !strings.Contains(out, "ns of CPU a block operation") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	profile := filepath.Join(t.TempDir(), "cpu")
	if out, code := program(t, "mooncake", "--corpus", name, "--profile", profile); code != 0 {
		t.Errorf("exit %d:\n%s", code, out)
	}
	if st, err := os.Stat(profile); err != nil || st.Size() == 0 {
		t.Errorf("no profile: %v", err)
	}
	out, code = program(t, "mooncake", "--corpus", name, "--sustained", "--window-ms", "400", "--max-foreign", "1000")
	if code != 0 || !strings.Contains(out, "| chain |") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// TestLookupBenchCommand takes one round in this process.
func TestLookupBenchCommand(t *testing.T) {
	dir := t.TempDir()
	out, code := program(t, "lookupbench", "--arms", "process", "--control", "process", "--memberships", "5000", "--questions", "64", "--rounds", "1", "--trial", "10ms", "--max-foreign", "1000", "--json", "--out", dir)
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	for _, key := range []string{"command", "corpus", "seed", "ops", "block_ops", "lookup_ns", "cpu_ns_per_lookup", "wall_s", "exact", "machine", "rows"} {
		if got[key] == nil {
			t.Errorf("no %s: %s", key, out)
		}
	}
	if exact, ok := got["exact"].(map[string]any); !ok || exact["lookups"] == 0.0 || exact["wrong"] != 0.0 {
		t.Errorf("exact %v", got["exact"])
	}
	for _, file := range []string{"report.json", "table.md", "latency.svg", "cpu.svg"} {
		if st, err := os.Stat(filepath.Join(dir, file)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestNodeSeries runs the series that --interleave alone stands for, on a small
// corpus: with its arms on a machine of several memory nodes, where every trial also
// holds its memory's place against the kernel's table.
func TestNodeSeries(t *testing.T) {
	name, dir := smallCorpus(t), t.TempDir()
	args := []string{"--interleave", "--corpus", name, "--series", "2", "--modes", "write,lookup", "--out", dir, "--max-foreign", "1000"}
	out, code := program(t, args...)
	if code != 0 || !strings.Contains(out, "| | kindex | kindex again |") || !strings.Contains(out, "2 rounds, ") {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	topology, err := numa.Discover("/")
	if err != nil {
		t.Fatal(err)
	}
	one := len(topology.MemoryNodes()) == 1
	if strings.Contains(out, "one memory node") != one || strings.Contains(out, "| kindex interleaved |") == one {
		t.Errorf("%d memory nodes:\n%s", len(topology.MemoryNodes()), out)
	}
	again, code := program(t, append(args, "--json")...)
	var r map[string]any
	if err := json.Unmarshal([]byte(again), &r); err != nil || code != 0 || r["trials"] == 0.0 {
		t.Errorf("resumed: exit %d, %v: %s", code, err, again)
	}
	for _, file := range []string{"series.json", "trials.jsonl", "report.json", "table.md", "write.svg", "lookup.svg"} {
		if st, err := os.Stat(filepath.Join(dir, file)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestSeriesPeer has a program in the peers' place.
func TestSeriesPeer(t *testing.T) {
	name := smallCorpus(t)
	line, err := os.ReadFile("peers/testdata/smg-chain.write.json")
	if err != nil {
		t.Fatal(err)
	}
	peer := filepath.Join(t.TempDir(), "index-peers")
	if err := os.WriteFile(peer, []byte("#!/bin/sh\ncat <<'E'\n"+string(line)+"E\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	out, code := program(t, "mooncake", "--corpus", name, "--series", "1", "--modes", "write", "--control", "none", "--peer", "smg-chain", "--peers-bin", peer, "--out", t.TempDir(), "--max-foreign", "1000")
	if code != 0 || !strings.Contains(out, "| | kindex | smg-chain |") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	out, code = program(t, "mooncake", "--corpus", name, "--series", "1", "--peer", "crtc", "--peers-bin", "/nowhere", "--out", t.TempDir())
	if code != 1 || !strings.Contains(out, "--peers-bin") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// TestMeasuringUsage: what cannot be right is refused with one line.
func TestMeasuringUsage(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.kvc")
	if err := os.WriteFile(bad, []byte("KVCORP01 but not compressed"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"corpus"}, "give --trace FILE or --generate, with --out FILE", 2},
		{[]string{"corpus", "--generate"}, "--out: name the file", 2},
		{[]string{"corpus", "--generate", "--trace", "x", "--out", "y"}, "give one of them", 2},
		{[]string{"corpus", "--generate", "--dup", "0", "--out", "y"}, "--dup 0: must be 1 to 10000", 2},
		{[]string{"corpus", "--generate", "--rows", "0", "--out", "y"}, "--rows 0: must be 1 to", 2},
		{[]string{"corpus", "--trace", bad, "--out", "y"}, bad + ":1: not a request", 2},
		{[]string{"corpus", bad}, bad + ": not a corpus (KVCORP01): the first bytes: invalid input: magic number mismatch", 2},
		{[]string{"mooncake", "--peer", "llm-d"}, `--peer "llm-d": must be crtc`, 2},
		{[]string{"mooncake", "--peer", "crtc"}, "--peer: give --series N or --sustained with it", 2},
		{[]string{"mooncake", "--series", "-1"}, "--series -1: must be 1 to 1000", 2},
		{[]string{"mooncake", "--series", "2", "--modes", "write,write"}, `--modes "write,write": must be different ones of`, 2},
		{[]string{"mooncake", "--series", "2", "--check"}, "--series: takes no --window-ms and no --check", 2},
		{[]string{"mooncake", "--series", "2", "--control", "sse"}, "--control sse:", 2},
		{[]string{"mooncake", "--series", "2", "--max-foreign", "0"}, "--max-foreign 0: must be above 0", 2},
		{[]string{"mooncake", "--series", "2", "--profile", "x"}, "--profile: is of a single trial", 2},
		{[]string{"mooncake", "--series", "2", "--sustained"}, "give one of them", 2},
		{[]string{"lookupbench", "--arms", "http-hash,ftp"}, `--arms "ftp": must be different ones of process,`, 2},
		{[]string{"lookupbench", "--control", "shm2"}, "--control shm2: must be none, or one of the arms", 2},
		{[]string{"lookupbench", "--trial", "1ms"}, "--trial 1ms: must be 10ms to 1m0s", 2},
		{[]string{"lookupbench", "now"}, `unexpected argument "now"`, 2},
		{[]string{"decide", "--workers", "0"}, "--workers 0: must be 1 to 4096", 2},
		{[]string{"decide", "--kv-index", "tree"}, `--kv-index "tree": must be some of policy,`, 2},
		{[]string{"decide", "now"}, `unexpected argument "now"`, 2},
		{[]string{"mooncake", "x.kvc"}, `unexpected argument "x.kvc"`, 2},
		{[]string{"mooncake", "--corpus", bad}, bad + ": not a corpus", 1},
		{[]string{"mooncake", "--corpus", "nowhere.kvc"}, "nowhere.kvc: no such file", 1},
		{[]string{"mooncake", "--corpus", bad, "--mode", "fast"}, `--mode "fast": must be mixed, write, lookup, contend or bare`, 2},
		{[]string{"mooncake", "--corpus", bad, "--kv-index", "tree"}, `--kv-index "tree": must be chain`, 2},
		{[]string{"mooncake", "--corpus", bad, "--lanes", "2", "--shards", "1"}, "--shards 1: must be at least --lanes 2", 2},
		{[]string{"mooncake", "--corpus", bad, "--lanes", "0"}, "--lanes 0: must be 1 to", 2},
		{[]string{"mooncake", "--corpus", bad, "--runs", "0"}, "--runs 0: must be 1 to 1000", 2},
		{[]string{"mooncake", "--corpus", bad, "--cpu-features", "sse9"}, `invalid value "sse9" for flag -cpu-features`, 2},
		{[]string{"mooncake", "--corpus", bad, "--window-ms", "9", "--mode", "write"}, "--mode write with --window-ms", 2},
	} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), test.args, &out, &errs)
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		if code != test.code || !strings.Contains(lines[len(lines)-1], test.want) || test.code == 2 && len(lines) != 1 {
			t.Errorf("%v: exit %d, %q, want %d and one line with %q", test.args, code, errs.String(), test.code, test.want)
		}
	}
}

func TestSoakRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"soak", "--out", dir, "--resume"}, "--resume: " + dir + ": there is no soak to go on with"},
		{[]string{"soak", "--out", dir, "--window", "1s"}, "--window 1s: must be"},
		{[]string{"soak", "more"}, "unexpected argument"},
	} {
		out, code := program(t, test.args...)
		if code != exitUsage || !strings.Contains(out, test.want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%v: exit %d, want one line with %q:\n%s", test.args, code, test.want, out)
		}
	}
}
