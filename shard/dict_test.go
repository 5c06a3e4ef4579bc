// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
)

// TestDictGrowthInPlay holds that random streams run with growth under way: else
// the other tests of the core would say nothing about it.
func TestDictGrowthInPlay(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	p := newPair(t, loads["wild30-9"])
	growing := 0
	const steps = 400
	for range steps {
		p.step(t, r)
		if p.chain.dict.table.Growing() {
			growing++
		}
		p.chain.check()
	}
	if growing < steps/5 {
		t.Errorf("growth was under way after %d of %d steps", growing, steps)
	}
	t.Logf("growth was under way after %d of %d steps", growing, steps)
}

// TestDictPace fills a dictionary by events of every size and holds that growth
// keeps up: it ends by itself before the load is met again, and what one event
// moves is in proportion to what it brings.
func TestDictPace(t *testing.T) {
	c := newChain(t, Options{})
	c.dict.sizes = dictSizes{first: 64, small: 512, middle: 4096, step: 32, ahead: 3}
	c.open(1)
	r := rand.New(rand.NewPCG(7, 8))
	d := &c.dict
	growths := 0
	for k := 0; d.n < 120_000; k++ {
		blocks := 1 + r.IntN(1+r.IntN(600))
		before, was := d.table, d.n
		mustStore(t, c, 1, chainOf(k, blocks))
		if d.table.Lines != before.Lines {
			growths++
			if before.Growing() {
				t.Fatalf("growth to %d lines began with that to %d under way, at %d entries", d.table.Lines, before.Lines, was)
			}
		}
		if most := d.table.Lines*dictMaxLoad/10 + 600; d.n > most {
			t.Fatalf("%d entries in %d lines, growing %v", d.n, d.table.Lines, d.table.Growing())
		}
		if before.Growing() && d.table.Growing() {
			// Hashes are spread evenly: what was swept is a share of Old.
			swept := float64(before.Rest-d.table.Rest) / (1 << 63) / 2 * float64(before.Old)
			if most := float64(blocks)*3 + 2*32; swept > most {
				t.Fatalf("an event of %d blocks swept %.0f lines, want at most %.0f", blocks, swept, most)
			}
		}
	}
	if growths < 10 {
		t.Errorf("%d growths", growths)
	}
	c.check()
}

// TestDictManyPlaces stores one hash at thousands of positions, of as many slots,
// and others, with growth under way, and takes all away again.
func TestDictManyPlaces(t *testing.T) {
	c := newChain(t, Options{})
	c.dict.sizes = dictTiny
	const slots = 3000
	same := kv.EngineHash(0xABCDEF)
	for i := range slots {
		s := slot(i + 1)
		c.open(s)
		contents := chainOf(i, 3)
		engines := hashesOf(contents, i)
		engines[1] = same
		if _, err := c.store(s, 1, 0, engines, contents, make([]uint64, 1), nil); err != nil {
			t.Fatal(err)
		}
		if i%500 == 0 {
			c.check()
		}
	}
	seen := map[pos]bool{}
	for i := range slots {
		p := c.find(slot(i+1), same)
		if p == 0 || seen[p] {
			t.Fatalf("slot %d: position %d, want one of its own", i+1, p)
		}
		seen[p] = true
	}
	c.check()
	for i := range slots {
		c.close(slot(i + 1))
	}
	if c.dict.n != 0 {
		t.Errorf("%d entries left", c.dict.n)
	}
	c.check()
}

// TestDictRefusal fills a core whose bound leaves no room for the next growth, and
// holds that refusals change nothing and that what is there can still go.
func TestDictRefusal(t *testing.T) {
	for _, blocks := range []int{1, 40, 3000} {
		c := newChain(t, Options{ArenaBytes: 1 << 20})
		c.dict.sizes = dictTiny
		c.open(1)
		refused := 0
		for k := 0; refused < 20; k++ {
			contents := chainOf(k, blocks)
			was, lines := c.dict.n, c.dict.table.Lines
			_, err := c.store(1, 1, 0, hashesOf(contents, 0), contents, make([]uint64, blocks/64+1), nil)
			if err == nil {
				continue
			}
			refused++
			if !errors.Is(err, ErrArenaFull) || c.dict.n != was || c.dict.table.Lines != lines {
				t.Fatalf("%d blocks: %v; %d entries, then %d; %d lines, then %d", blocks, err, was, c.dict.n, lines, c.dict.table.Lines)
			}
		}
		var st Stats
		c.stats(&st)
		if got := st.Bytes[PurposeDictionary]; got == 0 || got > 1<<20 {
			t.Errorf("%d blocks: the dictionary takes %d bytes", blocks, got)
		}
		c.check()
		c.close(1)
		c.check()
	}
}
