// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"kindex/asm/asmtest"
	"kindex/internal/longtest"
	"kindex/shard"
	"kindex/shard/planted"
)

// fixtures returns the shipped recordings whose names match.
func fixtures(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob("../testdata/fixtures/given/" + pattern + ".jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings like %s: %v", pattern, err)
	}
	return files
}

// The rules that the shipped recordings need, and how often. A new difference is
// a fault of ours or a new fact about an engine: it is looked into, not counted.
var (
	wantTableRules  = map[string]int{rulePendingClear: 3}
	wantCreditRules = map[string]int{
		ruleBigram: 11, ruleDeferredClear: 3, ruleInFlight: 132, ruleLookahead: 1, ruleEmbeddings: 11,
		ruleRankChoice: 11, ruleRestart: 1, ruleWindowGroups: 11, ruleWindowOnly: 14,
	}
)

// TestFixtures replays every shipped recording into every index.
func TestFixtures(t *testing.T) {
	for _, kind := range shard.Kinds {
		t.Run(kind, func(t *testing.T) { replayAll(t, Options{Index: kind}) })
	}
}

// TestFixturesLevels replays every shipped recording into the chain index in 2 shards,
// in the long suite in 1 and 4, too, at each level of the kernels.
func TestFixturesLevels(t *testing.T) {
	shards := []int{2}
	if longtest.Enabled() {
		shards = []int{1, 2, 4}
	}
	asmtest.ForEachLevel(t, func(t *testing.T) {
		for _, n := range shards {
			t.Run(fmt.Sprintf("%d-shards", n), func(t *testing.T) {
				t.Parallel()
				replayAll(t, Options{Index: "chain", Wrap: func(shard.Index) shard.Index {
					s, err := shard.NewSharded("chain", make([]shard.Options, n)...)
					if err != nil {
						t.Error(err)
					}
					return s
				}})
			})
		}
	})
}

// replayAll replays every shipped recording and holds the report to be right.
func replayAll(t *testing.T, o Options) {
	t.Helper()
	r, err := Files(fixtures(t, "*"), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Faults {
		t.Error(f)
	}
	if !r.OK() {
		t.Errorf("%d mismatches, wrong: %d messages, %d tables, %d requests", r.Mismatches, r.DecodeTruth.Wrong, r.EngineTable.Wrong, r.Credit.Wrong)
	}
	if !maps.Equal(r.EngineTable.Rules, wantTableRules) {
		t.Errorf("rules of the engine's table: %v, want %v", r.EngineTable.Rules, wantTableRules)
	}
	if !maps.Equal(r.Credit.Rules, wantCreditRules) {
		t.Errorf("rules of cached tokens: %v, want %v", r.Credit.Rules, wantCreditRules)
	}
	if r.DecodeTruth.Messages != 1619 || r.EngineTable.Exact != 261 || r.Credit.Exact != 2415 {
		t.Errorf("compared %d messages with truth, %d tables exactly and %d requests exactly, want 1619, 261 and 2415",
			r.DecodeTruth.Messages, r.EngineTable.Exact, r.Credit.Exact)
	}
	t.Logf("%d files, %d batches, %d events; compared: %d memberships, %d lookups, %d messages with truth, %d engine tables, %d requests",
		r.Files, r.Batches, r.Events, r.Memberships, r.Lookups, r.DecodeTruth.Messages, r.EngineTable.Checks, r.Credit.Requests)
}

// forgetful loses every 20th removal.
type forgetful struct {
	shard.Index
	n int
}

func (f *forgetful) Remove(h shard.Holder, rm *shard.Remove) error {
	if f.n++; f.n%20 == 0 {
		return nil
	}
	return f.Index.Remove(h, rm)
}

// TestPlantedFault shows that a faulty index is seen, by the reference and, where
// the fault is in what an engine's table or number shows, by the engine's truth.
func TestPlantedFault(t *testing.T) {
	tests := []struct {
		name   string
		files  string
		wrap   func(shard.Index) shard.Index
		tables bool // wrong by the engine's table, too
		credit bool // and by its cached tokens
	}{
		{"forgets every 20th removal", "*evict*", func(idx shard.Index) shard.Index { return &forgetful{Index: idx} }, true, true},
		{"jumps holes", "*offload*", wrapper(planted.JumpsHoles), false, false},
		{"takes every tier for the device", "*hicache*", wrapper(planted.IgnoresTier), true, false},
		{"drops a copy early", "legacy_sglang*", wrapper(planted.DropsCopyEarly), false, false},
		{"takes the wrong namespace", "vllm*_[lmc]*", wrapper(planted.WrongNamespace), false, true},
		{"answers from before", "*evict*", wrapper(planted.StaleAnswer), false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, err := Files(fixtures(t, test.files), Options{Index: "reference", Wrap: test.wrap})
			if err != nil {
				t.Fatal(err)
			}
			if r.OK() || r.Mismatches == 0 || len(r.Faults) == 0 {
				t.Fatalf("not seen: %d mismatches", r.Mismatches)
			}
			if (r.EngineTable.Wrong > 0) != test.tables || (r.Credit.Wrong > 0) != test.credit {
				t.Errorf("wrong: %d tables, %d requests; want tables %t, requests %t", r.EngineTable.Wrong, r.Credit.Wrong, test.tables, test.credit)
			}
			t.Logf("%d mismatches, %d tables and %d requests wrong; first: %v", r.Mismatches, r.EngineTable.Wrong, r.Credit.Wrong, r.Faults[0])
		})
	}
}

func wrapper(f planted.Fault) func(shard.Index) shard.Index {
	return func(idx shard.Index) shard.Index { return planted.New(idx, f) }
}
