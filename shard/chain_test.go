// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// load shapes the random streams of [pair].
type load struct {
	slots      int
	namespaces int
	depth      int    // blocks of a chain at most
	fan        uint64 // different contents of a block
	wild       int    // percent of events without regard for sense
	seeds      int    // slots s and s+seeds name their blocks alike
}

// pair is a chain core and the naive core, which get the same calls.
type pair struct {
	chain *chainCore
	naive *naiveCore
	open  []slot
	last  slot
	load  load
	told  []toldChain // some of what was stored
	batch slotBatch
	asked int
}

// toldChain is one stored chain.
type toldChain struct {
	s        slot
	ns       kv.Namespace
	engines  []kv.EngineHash
	contents []kv.ContentHash // from the root
}

func newPair(t testing.TB, l load) *pair {
	t.Helper()
	c, err := newChainCore(Options{})
	if err != nil {
		t.Fatalf("newChainCore: %v", err)
	}
	c.dict.sizes = dictTiny
	return &pair{chain: c, naive: newNaiveCore(), load: l}
}

// dictTiny keeps the dictionary growing nearly all the time.
var dictTiny = dictSizes{first: 2, step: 1}

func (p *pair) openSlot() {
	p.last++
	if p.last == 0 {
		p.last = 1
	}
	p.open = append(p.open, p.last)
	p.chain.open(p.last)
	p.naive.open(p.last)
}

// engineOf names the block at the end of path: a chained hash under the slot's
// seed, folded to few values in wild streams.
func (p *pair) engineOf(s slot, ns kv.Namespace, path []kv.ContentHash) kv.EngineHash {
	h := uint64(int(s)%p.load.seeds)<<8 + uint64(ns)*7919
	for _, c := range path {
		h = (h ^ uint64(c)) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
	return kv.EngineHash(h)
}

type chooser interface{ IntN(n int) int }

func (p *pair) randomChain(r chooser) (kv.Namespace, []kv.ContentHash) {
	ns := kv.Namespace(r.IntN(p.load.namespaces))
	n := 1 + r.IntN(p.load.depth)
	chain := make([]kv.ContentHash, n)
	for i := range chain {
		// Most blocks are alike, so that chains share their beginnings.
		if r.IntN(8) == 0 {
			chain[i] = kv.ContentHash(r.IntN(int(p.load.fan)))
		}
	}
	if len(p.told) > 0 && r.IntN(2) == 0 {
		old := p.told[r.IntN(len(p.told))]
		keep := r.IntN(len(old.contents) + 1)
		return old.ns, append(slices.Clone(old.contents[:keep]), chain[:r.IntN(n)+1]...)
	}
	return ns, chain
}

// step applies one random call to both.
func (p *pair) step(t testing.TB, r chooser) {
	t.Helper()
	if len(p.open) == 0 || len(p.open) < p.load.slots && r.IntN(4) == 0 {
		p.openSlot()
		return
	}
	s := p.open[r.IntN(len(p.open))]
	switch k := r.IntN(100); {
	case k < 50:
		p.store(t, r, s)
	case k < 90:
		p.remove(t, r, s)
	case k < 95:
		p.adopt(t, r, s)
	case k < 97:
		p.chain.clear(s)
		p.naive.clear(s)
	case k < 98:
		i := slices.Index(p.open, s)
		p.open = slices.Delete(p.open, i, i+1)
		p.chain.close(s)
		p.naive.close(s)
	default:
		p.openSlot()
		if err := p.chain.clone(s, p.last); err != nil {
			t.Fatalf("clone: %v", err)
		}
		_ = p.naive.clone(s, p.last)
	}
}

func (p *pair) store(t testing.TB, r chooser, s slot) {
	t.Helper()
	ns, path := p.randomChain(r)
	skip := 0
	var atChain, atNaive pos
	if len(path) > 1 && r.IntN(2) == 0 {
		// Below what the slot holds, or in wild streams what anybody does.
		k := 1 + r.IntN(len(path)-1)
		from := s
		if r.IntN(100) < p.load.wild {
			from = p.open[r.IntN(len(p.open))]
		}
		e := p.engineOf(from, ns, path[:k])
		atChain, atNaive = p.chain.find(from, e), p.naive.find(from, e)
		if (atChain == 0) != (atNaive == 0) {
			t.Fatalf("find(%d, %#x): chain %#x, naive %#x", from, e, atChain, atNaive)
		}
		if atChain != 0 {
			skip = k
			if got, want := p.chain.namespace(atChain), p.naive.namespace(atNaive); got != want {
				t.Fatalf("namespace: got %d, want %d", got, want)
			}
		}
	}
	contents := path[skip:]
	engines := make([]kv.EngineHash, len(contents))
	for i := range engines {
		if r.IntN(100) < p.load.wild && r.IntN(4) == 0 {
			engines[i] = kv.EngineHash(r.IntN(20))
		} else {
			engines[i] = p.engineOf(s, ns, path[:skip+i+1])
		}
	}
	heldChain, heldNaive := make([]uint64, len(engines)/64+1), make([]uint64, len(engines)/64+1)
	for i := range heldChain {
		heldChain[i] = ^uint64(0)
	}
	movedChain, err := p.chain.store(s, ns, atChain, engines, contents, heldChain, nil)
	if err != nil {
		t.Fatalf("store: %v", err)
	}
	movedNaive, _ := p.naive.store(s, ns, atNaive, engines, contents, heldNaive, nil)
	for i := range engines {
		if got, want := heldChain[i/64]>>(i%64)&1, heldNaive[i/64]>>(i%64)&1; got != want {
			t.Fatalf("store: held bit %d of %d: got %d, want %d", i, len(engines), got, want)
		}
	}
	if !slices.Equal(movedChain, movedNaive) {
		t.Fatalf("store: moved %v, want %v", movedChain, movedNaive)
	}
	one := toldChain{s: s, ns: ns, engines: engines, contents: path}
	if len(p.told) < 60 {
		p.told = append(p.told, one)
	} else {
		p.told[r.IntN(len(p.told))] = one
	}
}

func (p *pair) remove(t testing.TB, r chooser, s slot) {
	t.Helper()
	if len(p.told) == 0 {
		return
	}
	var engines []kv.EngineHash
	for range 1 + r.IntN(3) {
		old := p.told[r.IntN(len(p.told))]
		if r.IntN(100) >= p.load.wild {
			for try := 0; try < 10 && old.s != s; try++ {
				old = p.told[r.IntN(len(p.told))]
			}
		}
		lo := r.IntN(len(old.engines))
		hi := lo + 1 + r.IntN(len(old.engines)-lo)
		if r.IntN(2) == 0 {
			hi = len(old.engines)
		}
		part := slices.Clone(old.engines[lo:hi])
		switch r.IntN(4) {
		case 0, 1:
			slices.Reverse(part)
		case 2:
			for i := range part {
				j := r.IntN(i + 1)
				part[i], part[j] = part[j], part[i]
			}
		}
		engines = append(engines, part...)
	}
	got := p.chain.remove(s, engines, nil)
	want := p.naive.remove(s, engines, nil)
	if !slices.Equal(got, want) {
		t.Fatalf("remove: unknown %v, want %v", got, want)
	}
}

func (p *pair) adopt(t testing.TB, r chooser, s slot) {
	t.Helper()
	if len(p.told) == 0 {
		return
	}
	old := p.told[r.IntN(len(p.told))]
	if !slices.Contains(p.open, old.s) {
		return
	}
	e := old.engines[r.IntN(len(old.engines))]
	atChain, atNaive := p.chain.find(old.s, e), p.naive.find(old.s, e)
	if (atChain == 0) != (atNaive == 0) {
		t.Fatalf("find(%d, %#x): chain %#x, naive %#x", old.s, e, atChain, atNaive)
	}
	if atChain == 0 {
		return
	}
	if r.IntN(100) < p.load.wild {
		e = kv.EngineHash(r.IntN(20))
	}
	held, moved, err := p.chain.adopt(s, atChain, e)
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
	wantHeld, wantMoved, _ := p.naive.adopt(s, atNaive, e)
	if held != wantHeld || moved != wantMoved {
		t.Fatalf("adopt: got %v, %v; want %v, %v", held, moved, wantHeld, wantMoved)
	}
}

// sorted orders depths by slot.
func sorted(d []slotDepth) []slotDepth {
	slices.SortFunc(d, func(a, b slotDepth) int { return int(a.slot) - int(b.slot) })
	return d
}

// lookups compares the answers for chains told and random ones.
func (p *pair) lookups(t testing.TB, r chooser, n int) {
	t.Helper()
	for range n {
		ns, chain := p.randomChain(r)
		if len(p.told) > 0 && r.IntN(3) > 0 {
			old := p.told[r.IntN(len(p.told))]
			ns, chain = old.ns, slices.Clone(old.contents)
			switch r.IntN(4) {
			case 0:
				chain = chain[:len(chain)/2]
			case 1:
				chain[r.IntN(len(chain))]++
			case 2:
				chain = append(chain, kv.ContentHash(r.IntN(4)))
			}
		}
		got := sorted(p.chain.lookup(ns, chain, nil))
		want := sorted(p.naive.lookup(ns, chain, nil))
		if !slices.Equal(got, want) {
			t.Fatalf("lookup(%d, %v):\n got %v\nwant %v", ns, chain, got, want)
		}
		if p.asked++; p.asked%3 == 0 {
			p.batched(t, ns, chain, want)
		}
	}
}

// batched asks for chain and some of its beginnings in step; want is what is right
// for the whole.
func (p *pair) batched(t testing.TB, ns kv.Namespace, chain []kv.ContentHash, want []slotDepth) {
	t.Helper()
	const n = 10
	var chains [n][]kv.ContentHash
	for i := range chains {
		chains[i] = chain[:len(chain)*i/(n-1)]
	}
	for i, got := range p.batch.ask(p.chain, ns, chains[:]) {
		least := slices.Clone(want)
		for k := range least {
			least[k].depth = min(least[k].depth, uint32(len(chains[i])))
		}
		if len(chains[i]) == 0 {
			least = nil
		}
		if !slices.Equal(sorted(got), least) {
			t.Fatalf("lookup(%d, %v) in a batch of %d:\n got %v\nwant %v", ns, chains[i], n, got, least)
		}
	}
}

// walkOf is a slot's content as text, by paths.
func walkOf(t testing.TB, c core, s slot) []string {
	t.Helper()
	paths := map[pos]string{}
	var out []string
	c.walk(s, func(n *coreNode) bool {
		up := strconv.FormatUint(uint64(n.ns), 10)
		if n.parent != 0 {
			var ok bool
			if up, ok = paths[n.parent]; !ok {
				t.Fatalf("walk: node %#x before its parent %#x", n.id, n.parent)
			}
		}
		if _, twice := paths[n.id]; twice || n.id == 0 {
			t.Fatalf("walk: node %#x twice or none", n.id)
		}
		path := up + "/" + strconv.FormatUint(uint64(n.content), 10)
		paths[n.id] = path
		e := slices.Clone(n.engines)
		slices.Sort(e)
		out = append(out, fmt.Sprint(path, " ", e))
		return true
	})
	slices.Sort(out)
	return out
}

// compare checks everything that can be asked.
func (p *pair) compare(t testing.TB) {
	t.Helper()
	p.chain.check()
	for _, s := range p.open {
		if got, want := p.chain.held(s), p.naive.held(s); got != want {
			t.Fatalf("held(%d): got %d, want %d", s, got, want)
		}
		got, want := walkOf(t, p.chain, s), walkOf(t, p.naive, s)
		if !slices.Equal(got, want) {
			t.Fatalf("walk(%d):\n got %v\nwant %v", s, got, want)
		}
	}
	for _, one := range p.told {
		for _, e := range one.engines {
			if got, want := p.chain.find(one.s, e), p.naive.find(one.s, e); (got == 0) != (want == 0) {
				t.Fatalf("find(%d, %#x): got %#x, want %#x", one.s, e, got, want)
			}
		}
	}
	var got Stats
	p.chain.stats(&got)
	if want := uint64(p.naive.heldBlocks()); got.Blocks != want {
		t.Fatalf("blocks: got %d, want %d", got.Blocks, want)
	}
}

// heldBlocks counts the positions that anybody holds.
func (c *naiveCore) heldBlocks() int {
	n := 0
	for _, node := range c.nodes {
		if len(node.held) > 0 {
			n++
		}
	}
	return n
}

var loads = map[string]load{
	"clean-3":    {slots: 3, namespaces: 2, depth: 30, fan: 3, wild: 0, seeds: 1},
	"clean-9":    {slots: 9, namespaces: 1, depth: 60, fan: 2, wild: 0, seeds: 1},
	"clean-70":   {slots: 70, namespaces: 2, depth: 20, fan: 2, wild: 0, seeds: 1},
	"deep":       {slots: 5, namespaces: 1, depth: 900, fan: 3, wild: 10, seeds: 1},
	"wild30-3":   {slots: 3, namespaces: 2, depth: 30, fan: 3, wild: 30, seeds: 1},
	"wild30-9":   {slots: 9, namespaces: 1, depth: 8, fan: 3, wild: 30, seeds: 3},
	"wild100-3":  {slots: 3, namespaces: 2, depth: 12, fan: 3, wild: 100, seeds: 1},
	"wild100-9":  {slots: 9, namespaces: 1, depth: 30, fan: 2, wild: 100, seeds: 2},
	"wild100-70": {slots: 70, namespaces: 1, depth: 6, fan: 2, wild: 100, seeds: 5},
	"seeds":      {slots: 8, namespaces: 1, depth: 40, fan: 2, wild: 0, seeds: 8},
	"wild30-130": {slots: 130, namespaces: 1, depth: 10, fan: 2, wild: 30, seeds: 1},
	// Workers with hash seeds of their own, and some that share one.
	"seeds2-of-6":   {slots: 6, namespaces: 1, depth: 40, fan: 2, wild: 0, seeds: 2},
	"seeds4-wild10": {slots: 9, namespaces: 2, depth: 60, fan: 2, wild: 10, seeds: 4},
	"seeds6-wild40": {slots: 12, namespaces: 1, depth: 20, fan: 3, wild: 40, seeds: 6},
	"seeds3-deep":   {slots: 6, namespaces: 1, depth: 560, fan: 3, wild: 5, seeds: 3},
	"seeds70":       {slots: 70, namespaces: 1, depth: 12, fan: 2, wild: 5, seeds: 70},
}

// TestChainAgainstNaive runs random streams against plain maps.
func TestChainAgainstNaive(t *testing.T) {
	seeds, steps := uint64(longtest.N(2, 8)), longtest.N(250, 500)
	for name, l := range loads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				r := rand.New(rand.NewPCG(seed, 11))
				p := newPair(t, l)
				for i := range steps {
					p.step(t, r)
					p.lookups(t, r, 2)
					if i%8 == 0 {
						p.compare(t)
					}
				}
				p.compare(t)
				for len(p.open) > 0 {
					p.chain.close(p.open[0])
					p.naive.close(p.open[0])
					p.open = p.open[1:]
				}
				p.chain.check()
				if p.chain.dict.n != 0 || p.chain.runs.count != 0 {
					t.Fatalf("seed %d: %d positions in %d runs after all slots closed", seed, p.chain.dict.n, p.chain.runs.count)
				}
				t.Logf("seed %d: %d alias rows made", seed, p.chain.rowsMade)
				if l.seeds > 1 && p.chain.rowsMade == 0 {
					t.Errorf("seed %d: no alias row was made", seed)
				}
			}
		})
	}
}

// byteChooser draws its choices from fuzzed bytes.
type byteChooser struct{ data []byte }

func (b *byteChooser) IntN(n int) int {
	var w [4]byte
	k := 1
	if n > 256 {
		k = 4
	}
	b.data = b.data[copy(w[:k], b.data):]
	return int(binary.LittleEndian.Uint32(w[:])) % n
}

// FuzzChain reads a command list from bytes.
func FuzzChain(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		b := make([]byte, 2000)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b := &byteChooser{data: data}
		p := newPair(t, load{slots: 2 + b.IntN(12), namespaces: 1 + b.IntN(2), depth: 1 + b.IntN(40), fan: 1 + uint64(b.IntN(4)), wild: b.IntN(101), seeds: 1 + b.IntN(3)})
		for i := 0; len(b.data) > 0 && i < 300; i++ {
			p.step(t, b)
			p.lookups(t, b, 1)
			if i%4 == 0 {
				p.compare(t)
			}
		}
		p.compare(t)
		p.chain.release()
	})
}
