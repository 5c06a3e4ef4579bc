// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kindex/harness/corpus"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/shard"
	"kindex/shard/planted"
)

// small is a corpus of some hundred operations with a clear at its end.
func small(t *testing.T) Options {
	t.Helper()
	rows, err := corpus.Generate(3, 60)
	if err != nil {
		t.Fatal(err)
	}
	c, err := corpus.Simulate(t.Context(), rows, corpus.Params{Duplication: 2, Length: 1, Workers: 5, GPUBlocks: 600, Seed: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Ops = append(c.Ops, corpus.Op{Kind: corpus.Clear, Due: corpus.Window, Worker: 2, At: corpus.NoNode})
	var b bytes.Buffer
	if err := corpus.Write(&b, c); err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Corpus = filepath.Join(t.TempDir(), "small.kvc")
	o.Steps, o.Lookups = 400, 2_500
	if err := os.WriteFile(o.Corpus, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestOne: all indexes are exact in all parts, and were really asked.
func TestOne(t *testing.T) {
	o := small(t)
	r, err := One(t.Context(), o, trial.NewProgress(nil, ""))
	if err != nil {
		t.Fatal(err)
	}
	if r.Exact.Wrong != 0 || r.Unequal != 0 {
		t.Errorf("%d of %d lookups wrong, %d contents unequal: %q", r.Exact.Wrong, r.Exact.Lookups, r.Unequal, r.Differs)
	}
	var parts []string
	sum := int64(0)
	for _, p := range r.Parts {
		parts = append(parts, p.Name)
		if sum += p.Questions; p.Questions == 0 || p.Memberships == 0 || !p.Same {
			t.Errorf("%+v", p)
		}
	}
	if len(parts) != 5 || sum < o.Lookups || r.Parts[0].Questions != 120 || r.Parts[1].Questions != int64(o.Steps) {
		t.Errorf("parts %q with %d questions", parts, sum)
	}
	if len(r.Indexes) != 6 || r.Exact.Lookups != 6*sum {
		t.Errorf("%d indexes, %d lookups, want 6 with %d", len(r.Indexes), r.Exact.Lookups, 6*sum)
	}
}

// TestPlanted: what is wrong with an index is seen.
func TestPlanted(t *testing.T) {
	o := small(t)
	o.Shards, o.Steps, o.Lookups = []int{1}, 250, 2_400
	for _, f := range []planted.Fault{planted.ForgetsRemoval, planted.JumpsHoles, planted.IgnoresTier, planted.DropsCopyEarly, planted.StaleAnswer} {
		for _, kind := range Kinds {
			o.Kinds = []string{kind}
			r, err := one(t.Context(), o, trial.NewProgress(nil, ""), func(idx shard.Index) shard.Index { return planted.New(idx, f) })
			if err != nil {
				t.Fatalf("%s that %s: %v", kind, f, err)
			}
			// One block that stays too long may be asked for by nobody: then the content tells.
			if r.Exact.Wrong == 0 && (r.Unequal == 0 || f != planted.ForgetsRemoval) || len(r.Differs) == 0 || r.Indexes[0].Wrong != r.Exact.Wrong {
				t.Errorf("%s that %s: %d lookups, %d wrong, %d described", kind, f, r.Exact.Lookups, r.Exact.Wrong, len(r.Differs))
			}
		}
	}
}

// liar answers sets and batches wrongly.
type liar struct {
	shard.Index
	groups bool
}

func (l liar) LookupGroups(ns kv.Namespace, chain []kv.ContentHash, a *shard.Answer) {
	l.Index.(shard.Grouper).LookupGroups(ns, chain, a)
	if l.groups && len(a.Singles) > 0 {
		a.Singles[0].Any++
	}
}

func (l liar) LookupBatch(queries []shard.Query) {
	l.Index.(shard.Batcher).LookupBatch(queries)
	if q := &queries[1]; !l.groups && len(q.Matches) > 0 {
		q.Matches = append(q.Matches, q.Matches[0])
	}
}

// TestForms: the other forms are held against the reference, too.
func TestForms(t *testing.T) {
	o := small(t)
	o.Shards, o.Kinds = []int{2}, Kinds[:1]
	for groups, said := range map[bool]string{true: "as sets", false: "in a batch"} {
		r, err := one(t.Context(), o, trial.NewProgress(nil, ""), func(idx shard.Index) shard.Index { return liar{idx, groups} })
		if err != nil {
			t.Fatal(err)
		}
		if r.Exact.Wrong == 0 || !strings.Contains(r.Differs[0], said) {
			t.Errorf("%d wrong, %q, want one that says %q", r.Exact.Wrong, r.Differs, said)
		}
	}
}

// TestCache holds the set to draw from against a map.
func TestCache(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // seeded on purpose
	c, want := newCaches(1)[0], map[kv.EngineHash]bool{}
	for range 2_000 {
		if e := kv.EngineHash(rng.IntN(300)); rng.IntN(2) == 0 || len(want) == 0 {
			c.add(e)
			want[e] = true
		} else {
			delete(want, c.lose(rng))
		}
		if len(c.names) != len(want) || len(c.at) != len(want) {
			t.Fatalf("%d and %d blocks, want %d", len(c.names), len(c.at), len(want))
		}
	}
	for e := range want {
		if !c.has(e) {
			t.Errorf("%d is not held", e)
		}
	}
}

func TestLevels(t *testing.T) {
	all := Levels("avx512")
	if l := Levels("generic"); !slices.Equal(l, []string{"generic"}) || all[len(all)-1] != "generic" {
		t.Errorf("%q, %q", l, all)
	}
}
