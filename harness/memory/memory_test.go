// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"slices"
	"strings"
	"testing"

	"kindex/harness/trial"
	"kindex/shard"
)

func small(kind string) Options {
	o := DefaultOptions()
	o.Index, o.Workers, o.Memberships, o.Mean, o.Holders = kind, 8, 20_000, 40, 3
	return o
}

// TestOne fills and turns over every index: the counts are those of the workload, every
// chain asked for is held by who stored it, and the accounts add up.
func TestOne(t *testing.T) {
	for _, kind := range shard.Kinds {
		for _, private := range []bool{false, true} {
			o := small(kind)
			o.Private = private
			r, err := One(t.Context(), o, trial.NewProgress(nil, ""))
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if r.Exact.Wrong != 0 || r.Exact.Lookups < 200 {
				t.Errorf("%s: %d of %d lookups wrong", kind, r.Exact.Wrong, r.Exact.Lookups)
			}
			for _, a := range []*Account{&r.Filled, r.Turned} {
				// The last chain may go past the mark by its length.
				if most := uint64(o.Memberships + o.Holders*longest*o.Mean); a.Memberships < uint64(o.Memberships) || a.Memberships > most || a.Blocks*uint64(o.Holders) != a.Memberships {
					t.Errorf("%s: %d memberships of %d blocks, want %d to %d by %d holders", kind, a.Memberships, a.Blocks, o.Memberships, most, o.Holders)
				}
				sum := 0.0
				for _, x := range a.Purpose {
					sum += x
				}
				if got := float64(a.Accounted) / float64(a.Memberships); sum < got*0.999 || sum > got*1.001 || a.PerMembership < got {
					t.Errorf("%s: purposes add up to %.2f, accounts are %.2f, all is %.2f", kind, sum, got, a.PerMembership)
				}
			}
			if r.PerMembership < r.Filled.PerMembership || r.PerMembership < r.Turned.PerMembership {
				t.Errorf("%s: %.1f is not the greater of %.1f and %.1f", kind, r.PerMembership, r.Filled.PerMembership, r.Turned.PerMembership)
			}
		}
	}
}

// TestChains: equal numbers give equal chains, holders are different workers.
func TestChains(t *testing.T) {
	o := small("chain")
	var a, b chain
	for i := range uint64(200) {
		a.make(&o, i)
		b.make(&o, i+1)
		b.make(&o, i)
		if !slices.Equal(a.contents, b.contents) || !slices.Equal(a.names, b.names) || !slices.Equal(a.holders, b.holders) {
			t.Fatalf("chain %d differs the second time", i)
		}
		s := slices.Compact(slices.Sorted(slices.Values(a.holders)))
		if len(s) != o.Holders || s[0] < 0 || s[len(s)-1] >= o.Workers {
			t.Fatalf("chain %d: holders %v", i, a.holders)
		}
		if o.Private = true; slices.Equal(slices.Clone(a.namesOf(&o, 1)), a.namesOf(&o, 2)) {
			t.Fatalf("chain %d: workers 1 and 2 share names", i)
		}
		o.Private = false
	}
}

// TestBar: a row over its bar says so, one with private names has none.
func TestBar(t *testing.T) {
	made := func(per float64, private bool) []*Result {
		a := Account{Memberships: 1, PerMembership: per}
		return []*Result{{Report: trial.Report{PerMembership: per, Exact: &trial.Exact{}}, Holders: 4, Private: private, Filled: a}}
	}
	if r := row(made(14, false), nil); r.Within == nil || !*r.Within || r.Bar != 14 {
		t.Errorf("14 of 14: %+v", r)
	}
	if r := row(made(14.1, false), nil); r.Within == nil || *r.Within {
		t.Errorf("14.1 of 14: %+v", r)
	}
	if r := row(made(50, true), nil); r.Within != nil {
		t.Errorf("private: %+v", r)
	}
	var b strings.Builder
	table := &Table{Report: trial.Report{Exact: &trial.Exact{}}, Rows: []Row{row(made(14.1, false), nil)}}
	if err := table.WriteText(&b); err != nil || !strings.Contains(b.String(), "| 4 | 14.10 | 14 (over) |") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}
