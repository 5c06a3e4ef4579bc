// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// oneBlock is a chain of one block, with the hash it is stored by.
func oneBlock(i int) ([]kv.ContentHash, []kv.EngineHash) {
	c := kv.ContentHash(uint64(i)*0x9E3779B97F4A7C15 + 1)
	return []kv.ContentHash{c}, []kv.EngineHash{kv.EngineHash(c)}
}

func storeOne(t testing.TB, c *chainCore, s slot, i int) {
	t.Helper()
	contents, engines := oneBlock(i)
	if _, err := c.store(s, 1, 0, engines, contents, make([]uint64, 1), nil); err != nil {
		t.Fatalf("store of chain %d: %v", i, err)
	}
}

// edgeSeen is what a test saw of a table's growth.
type edgeSeen struct {
	sizes   map[uint64]bool // home lines
	growing int             // checks in the middle of growth
}

func (e *edgeSeen) look(c *chainCore) {
	if e.sizes == nil {
		e.sizes = map[uint64]bool{}
	}
	e.sizes[c.edges.desc.Load()>>32] = true
	if c.edgeState.growing {
		e.growing++
	}
}

// TestEdgesGrow churns chains of one block, so that every store is an edge, and
// checks the whole table again and again, in the middle of growth, too.
func TestEdgesGrow(t *testing.T) {
	c := newChain(t, Options{})
	c.open(1)
	r := rand.New(rand.NewPCG(1, 2))
	var live []int
	var seen edgeSeen
	for i := range longtest.N(20_000, 200_000) {
		storeOne(t, c, 1, i)
		live = append(live, i)
		if r.IntN(3) == 0 {
			k := r.IntN(len(live))
			_, engines := oneBlock(live[k])
			c.remove(1, engines, nil)
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
		}
		if i < 300 || i%997 == 0 || c.edgeState.growing && i%199 == 0 {
			seen.look(c)
			c.check()
		}
	}
	c.check()
	for _, i := range live {
		contents, _ := oneBlock(i)
		if got := c.lookup(1, contents, nil); len(got) != 1 || got[0] != (slotDepth{1, 1}) {
			t.Fatalf("chain %d: got %v", i, got)
		}
	}
	if len(seen.sizes) < 8 || seen.growing < 10 {
		t.Errorf("saw %d sizes of the table, growth in %d checks: too few to show anything", len(seen.sizes), seen.growing)
	}
	c.clear(1)
	c.check()
}

// TestEdgesSpill has the entries of the largest tags outnumber what the last lines
// take, before, while and after the table grows.
func TestEdgesSpill(t *testing.T) {
	c := newChain(t, Options{})
	c.open(1)
	r := rand.New(rand.NewPCG(4, 4))
	var same []int
	for i := 0; len(same) < 150; i++ {
		if contents, _ := oneBlock(i); edgeTag(1, flagRoot, uint64(contents[0])) >= 0xfff00000 {
			same = append(same, i)
		}
	}
	next, past := same[len(same)-1]+1, 0
	for round := range 40 {
		for _, k := range r.Perm(len(same))[:len(same)*3/4] {
			storeOne(t, c, 1, same[k])
		}
		for range 12 {
			storeOne(t, c, 1, next)
			next++
		}
		c.check()
		past = max(past, int(c.edgeState.end)-int(c.edges.desc.Load()>>32))
		for _, k := range r.Perm(len(same))[:len(same)*3/4] {
			_, engines := oneBlock(same[k])
			c.remove(1, engines, nil)
		}
		c.check()
		if round == 3 && past < 10 {
			t.Fatalf("at most %d lines past the last home are in use", past)
		}
	}
}

// TestEdgesSwept asks for everything between the steps of every sweep.
func TestEdgesSwept(t *testing.T) {
	c := newChain(t, Options{})
	c.open(1)
	stored, asked := 0, 0
	var dst []slotDepth
	c.edgeState.testHook = func() {
		for i := range stored {
			contents, _ := oneBlock(i)
			if dst = c.lookup(1, contents, dst[:0]); len(dst) != 1 {
				t.Fatalf("chain %d of %d in the middle of a sweep: got %v", i, stored, dst)
			}
			if !c.known(contents) {
				t.Fatalf("chain %d of %d in the middle of a sweep: the writer does not find it", i, stored)
			}
			asked++
		}
	}
	for range 500 {
		storeOne(t, c, 1, stored)
		stored++
	}
	if asked < 100_000 {
		t.Errorf("asked %d times in the middle of sweeps: too few to show anything", asked)
	}
}

func (c *chainCore) known(contents []kv.ContentHash) bool {
	n, _ := c.locate(1, place{}, contentWords(contents))
	return n == len(contents)
}

// TestEdgesInterleaved lets the writer run between a lookup's look at the table's
// state and its look at the lines, for long enough that homes move.
func TestEdgesInterleaved(t *testing.T) {
	const stable = 60
	moved := 0
	for seed := range uint64(longtest.N(20, 200)) {
		c := newChain(t, Options{})
		c.open(1)
		r := rand.New(rand.NewPCG(seed, 3))
		for i := range stable {
			storeOne(t, c, 1, i)
		}
		var dst []slotDepth
		for next := stable; next < 3000; {
			i := r.IntN(stable)
			contents, _ := oneBlock(i)
			tag := edgeTag(1, flagRoot, uint64(contents[0]))
			c.testHookLookup = func() {
				before := edgeHome(c.edges.desc.Load(), tag)
				for range r.IntN(1 + min(next/20, 100)) {
					storeOne(t, c, 1, next)
					next++
				}
				if edgeHome(c.edges.desc.Load(), tag) != before {
					moved++
				}
				if r.IntN(4) > 0 {
					c.testHookLookup = nil
				}
			}
			dst = c.lookup(1, contents, dst[:0])
			if len(dst) != 1 || dst[0] != (slotDepth{1, 1}) {
				t.Fatalf("seed %d, chain %d of %d: got %v", seed, i, next, dst)
			}
		}
		c.testHookLookup = nil
		c.check()
	}
	if moved < 50 {
		t.Errorf("%d homes moved under a lookup: too few to show anything", moved)
	}
}

// TestEdgesConcurrent has readers ask for chains that are always there, and for
// some that come and go, while the table grows from its smallest size.
func TestEdgesConcurrent(t *testing.T) {
	total := int64(0)
	for seed := range uint64(longtest.N(4, 30)) {
		c := newChain(t, Options{})
		c.open(1)
		c.open(2)
		const stable = 200
		var there, tornDown atomic.Int64 // stable chains stored; whether the writer is done
		var lookups, found atomic.Int64
		var wg sync.WaitGroup
		for reader := range 2 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(reader)))
				var dst []slotDepth
				for tornDown.Load() == 0 {
					n := int(there.Load())
					if n == 0 {
						runtime.Gosched()
						continue
					}
					i := r.IntN(n)
					if r.IntN(4) == 0 {
						i = 1000 + r.IntN(20_000)
					}
					contents, _ := oneBlock(i)
					dst = c.lookup(1, contents, dst[:0])
					lookups.Add(1)
					if i < stable && (len(dst) != 1 || dst[0] != (slotDepth{1, 1})) {
						t.Errorf("chain %d, always there: got %v", i, dst)
						return
					}
					if i >= stable && len(dst) > 0 {
						found.Add(1)
						if len(dst) > 1 || dst[0] != (slotDepth{2, 1}) {
							t.Errorf("chain %d, of slot 2: got %v", i, dst)
							return
						}
					}
				}
			})
		}
		r := rand.New(rand.NewPCG(seed, 99))
		for i := range longtest.N(20_000, 60_000) {
			if n := int(there.Load()); n < stable && i%3 == 0 {
				storeOne(t, c, 1, n)
				there.Add(1)
			}
			storeOne(t, c, 2, 1000+i)
			if r.IntN(4) == 0 {
				_, engines := oneBlock(1000 + r.IntN(i+1))
				c.remove(2, engines, nil)
			}
			if i%256 == 0 {
				runtime.Gosched()
			}
		}
		tornDown.Store(1)
		wg.Wait()
		c.check()
		total += lookups.Load()
		t.Logf("seed %d: %d lookups, %d found of those that come and go; %d home lines", seed, lookups.Load(), found.Load(), c.edges.desc.Load()>>32)
	}
	if total < 1000 {
		t.Errorf("%d lookups: too few to show anything", total)
	}
}
