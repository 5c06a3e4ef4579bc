// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"kindex/internal/kv"
)

// hot is a shard whose holders share a head and go on apart.
type hot struct {
	idx     *Shard
	holders []Holder
	chains  [][]kv.ContentHash // by number: the head, then some of its own
}

// hotShard is a shard with chains of blocks blocks, of which the first head are
// alike. All holders hold the head, and chain k is held by the next of them.
func hotShard(tb testing.TB, holders, head, blocks, chains int) *hot {
	tb.Helper()
	idx, err := New("chain", Options{})
	if err != nil {
		tb.Fatal(err)
	}
	s, ok := idx.(*Shard)
	if !ok {
		tb.Fatalf("a chain index is a %T", idx)
	}
	h := &hot{idx: s}
	for range holders {
		id, err := s.AddHolder(1)
		if err != nil {
			tb.Fatal(err)
		}
		h.holders = append(h.holders, id)
	}
	shared := chainOf(0, head)
	for k := range chains {
		h.chains = append(h.chains, append(slices.Clone(shared), chainOf(k+1, blocks-head)...))
		h.store(tb, h.holders[k%holders], h.chains[k])
	}
	for _, id := range h.holders {
		h.store(tb, id, shared)
	}
	return h
}

func (h *hot) store(tb testing.TB, id Holder, contents []kv.ContentHash) {
	tb.Helper()
	if err := h.idx.Store(id, &Store{Namespace: 1, Engines: hashesOf(contents, 0), Contents: contents}); err != nil {
		tb.Fatal(err)
	}
}

// TestLookupAllocates holds that no form of lookup allocates once its memory has
// grown.
func TestLookupAllocates(t *testing.T) {
	if RaceEnabled {
		t.Skip("pools drop what they are given under the race detector")
	}
	for _, holders := range []int{3, 128, 2000} {
		h := hotShard(t, holders, 6, 200, 300)
		// A second tier gives the last holder several slots.
		last := h.holders[holders-1]
		if err := h.idx.Store(last, &Store{Tier: kv.TierHost, Namespace: 1, Engines: hashesOf(h.chains[0][:6], 0), Contents: h.chains[0][:6]}); err != nil {
			t.Fatal(err)
		}
		k := 0
		next := func() []kv.ContentHash { k++; return h.chains[k%len(h.chains)] }
		var dst []kv.Match
		var a Answer
		qs := make([]Query, batchMax)
		forms := map[string]func(){
			"flat": func() { dst = h.idx.Lookup(1, next(), dst[:0]) },
			"grouped": func() {
				a.Reset()
				h.idx.LookupGroups(1, next(), &a)
			},
			"batched": func() {
				for i := range qs {
					qs[i] = Query{Namespace: 1, Chain: next(), Matches: qs[i].Matches[:0]}
				}
				h.idx.LookupBatch(qs)
			},
		}
		for name, ask := range forms {
			for range 200 {
				ask()
			}
			if n := testing.AllocsPerRun(300, ask); n != 0 {
				t.Errorf("%d holders, %s: %v allocations a call, want 0", holders, name, n)
			}
		}
		if len(dst) != holders || a.Len() != holders || len(qs[0].Matches) != holders {
			t.Errorf("%d holders: flat has %d, grouped %d, batched %d", holders, len(dst), a.Len(), len(qs[0].Matches))
		}
		if holders > 100 && len(a.Singles) > 10 {
			t.Errorf("%d holders, of which %d are not in groups", holders, len(a.Singles))
		}
	}
}

// TestLookupFormsMany holds all forms against the reference with many holders: of
// the head, of parts of it, of chains below in several runs, some in two tiers, and
// some that came late, left again, or lost blocks in the middle.
func TestLookupFormsMany(t *testing.T) {
	const holders = 1500
	h := hotShard(t, 1, 30, 80, 1)
	ref := NewReference(h.idx.opts)
	if _, err := ref.AddHolder(1); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(4, 2))
	both := func(do func(idx Index) error) {
		for _, idx := range []Index{h.idx, ref} {
			if err := do(idx); err != nil {
				t.Fatal(err)
			}
		}
	}
	var chains [][]kv.ContentHash
	for k := range 6 {
		chains = append(chains, append(slices.Clone(h.chains[0][:10+10*k]), chainOf(50+k/2, 700)...))
	}
	put := func(id Holder, tier kv.Tier, contents []kv.ContentHash) {
		both(func(idx Index) error {
			return idx.Store(id, &Store{Tier: tier, Namespace: 1, Engines: hashesOf(contents, 0), Contents: contents})
		})
	}
	put(1, kv.TierDevice, h.chains[0])
	for range holders {
		var id Holder
		both(func(idx Index) (err error) { id, err = idx.AddHolder(1); return err })
		chain := chains[r.IntN(len(chains))]
		n := 10
		switch r.IntN(8) {
		case 0:
			n = 1 + r.IntN(len(chain))
		case 1:
			n = min(600, len(chain))
		}
		put(id, kv.TierDevice, chain[:n])
		if r.IntN(10) == 0 {
			put(id, kv.TierHost, chain[:1+r.IntN(n)])
		}
		if r.IntN(10) == 0 {
			gone := hashesOf(chain[:n], 0)[r.IntN(n):][:1]
			both(func(idx Index) error { return idx.Remove(id, &Remove{Engines: gone}) })
		}
		if r.IntN(20) == 0 {
			both(func(idx Index) error { return idx.Drop(id) })
		}
	}
	qs := make([]Query, 0, 40)
	for _, chain := range append(chains, h.chains[0]) {
		for _, n := range []int{0, 1, 9, 25, len(chain)} {
			qs = append(qs, Query{Namespace: 1, Chain: chain[:n]})
		}
	}
	h.idx.LookupBatch(qs)
	byHolder := func(m []kv.Match) []kv.Match {
		slices.SortFunc(m, func(a, b kv.Match) int { return int(a.Holder) - int(b.Holder) })
		return m
	}
	groups := 0
	for i := range qs {
		q := &qs[i]
		want := byHolder(ref.Lookup(1, q.Chain, nil))
		var a Answer
		h.idx.LookupGroups(1, q.Chain, &a)
		groups += len(a.Groups)
		for form, got := range map[string][]kv.Match{"flat": h.idx.Lookup(1, q.Chain, nil), "grouped": a.Append(nil), "batched": q.Matches} {
			if got = byHolder(got); !slices.Equal(got, want) {
				t.Errorf("%d blocks, %s: %d matches that differ from the reference's %d", len(q.Chain), form, len(got), len(want))
			}
		}
	}
	if groups == 0 {
		t.Error("no answer has a group")
	}
	Check(h.idx)
}

// TestLookupWaitsForWriter: a lookup that meets a writer put aside in the middle of
// a change lets others run after a bounded number of tries, and is right once the
// writer goes on.
func TestLookupWaitsForWriter(t *testing.T) {
	c := newChain(t, Options{})
	c.open(1)
	chain := chainOf(1, 20)
	mustStore(t, c, 1, chain)
	line := c.findEdge(1, flagRoot, uint64(chain[0]))
	for _, batched := range []bool{false, true} {
		var counts lookupCounts
		rounds := 0
		c.testLookups = &counts
		c.testHookLookup = func() {
			if rounds++; rounds == 30 {
				c.end(line)
			}
		}
		c.begin(line)
		var got []slotDepth
		if batched {
			var b slotBatch
			got = b.ask(c, 1, [][]kv.ContentHash{chain})[0]
			b.scratch.one[0].walk.count()
		} else {
			got = c.lookup(1, chain, nil)
		}
		c.testHookLookup = nil
		if want := []slotDepth{{slot: 1, depth: 20}}; !slices.Equal(got, want) {
			t.Errorf("batched %v: got %v, want %v", batched, got, want)
		}
		tries, restarts, yields := counts.tries.Load(), counts.restarts.Load(), counts.yields.Load()
		if restarts < 10 || tries != restarts*spins || yields != restarts {
			t.Errorf("batched %v: %d tries in vain, %d walks begun again, %d times others were let run: want %d and one for each walk", batched, tries, restarts, yields, spins)
		}
	}
}

// hammer is what a writer does to a run that everybody holds.
type hammer struct {
	name string
	// prepare brings slot s to where act begins.
	prepare, act func(c *chainCore, s slot)
	ask          []kv.ContentHash
}

// TestLookupHotRun: with a thousand holders of a run, and a writer that changes
// their coverage of it as fast as it can, a lookup hardly ever begins again.
func TestLookupHotRun(t *testing.T) {
	const slots = 1000
	head, below := chainOf(1, 48), chainOf(2, 24)
	whole := append(slices.Clone(head), below...)
	eng := hashesOf(whole, 0)
	held := make([]uint64, 8)
	store := func(c *chainCore, s slot, lo, hi int) {
		at := pos(0)
		if lo > 0 {
			at = c.find(1, eng[lo-1]) // slot 1 holds everything throughout
		}
		if _, err := c.store(s, 1, at, eng[lo:hi], whole[lo:hi], held, nil); err != nil {
			t.Error(err)
		}
	}
	remove := func(c *chainCore, s slot, lo, hi int) {
		back := slices.Clone(eng[lo:hi])
		slices.Reverse(back)
		c.remove(s, back, nil)
	}
	for _, h := range []hammer{
		{"all of it", nil, func(c *chainCore, s slot) { remove(c, s, 0, 48); store(c, s, 0, 48) }, head},
		{"its end", nil, func(c *chainCore, s slot) { remove(c, s, 30, 48); store(c, s, 30, 48) }, head},
		{"a hole", nil, func(c *chainCore, s slot) { remove(c, s, 20, 21); store(c, s, 20, 21) }, head},
		{"any part", nil, func(c *chainCore, s slot) {
			lo := int(s) % 47
			remove(c, s, lo, 48)
			store(c, s, lo, 48)
		}, head},
		{"the run below, with all above", func(c *chainCore, s slot) {
			store(c, s, 48, 72)
		}, func(c *chainCore, s slot) { remove(c, s, 48, 72); store(c, s, 48, 72) }, whole},
		{"the run below, under a gap", func(c *chainCore, s slot) {
			store(c, s, 48, 72)
			if s%2 == 0 {
				remove(c, s, 10, 11)
			}
		}, func(c *chainCore, s slot) { remove(c, s, 48, 72); store(c, s, 48, 72) }, whole},
	} {
		t.Run(h.name, func(t *testing.T) {
			c := newChain(t, Options{})
			for s := range slot(slots) {
				c.open(s + 1)
				store(c, s+1, 0, 48)
			}
			store(c, 1, 48, 72) // so that the run below is one of its own
			for s := range slot(slots - 1) {
				if h.prepare != nil {
					h.prepare(c, s+2)
				}
			}
			c.check()
			h.race(t, c, slots)
		})
	}
}

// race lets a writer act on slots 2 and up while this goroutine asks.
func (h *hammer) race(t *testing.T, c *chainCore, slots int) {
	t.Helper()
	var counts lookupCounts
	c.testLookups = &counts
	var stop atomic.Bool
	var acts uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := rand.New(rand.NewPCG(1, 2))
		for !stop.Load() {
			h.act(c, slot(2+r.IntN(slots-1)))
			acts++
		}
	}()
	var dst []slotDepth
	const lookups = 20_000
	for range lookups {
		dst = c.lookup(1, h.ask, dst[:0])
		if !slices.Contains(dst, slotDepth{slot: 1, depth: uint32(len(h.ask))}) {
			t.Fatalf("slot 1 holds all %d blocks throughout and is not among %d answers", len(h.ask), len(dst))
		}
	}
	stop.Store(true)
	<-done
	runtime.KeepAlive(c)
	again := counts.tries.Load() + counts.restarts.Load()
	t.Logf("%d lookups, %d acts meanwhile: %d reads in vain, %d walks begun again", lookups, acts, counts.tries.Load(), counts.restarts.Load())
	// The race detector slows a reader, which touches more words, several times as
	// much as the writer: the ratio then says nothing, the answers above do.
	if again >= lookups && !RaceEnabled {
		t.Errorf("%d retries in %d lookups: want less than one each", again, lookups)
	}
	c.check()
}
