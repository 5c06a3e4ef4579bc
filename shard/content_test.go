// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/shard"
)

// twins are one index under proof and the reference, with the same holders.
type twins struct {
	t     *testing.T
	rng   *rand.Rand
	idx   [2]shard.Index // under proof, the reference
	model kv.ModelKey
	ids   [][2]shard.Holder
	seeds []int // of a holder's engine hashes: equal seeds name blocks alike
}

func newTwins(t *testing.T, kind string, seed uint64, holders int) *twins {
	t.Helper()
	opts := shard.Options{MaxOrphanBlocks: 500}
	idx, err := shard.New(kind, opts)
	if err != nil {
		t.Fatal(err)
	}
	w := &twins{
		t: t, rng: rand.New(rand.NewPCG(seed, 5)), //nolint:gosec // seeded on purpose
		idx: [2]shard.Index{idx, shard.NewReference(opts)}, model: 7,
	}
	for range holders {
		w.join()
	}
	return w
}

func (w *twins) join() {
	w.t.Helper()
	var ids [2]shard.Holder
	for i, idx := range w.idx {
		var err error
		if ids[i], err = idx.AddHolder(w.model); err != nil {
			w.t.Fatal(err)
		}
	}
	w.ids = append(w.ids, ids)
	w.seeds = append(w.seeds, w.rng.IntN(3))
}

const (
	twinChains = 4
	twinBlocks = 700 // more than a run has
)

// content is block i of chain q, of which two begin alike.
func twinContent(q, i int) kv.ContentHash {
	if q%2 == 1 && i < 300 {
		q--
	}
	return kv.ContentHash(q*10_000 + i)
}

func (w *twins) engine(seed, q, i int) kv.EngineHash {
	if w.rng.IntN(60) == 0 { // a name of its own, or one that moves
		return kv.EngineHash(1 + w.rng.IntN(40))
	}
	return kv.EngineHash(uint64(twinContent(q, i))*1_000_003+uint64(i)<<1+1) ^ kv.EngineHash(uint64(seed)<<60)
}

// act does something random for holder i in both.
func (w *twins) act(i int) {
	w.t.Helper()
	r := w.rng
	q := r.IntN(twinChains)
	lo := r.IntN(twinBlocks)
	hi := min(lo+1+r.IntN(200), twinBlocks)
	if r.IntN(3) == 0 {
		lo = 0
	}
	tier, group := kv.Tier(0), uint8(0)
	if r.IntN(5) == 0 {
		tier, group = kv.Tier(r.IntN(3)), uint8(r.IntN(2))
	}
	var engines []kv.EngineHash
	for k := lo; k < hi; k++ {
		engines = append(engines, w.engine(w.seeds[i], q, k))
	}
	do := func(fn func(idx shard.Index, h shard.Holder) error) {
		w.t.Helper()
		for k, idx := range w.idx {
			if err := fn(idx, w.ids[i][k]); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	switch k := r.IntN(60); {
	case k == 0:
		do(func(idx shard.Index, h shard.Holder) error { return idx.Clear(h) })
	case k < 22:
		slices.Reverse(engines)
		do(func(idx shard.Index, h shard.Holder) error {
			return idx.Remove(h, &shard.Remove{Tier: tier, Group: group, Engines: engines})
		})
	case k < 24: // placeholders
		st := shard.Store{Tier: kv.TierHost, Engines: engines[:1]}
		do(func(idx shard.Index, h shard.Holder) error { return idx.Store(h, &st) })
	default:
		st := shard.Store{Tier: tier, Group: group, Namespace: w.model.Namespace(kv.HashSeed + uint64(r.IntN(8)/7)), Engines: engines}
		for k := lo; k < hi; k++ {
			st.Contents = append(st.Contents, twinContent(q, k))
		}
		if r.IntN(3) == 0 { // it keeps its tokens while it waits
			st.Blocks = kv.Blocks{BlockSize: 1, Tokens: make([]uint32, len(engines))}
			for k := range st.Blocks.Tokens {
				st.Blocks.Tokens[k] = uint32(twinContent(q, lo+k))
			}
			st.Contents = st.Blocks.AppendHashes(nil, w.model.Seed(st.Namespace))
		}
		if lo > 0 && r.IntN(8) > 0 {
			st.Parent, st.HasParent = w.engine(w.seeds[i], q, lo-1), true
		}
		do(func(idx shard.Index, h shard.Holder) error { return idx.Store(h, &st) })
	}
}

// read copies the content of holder i of index k; between is called between pieces.
func (w *twins) read(k, i int, between func()) *shard.Content {
	w.t.Helper()
	r, err := shard.ReadContent(w.idx[k], w.ids[i][k])
	if err != nil {
		w.t.Fatal(err)
	}
	shard.SmallPieces(r)
	r.Prepare()
	var c shard.Content
	for r.Next(&c) {
		between()
	}
	return &c
}

// said lists all that c says, in no order of its own.
func said(c *shard.Content) (all []string, err error) {
	paths := make([]string, len(c.Hashes))
	for i, st := range c.Stretches {
		if st.Parent >= st.First || st.Parent < -1 || i == 0 && st.First != 0 || c.End(i) <= st.First {
			return nil, fmt.Errorf("stretch %d begins at %d below %d", i, st.First, st.Parent)
		}
		above := fmt.Sprint(uint64(st.Namespace))
		if st.Parent >= 0 {
			above = paths[st.Parent]
		}
		for at := st.First; at < c.End(i); at++ {
			above = fmt.Sprintf("%x/%d", kv.ContentHash(len(above))*31+c.Hashes[at], hashOf(above))
			paths[at] = above
			line := above
			copies := slices.Clone(c.CopiesOf(at))
			slices.SortFunc(copies, func(a, b shard.Copy) int {
				return slices.Compare([]uint64{uint64(a.Engine), uint64(a.Tier), uint64(a.Group)}, []uint64{uint64(b.Engine), uint64(b.Tier), uint64(b.Group)})
			})
			for _, cp := range copies {
				line += fmt.Sprintf(" %x:%d:%d:%d", uint64(cp.Engine), cp.Tier, cp.Group, cp.Count)
			}
			all = append(all, line)
		}
	}
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			return nil, fmt.Errorf("twice the same position: %s", all[i])
		}
	}
	for i := range c.Orphans {
		all = append(all, fmt.Sprintf("%+v", c.Orphans[i]))
	}
	return all, nil
}

func hashOf(s string) (h uint64) {
	for i := range len(s) {
		h = h*1_000_003 ^ uint64(s[i])
	}
	return h
}

func (w *twins) same(got, want *shard.Content, when string) error {
	w.t.Helper()
	g, err := said(got)
	if err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	e, err := said(want)
	if err != nil {
		w.t.Fatal(err)
	}
	if got.Digest() != want.Digest() {
		return fmt.Errorf("%s: digest %x, the reference's %x", when, got.Digest(), want.Digest())
	}
	if !slices.Equal(g, e) {
		return fmt.Errorf("%s: %d positions and orphans, the reference has %d, and they differ", when, len(g), len(e))
	}
	return nil
}

// TestContentPieces copies one holder's content in the smallest pieces, while others
// store, remove, clear, come and go between them, and holds it against the reference.
func TestContentPieces(t *testing.T) {
	for _, kind := range shard.Kinds {
		t.Run(kind, func(t *testing.T) {
			pieces, orphans, holes := 0, 0, 0
			for seed := range uint64(longtest.N(2, 40)) {
				w := newTwins(t, kind, seed, 8)
				for round := range 8 {
					for range 60 {
						w.act(w.rng.IntN(len(w.ids)))
					}
					i := w.rng.IntN(len(w.ids))
					got := w.read(0, i, func() {
						pieces++
						for range w.rng.IntN(3) {
							if j := w.rng.IntN(len(w.ids)); j != i {
								w.act(j)
							}
						}
						if w.rng.IntN(40) == 0 {
							j := w.rng.IntN(len(w.ids))
							if j == i {
								return
							}
							for k, idx := range w.idx {
								if err := idx.Drop(w.ids[j][k]); err != nil {
									t.Fatal(err)
								}
							}
							w.ids = slices.Delete(w.ids, j, j+1)
							w.seeds = slices.Delete(w.seeds, j, j+1)
							if w.join(); j < i {
								i--
							}
						}
					})
					want := w.read(1, i, func() {})
					if err := w.same(got, want, fmt.Sprintf("seed %d, round %d", seed, round)); err != nil {
						t.Fatal(err)
					}
					orphans += len(got.Orphans)
					for at := range got.Hashes {
						if len(got.CopiesOf(at)) == 0 {
							holes++
						}
					}
					if d, err := shard.Digest(w.idx[0], w.ids[i][0]); err != nil || d != got.Digest() {
						t.Fatalf("digest %x, %v; of the copy %x", d, err, got.Digest())
					}
				}
				shard.Check(w.idx[0])
			}
			if pieces == 0 && kind != "reference" || orphans == 0 || holes == 0 {
				t.Errorf("%d pieces, %d orphans, %d holes: something was never met", pieces, orphans, holes)
			}
		})
	}
}

// TestContentTorn: a copy whose holder goes on meanwhile is caught, so that the test
// above can fail.
func TestContentTorn(t *testing.T) {
	caught := 0
	for seed := range uint64(8) {
		w := newTwins(t, "chain", seed, 8)
		for range 400 {
			w.act(w.rng.IntN(len(w.ids)))
		}
		want := w.read(1, 0, func() {})
		func() {
			defer func() {
				if recover() != nil { // whatever it met was not there any more
					caught++
				}
			}()
			got := w.read(0, 0, func() { w.act(0) })
			if w.same(got, want, "torn") != nil {
				caught++
			}
		}()
	}
	if caught == 0 {
		t.Error("none of 8 torn copies was told from the content")
	}
}

// TestOrphansComeBack: orphans that were copied and put into another holder's room go
// on as those that stayed; those without their tokens are dropped, and counted, where
// these would have been needed.
func TestOrphansComeBack(t *testing.T) {
	bare := 0
	for _, kind := range shard.Kinds {
		for seed := range uint64(4) {
			w := newTwins(t, kind, seed, 3)
			for range 150 {
				w.act(w.rng.IntN(3))
			}
			from := w.read(0, 0, func() {})
			if len(from.Orphans) == 0 {
				continue
			}
			// Two others, empty: one of each index takes the room over, and then the
			// same things happen to both.
			w.join()
			last := len(w.ids) - 1
			w.seeds[last] = w.seeds[0]
			for k, idx := range w.idx {
				for i := range from.Orphans {
					if err := shard.AddOrphan(idx, w.ids[last][k], &from.Orphans[i]); err != nil {
						t.Fatal(err)
					}
				}
			}
			if again := w.read(0, last, func() {}); fmt.Sprint(again.Orphans) != fmt.Sprint(from.Orphans) {
				t.Fatalf("%s, seed %d: the orphans are others", kind, seed)
			}
			for range 60 {
				w.act(last)
			}
			if err := w.same(w.read(0, last, func() {}), w.read(1, last, func() {}), kind); err != nil {
				t.Fatal(err)
			}
			var st [2]shard.HolderStats
			for k, idx := range w.idx {
				var err error
				if st[k], err = idx.HolderStats(w.ids[last][k]); err != nil {
					t.Fatal(err)
				}
				st[k].Moved = 0
			}
			if st[0] != st[1] {
				t.Fatalf("%s, seed %d: counted %+v, the reference %+v", kind, seed, st[0], st[1])
			}
			for _, o := range from.Orphans {
				if o.Bare {
					bare++
				}
			}
		}
	}
	if bare == 0 {
		t.Error("no orphan ever had tokens")
	}
}

// A bare orphan is stored under a parent of its own namespace and dropped under
// another's.
func TestBareOrphan(t *testing.T) {
	for _, kind := range shard.Kinds {
		idx, err := shard.New(kind, shard.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			ns            kv.Namespace
			held, dropped uint64
		}{{1, 2, 0}, {2, 1, 1}} {
			h, err := idx.AddHolder(0)
			if err != nil {
				t.Fatal(err)
			}
			o := shard.Orphan{Bare: true, Store: shard.Store{
				Namespace: 1, Parent: 1, HasParent: true, Engines: []kv.EngineHash{2}, Contents: []kv.ContentHash{20},
			}}
			if err := shard.AddOrphan(idx, h, &o); err != nil {
				t.Fatal(err)
			}
			if err := idx.Store(h, &shard.Store{Namespace: c.ns, Engines: []kv.EngineHash{1}, Contents: []kv.ContentHash{10}}); err != nil {
				t.Fatal(err)
			}
			st, err := idx.HolderStats(h)
			if err != nil || st.Memberships != c.held || st.OrphansDropped != c.dropped || st.Orphans != 0 {
				t.Errorf("%s, below namespace %d: %+v, %v; want %d held, %d dropped", kind, c.ns, st, err, c.held, c.dropped)
			}
			for _, bad := range []shard.Orphan{
				{Store: shard.Store{Engines: []kv.EngineHash{1}, Contents: []kv.ContentHash{1}}},
				{Store: shard.Store{Engines: []kv.EngineHash{1, 2}}},
				{Store: shard.Store{Engines: []kv.EngineHash{1}}, Out: []bool{true}},
			} {
				if err := shard.AddOrphan(idx, h, &bad); err == nil {
					t.Errorf("%+v was taken", bad)
				}
			}
		}
	}
}
