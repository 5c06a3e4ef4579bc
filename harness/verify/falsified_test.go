// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/shard"
)

// TestFalsified falsifies what the engine said of itself. A rule that explained
// any number would let it pass: each falsified answer, and each falsified table,
// must be reported wrong.
func TestFalsified(t *testing.T) {
	var answers, tables int
	for i, path := range append(fixtures(t, "*"), made(t)...) {
		rng := rand.New(rand.NewPCG(7, uint64(i))) //nolint:gosec // seeded on purpose
		f, err := record.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		size := f.Header.MainBlockSize()
		falseAnswers, falseTables := 0, 0
		prompts, equal := map[string]bool{}, map[string]bool{} // equal requests at once may trade their numbers
		for j := range f.Lines {
			l := &f.Lines[j]
			switch {
			case l.Req != nil:
				p := fmt.Sprint(l.Req.Prompt)
				equal[l.Req.ID], prompts[p] = prompts[p], true
			case l.Resp != nil && !equal[l.Resp.ID] && falsifyAnswer(l.Resp, size, rng):
				falseAnswers++
			case l.State != nil && falsifyTable(l.State, rng):
				falseTables++
			}
		}
		if falseAnswers+falseTables == 0 {
			continue
		}
		r, err := File(f, Options{Index: "reference", truthOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.OK() || r.Credit.Wrong < falseAnswers || r.EngineTable.Wrong < falseTables {
			t.Errorf("%s: %d of %d false answers and %d of %d false tables were seen", filepath.Base(path),
				r.Credit.Wrong, falseAnswers, r.EngineTable.Wrong, falseTables)
			for _, j := range r.Judged {
				if j.OK {
					t.Logf("    request %s: predicted %d, told %d, rule %q", j.ID, j.Predicted, j.Cached, j.Rule)
				}
			}
		}
		answers += falseAnswers
		tables += falseTables
	}
	t.Logf("%d false answers, %d false tables", answers, tables)
}

// made returns the recordings of kinds that the shipped ones lack.
func made(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../testdata/fixtures/made/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	return files
}

// TestMade pins what comes of the recordings beside the shipped ones.
func TestMade(t *testing.T) {
	want := map[string]struct {
		batches, memberships, tables, requests int
		tableRules, creditRules                map[string]int
	}{
		"sglang0523_unified_extra_key_page16.jsonl.gz":  {77, 7081, 0, 44, nil, map[string]int{ruleHiddenNamespace: 16}},
		"vllm032_hybrid_reannounced.jsonl.gz":           {92, 7303, 0, 35, map[string]int{ruleReannounced: 6}, map[string]int{ruleWindowGroups: 15}},
		"vllm032_sliding_only_chunked_prefill.jsonl.gz": {41, 0, 7, 13, nil, map[string]int{ruleInFlight: 3, ruleWindowOnly: 24}},
	}
	for _, kind := range shard.Kinds {
		for _, path := range made(t) {
			w, ok := want[filepath.Base(path)]
			if !ok {
				t.Errorf("%s: no pinned counts", path)
				continue
			}
			r, err := Files([]string{path}, Options{Index: kind})
			if err != nil {
				t.Fatal(err)
			}
			for _, fault := range r.Faults {
				t.Error(fault)
			}
			if !r.OK() || r.Batches != w.batches || r.Memberships != w.memberships || r.EngineTable.Exact != w.tables || r.Credit.Exact != w.requests ||
				!maps.Equal(r.EngineTable.Rules, w.tableRules) || !maps.Equal(r.Credit.Rules, w.creditRules) {
				t.Errorf("%s, %s: %d batches, %d memberships, tables %d exact and %v, requests %d exact and %v; want %+v", kind, filepath.Base(path),
					r.Batches, r.Memberships, r.EngineTable.Exact, r.EngineTable.Rules, r.Credit.Exact, r.Credit.Rules, w)
			}
		}
	}
}

// falsifyAnswer moves the cached tokens by one block, to a number that could be.
func falsifyAnswer(r *record.Resp, size int, rng *rand.Rand) bool {
	if r.Cached == nil {
		return false
	}
	up, down := *r.Cached+size, *r.Cached-size
	switch {
	case down >= 0 && (up > r.PromptTokens || rng.IntN(2) == 0):
		*r.Cached = down
	case up <= r.PromptTokens:
		*r.Cached = up
	default:
		return false
	}
	return true
}

// falsifyTable adds an entry, takes one away, or puts one in another tier.
func falsifyTable(st *record.State, rng *rand.Rand) bool {
	n := len(st.Cached)
	at := rng.IntN(max(n, 1))
	switch what := rng.IntN(3); {
	case n > 0 && what == 0:
		st.Cached = append(st.Cached[:at:at], st.Cached[at+1:]...)
	case n > 0 && what == 1:
		st.Cached[at].Hash ^= 1
	default:
		c := record.Cached{Hash: kv.EngineHash(rng.Uint64()), Copies: 1}
		if n > 0 {
			c.Group, c.Tiers = st.Cached[at].Group, st.Cached[at].Tiers
		}
		st.Cached = append(st.Cached, c)
	}
	return true
}
