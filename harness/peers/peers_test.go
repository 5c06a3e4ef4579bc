// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/harness/trial"
)

// TestParse reads captured lines of every mode that is asked for.
func TestParse(t *testing.T) {
	for _, test := range []struct {
		file string
		ok   func(r *Run) bool
	}{
		{"smg-chain.write", func(r *Run) bool { return r.CPUPerBlock > 1 && r.BlockOps > 0 && r.Wall > 0 }},
		{"smg-chain.lookup", func(r *Run) bool {
			return r.Half.CPU > 1 && r.Full.Latency.Samples == 629 && r.Full.Latency.P99 >= r.Full.Latency.P50 && *r.Full.CPUNoMap > 1
		}},
		{"crtc.lookup", func(r *Run) bool { return r.Half.CPU > 1 && r.Half.CPUNoMap == nil }},
		{"crtc.mixed", func(r *Run) bool { return r.PerCPU > 1e6 && r.Latency.P50 > 0 }},
		{"smg-chain.contend", func(r *Run) bool { return r.CPUPerLookup > 1 && r.WritePerCPU > 1e6 && r.Latency.P50 > 0 }},
		{"smg-chain.memory", func(r *Run) bool { return r.Loaded.PerMembership > 1 && r.Loaded.PerBlock > 1 && r.Swept == nil }},
		{"crtc.memory", func(r *Run) bool { return r.Loaded.PerMembership > r.Swept.PerMembership && r.Swept.PerBlock > 1 }},
		{"crtc.replay", func(r *Run) bool {
			return r.Window == 0.2 && r.Offered > 2e6 && r.Achieved > 0 && r.IssuedOverWindow >= 1 && r.Service.P50 > 0
		}},
	} {
		line, err := os.ReadFile(filepath.Join("testdata", test.file+".json"))
		if err != nil {
			t.Fatal(err)
		}
		o, err := Parse(line)
		if err != nil {
			t.Errorf("%s: %v", test.file, err)
			continue
		}
		if o.Indexer+"."+o.Mode != test.file || len(o.Runs) != 2 || o.Versions["dynamo-kv-router"] != "1.6.1" || !test.ok(o.Last()) {
			t.Errorf("%s: %+v", test.file, o.Last())
		}
	}
	for _, line := range []string{"", "{}", `{"indexer":"crtc","runs":[]}`, "bad argument", `{"indexer":"crtc","runs":[{}]}{}`} {
		if _, err := Parse([]byte(line)); err == nil || !strings.HasPrefix(err.Error(), "index-peers' output") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestArgs(t *testing.T) {
	q := Question{Indexer: "crtc", Mode: "replay", Corpus: "x.kvc", WindowMS: 750}
	if got, want := strings.Join(q.Args(), " "), "--indexer crtc --mode replay --corpus x.kvc --runs 2 --json --window-ms 750"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !Known("smg-positional") || Known("") || Known("kindex") {
		t.Error("indexers")
	}
}

// TestBuildWithoutCargo: a clear line, and nothing unpacked.
func TestBuildWithoutCargo(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(trial.CacheEnv, cache)
	t.Setenv("PATH", "")
	t.Setenv("HOME", cache)
	if _, err := Build(t.Context(), trial.NewProgress(nil, "x"), nil); !errors.Is(err, ErrNoCargo) {
		t.Errorf("%v, want %v", err, ErrNoCargo)
	}
}

// TestUnpack: what is built is what is in the tree.
func TestUnpack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "src")
	if err := unpack(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Cargo.toml", "Cargo.lock", "src/main.rs", "src/index.rs"} {
		want, err := os.ReadFile(filepath.Join(program, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s differs (%v)", name, err)
		}
	}
	a, err := Version()
	if b, err2 := Version(); err != nil || err2 != nil || a != b || len(a) != 12 {
		t.Errorf("version %q, then %q (%v, %v)", a, b, err, err2)
	}
}
