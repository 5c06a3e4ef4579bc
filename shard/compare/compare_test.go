// SPDX-License-Identifier: Apache-2.0

package compare_test

import (
	"errors"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/shard"
	"kindex/shard/compare"
)

const ns = kv.Namespace(7)

func newIndex(t *testing.T) shard.Index {
	t.Helper()
	idx, err := shard.New("reference", shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return idx
}

// two returns two empty references with one holder each, told to be the same.
func two(t *testing.T) (want, got shard.Index, h shard.Holder, c *compare.Comparer) {
	t.Helper()
	want, got = newIndex(t), newIndex(t)
	c = compare.New(compare.Side{Name: "want", Indexes: []shard.Index{want}}, compare.Side{Name: "got", Indexes: []shard.Index{got}})
	for _, idx := range []shard.Index{want, got} {
		var err error
		if h, err = idx.AddHolder(0); err != nil {
			t.Fatal(err)
		}
	}
	c.Add("worker 1", compare.Place{Holder: h}, compare.Place{Holder: h})
	return want, got, h, c
}

func tell(t *testing.T, idx shard.Index, h shard.Holder, st shard.Store) {
	t.Helper()
	if st.Namespace == 0 {
		st.Namespace = ns
	}
	if err := idx.Store(h, &st); err != nil {
		t.Fatal(err)
	}
}

func chain(from, to kv.ContentHash) (st shard.Store) {
	for c := from; c <= to; c++ {
		st.Contents = append(st.Contents, c)
		st.Engines = append(st.Engines, kv.EngineHash(c)+100)
	}
	return st
}

// Each way in which contents and counters can differ is seen and worded.
func TestDifferences(t *testing.T) {
	host := chain(1, 4)
	host.Tier = kv.TierHost
	other := chain(1, 4)
	other.Engines[3] = 999
	elsewhere := chain(1, 4)
	elsewhere.Namespace = 8
	removal := func(engines ...kv.EngineHash) func(shard.Index, shard.Holder) error {
		return func(idx shard.Index, h shard.Holder) error { return idx.Remove(h, &shard.Remove{Engines: engines}) }
	}
	store := func(st shard.Store) func(shard.Index, shard.Holder) error {
		return func(idx shard.Index, h shard.Holder) error {
			if st.Namespace == 0 {
				st.Namespace = ns
			}
			return idx.Store(h, &st)
		}
	}
	for _, c := range []struct {
		name      string
		want, got func(shard.Index, shard.Holder) error
		says      string
	}{
		{"missing", store(chain(1, 5)), store(chain(1, 4)), "got has nothing there"},
		{"extra", store(chain(1, 4)), store(chain(1, 5)), "want nothing there"},
		{"tier", store(chain(1, 4)), store(host), "got has 65 on host group 0 x1, want 65 on device group 0 x1"},
		{"engine hash", store(chain(1, 4)), store(other), "got has 3e7 on device"},
		{"namespace", store(chain(1, 4)), store(elsewhere), "namespace 7 chain [1]: got has nothing there"},
		{"unknown removals", removal(1, 2), removal(1), "counters: got has {Memberships:0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, got, h, cmp := two(t)
			if err := cmp.All(); err != nil {
				t.Fatalf("two empty indexes: %v", err)
			}
			if err := errors.Join(c.want(want, h), c.got(got, h)); err != nil {
				t.Fatal(err)
			}
			err := cmp.All()
			if !errors.Is(err, compare.ErrDiffers) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "worker 1") {
				t.Fatalf("All: %v; want an ErrDiffers of worker 1 that says %q", err, c.says)
			}
		})
	}
}

// liar answers lookups as it is told to.
type liar struct {
	shard.Index
	says []kv.Match
}

func (l *liar) Lookup(_ kv.Namespace, _ []kv.ContentHash, dst []kv.Match) []kv.Match {
	return append(dst, l.says...)
}

// Answers that differ, and answers that can never be, are seen.
func TestLookupDifferences(t *testing.T) {
	for _, c := range []struct {
		name string
		says []kv.Match
		want string
	}{
		{"too deep", []kv.Match{{Holder: 1, Device: 4, Host: 4, Any: 4}}, "got has device 4, host 4, any 4, want device 3"},
		{"not at all", nil, "got has device 0"},
		{"another tier", []kv.Match{{Holder: 1, Device: 0, Host: 3, Any: 3}}, "got has device 0, host 3"},
		{"unknown holder", []kv.Match{{Holder: 2, Device: 3, Host: 3, Any: 3}}, "names holder 2, never added"},
		{"twice", []kv.Match{{Holder: 1, Device: 3, Host: 3, Any: 3}, {Holder: 1, Device: 3, Host: 3, Any: 3}}, "holder 1 twice"},
		{"empty match", []kv.Match{{Holder: 1}}, "impossible depths"},
		{"not cumulative", []kv.Match{{Holder: 1, Device: 3, Host: 2, Any: 3}}, "impossible depths"},
		{"past the end", []kv.Match{{Holder: 1, Device: 3, Host: 3, Any: 9}}, "impossible depths"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := newIndex(t)
			h, err := want.AddHolder(0)
			if err != nil {
				t.Fatal(err)
			}
			tell(t, want, h, chain(1, 3))
			cmp := compare.New(compare.Side{Name: "want", Indexes: []shard.Index{want}}, compare.Side{Name: "got", Indexes: []shard.Index{&liar{want, c.says}}})
			cmp.Add("worker 1", compare.Place{Holder: h}, compare.Place{Holder: h})
			err = cmp.Lookup(ns, []kv.ContentHash{1, 2, 3, 4})
			if !errors.Is(err, compare.ErrDiffers) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Lookup: %v; want an ErrDiffers that says %q", err, c.want)
			}
		})
	}
}

// A holder that one side dropped and the other did not is seen.
func TestDropped(t *testing.T) {
	want, got, h, c := two(t)
	for _, idx := range []shard.Index{want, got} {
		tell(t, idx, h, chain(1, 3))
	}
	if err := want.Drop(h); err != nil {
		t.Fatal(err)
	}
	c.Remove(0)
	if err := c.State(); !errors.Is(err, compare.ErrDiffers) {
		t.Fatalf("State: %v, want a difference in the number of holders", err)
	}
	if err := c.Lookup(ns, []kv.ContentHash{1}); err == nil || !strings.Contains(err.Error(), "dropped since") {
		t.Fatalf("Lookup: %v, want that a dropped holder is named", err)
	}
}

// All keeps asking for chains that have gone, and counts a chain that grew once.
func TestChainsAreKept(t *testing.T) {
	want, got, h, c := two(t)
	step := func(st shard.Store) {
		t.Helper()
		for _, idx := range []shard.Index{want, got} {
			tell(t, idx, h, st)
		}
		if err := c.All(); err != nil {
			t.Fatal(err)
		}
	}
	chains := func() uint64 {
		t.Helper()
		before := c.Counts().Chains
		if err := c.All(); err != nil {
			t.Fatal(err)
		}
		return c.Counts().Chains - before
	}
	step(chain(1, 3))
	if n := chains(); n != 1 {
		t.Fatalf("one chain stored: %d asked", n)
	}
	grow := chain(4, 6)
	grow.HasParent, grow.Parent = true, 103
	step(grow)
	if n := chains(); n != 1 {
		t.Fatalf("the chain grew: %d asked", n)
	}
	sibling := chain(7, 8)
	sibling.HasParent, sibling.Parent = true, 102
	step(sibling)
	if n := chains(); n != 2 {
		t.Fatalf("a sibling below its second block: %d asked", n)
	}
	for _, idx := range []shard.Index{want, got} {
		if err := idx.Clear(h); err != nil {
			t.Fatal(err)
		}
	}
	if n := chains(); n != 2 {
		t.Fatalf("all cleared: %d asked", n)
	}
	if err := c.Held(); err != nil {
		t.Fatal(err)
	}
	if got := c.Counts().String(); !strings.Contains(got, "lookups") {
		t.Fatalf("counts in words: %q", got)
	}
}
