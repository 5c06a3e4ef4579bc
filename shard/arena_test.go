// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// TestArenaPages takes and gives pieces of all classes at random, in phases that
// favour some classes, and holds that pieces never overlap, keep their words while
// they are in use, stay in their class, and that a run's version and generation are
// never ones that its line had before.
func TestArenaPages(t *testing.T) {
	for seed := range uint64(longtest.N(4, 40)) {
		var a arena
		if err := a.init(0); err != nil {
			t.Fatal(err)
		}
		a.testEager = seed%2 == 1
		d := arenaDrive{t: t, a: &a, r: rand.New(rand.NewPCG(seed, 8)), class: map[uint32]int{}, owner: map[uint32]uint32{}, seen: map[uint32][2]uint64{}}
		for range longtest.N(40, 200) {
			d.phase()
		}
		if len(a.gaps) == 0 {
			t.Errorf("seed %d: no page was ever given back", seed)
		}
		t.Logf("seed %d: %d pages, %d lines resident, %d touched, %d gone", seed, a.count, a.resident(), a.touched, a.goneLines)
		a.release()
	}
}

// arenaDrive is what a test knows of an arena.
type arenaDrive struct {
	t     *testing.T
	a     *arena
	r     *rand.Rand
	live  []uint32
	class map[uint32]int       // by first line, for ever
	owner map[uint32]uint32    // line -> first line of the live piece
	seen  map[uint32][2]uint64 // last version and generation of a run's line
}

func (d *arenaDrive) phase() {
	// Large holder blocks are left out: they would only take time.
	favoured := []int{d.r.IntN(classExt + 8), d.r.IntN(classExt + 8), d.r.IntN(classExt + 8)}
	want := 20 + d.r.IntN(600)
	for range 1200 {
		if len(d.live) == 0 || len(d.live) < want && d.r.IntN(3) > 0 {
			d.take(favoured[d.r.IntN(len(favoured))])
		} else {
			d.give()
		}
		d.a.trim()
	}
	touched := uint64(0)
	for class := range d.a.classes {
		k := &d.a.classes[class]
		touched += uint64(k.live+k.free) * uint64(pieceLines[class])
	}
	if touched != d.a.touched || d.a.resident() < d.a.touched {
		d.t.Fatalf("%d lines touched, says %d of %d resident", touched, d.a.touched, d.a.resident())
	}
}

func (d *arenaDrive) take(class int) {
	line := d.a.take(class)
	if line == 0 {
		d.t.Fatal("line 0 was handed out")
	}
	if was, ok := d.class[line]; ok && was != class {
		d.t.Fatalf("line %d was of class %d and is of %d", line, was, class)
	}
	d.class[line] = class
	for l := line; l < line+pieceLines[class]; l++ {
		if o := d.owner[l]; o != 0 {
			d.t.Fatalf("line %d is in use by piece %d and given to %d", l, o, line)
		}
		d.owner[l] = line
	}
	if class < numRunClasses {
		version, generation := *d.a.w(line, runVersion), uint64(uint32(*d.a.w(line, runShape)))
		last := d.seen[line]
		if version == 0 || generation == 0 || version&1 != 0 || version < last[0] || generation < last[1] {
			d.t.Fatalf("line %d: version %d, generation %d after %v", line, version, generation, last)
		}
		// As a run is made: with contents, from its second version on.
		storeWord(d.a.w(line, runVersion), version+2)
		d.seen[line] = [2]uint64{version + 2, generation}
	}
	for k := 2; k < int(pieceLines[class])*lineWords; k++ {
		storeWord(d.a.w(line, k), uint64(line)<<20|uint64(k))
	}
	d.live = append(d.live, line)
}

func (d *arenaDrive) give() {
	i := d.r.IntN(len(d.live))
	line := d.live[i]
	class := d.class[line]
	for k := 2; k < int(pieceLines[class])*lineWords; k++ {
		if got := *d.a.w(line, k); got != uint64(line)<<20|uint64(k) {
			d.t.Fatalf("line %d of class %d: word %d is %#x", line, class, k, got)
		}
	}
	for l := line; l < line+pieceLines[class]; l++ {
		delete(d.owner, l)
	}
	if class < numRunClasses {
		// As a run is freed: under its version, with the next generation.
		last := d.seen[line]
		storeWord(d.a.w(line, runVersion), last[0]|1)
		storeWord(d.a.w(line, runShape), last[1]+1)
		d.a.give(class, line)
		storeWord(d.a.w(line, runVersion), (last[0]|1)+1)
		d.seen[line] = [2]uint64{(last[0] | 1) + 1, last[1] + 1}
	} else {
		d.a.give(class, line)
	}
	d.live[i] = d.live[len(d.live)-1]
	d.live = d.live[:len(d.live)-1]
}

// TestPageSet holds sets of page numbers against a sorted slice.
func TestPageSet(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for _, top := range []int{3, 70, 5000, 300_000} {
		var s pageSet
		var model []uint32
		for range 3000 {
			id := uint32(1 + r.IntN(top))
			i, ok := slices.BinarySearch(model, id)
			if got := s.has(id); got != ok {
				t.Fatalf("has(%d): %t, want %t", id, got, ok)
			}
			if ok {
				s.del(id)
				model = slices.Delete(model, i, i+1)
			} else if len(model) < 40 || r.IntN(3) == 0 {
				s.add(id)
				model = slices.Insert(model, i, id)
			}
			lo, hi := uint32(0), uint32(0)
			if len(model) > 0 {
				lo, hi = model[0], model[len(model)-1]
			}
			if s.lowest() != lo || s.highest() != hi || s.n != len(model) {
				t.Fatalf("%d numbers, %d to %d; want %d, %d to %d", s.n, s.lowest(), s.highest(), len(model), lo, hi)
			}
		}
	}
}

// TestArenaFlat churns chains whose length is another in each of twelve segments, at
// the same number of memberships, and holds the memory: what one length leaves
// behind must not stay beside the next one's.
func TestArenaFlat(t *testing.T) {
	c := newChain(t, Options{})
	c.open(1)
	r := rand.New(rand.NewPCG(7, 7))
	resident := uint64(longtest.N(250_000, 1_500_000))
	type chain struct{ first, n int }
	var order []chain
	var second uint64
	first := 0
	held := make([]uint64, 64)
	for segment := range 12 {
		typical := []int{24, 220, 120, 500, 40, 300, 60, 400, 90, 350, 140, 220}[segment]
		for stored := uint64(0); stored < resident*3/2; {
			n := typical - typical/4 + r.IntN(typical/2+1)
			first++
			contents := chainOf(first, n)
			if _, err := c.store(1, 1, 0, hashesOf(contents, 0), contents, held, nil); err != nil {
				t.Fatal(err)
			}
			order = append(order, chain{first, n})
			stored += uint64(n)
			for c.held(1) > resident {
				old := order[0]
				order = order[1:]
				engines := hashesOf(chainOf(old.first, old.n), 0)
				slices.Reverse(engines)
				if unknown := c.remove(1, engines, nil); len(unknown) > 0 {
					t.Fatalf("%d unknown", len(unknown))
				}
			}
		}
		if segment%4 == 3 {
			c.check()
		}
		var st Stats
		c.stats(&st)
		sum := st.Bytes[PurposeRuns] + st.Bytes[PurposeFree] + st.Bytes[PurposeHolders] + st.Bytes[PurposeEdges]
		t.Logf("segment %2d, chains of about %3d: runs %6.2f, free %5.2f, holders %5.2f, edges %5.2f, sum %6.2f B/membership; %d MiB gone",
			segment+1, typical, per(st.Bytes[PurposeRuns], resident), per(st.Bytes[PurposeFree], resident), per(st.Bytes[PurposeHolders], resident),
			per(st.Bytes[PurposeEdges], resident), per(sum, resident), c.arena.goneLines>>14)
		if segment == 1 {
			second = sum
		}
		if got, ok := systemResident(t, &c.arena); ok && got > c.arena.resident()+chunkLines/8 {
			t.Errorf("segment %d: the system says %d lines, the arena %d", segment+1, got, c.arena.resident())
		}
		// Memory comes by chunks: one that has just begun, and one taken ahead.
		const begun = 2 * chunkLines * lineBytes
		if free := st.Bytes[PurposeFree]; free > sum/4+begun {
			t.Errorf("segment %d: %d of %d bytes are free", segment+1, free, sum)
		}
		if segment == 11 && sum > second*11/10+begun {
			t.Errorf("the last segment takes %d bytes, the second %d, with chains as long", sum, second)
		}
	}
}

func per(n, of uint64) float64 { return float64(n) / float64(of) }

// TestChainDiscarded has a lookup's run freed, its page's memory given back and the
// line made a run again, with other blocks, between two of its reads.
func TestChainDiscarded(t *testing.T) {
	for when := range 6 {
		c := newChain(t, Options{})
		c.arena.testEager = true
		c.open(1)
		c.open(2)
		c.open(3)
		// The run is to lie amid its page: only whole small pages are given back.
		fill := func() {
			for k := range 25 {
				mustStore(t, c, 3, chainOf(100+k, 5))
			}
		}
		fill()
		first, second := []kv.ContentHash{1, 2, 3, 4, 5}, []kv.ContentHash{1, 2, 9, 9, 9}
		mustStore(t, c, 1, first)
		mustStore(t, c, 2, []kv.ContentHash{1, 2, 3, 7, 8})
		calls, gone := 0, false
		c.testHookLookup = func() {
			if calls++; calls-1 != when {
				return
			}
			line := c.findEdge(1, flagRoot, 1)
			c.clear(1)
			c.clear(2)
			c.clear(3)
			for range 4 {
				c.arena.trim()
			}
			gone = c.arena.goneLines > 0 && *c.arena.w(line, runVersion) == 0 && *c.arena.w(line, runContent) == 0
			fill()
			mustStore(t, c, 1, second)
			if again := c.findEdge(1, flagRoot, 1); again != line {
				t.Fatalf("the run is at line %d, was at %d", again, line)
			}
		}
		got := c.lookup(1, first, nil)
		if calls > when && !gone {
			t.Fatalf("hook %d: the page's memory was not given back", when)
		}
		for _, d := range got {
			if d.slot == 1 && d.depth != 5 && d.depth != 2 || d.slot == 2 && d.depth != 3 {
				t.Errorf("hook %d: got %v, which was never true", when, got)
			}
		}
		c.check()
	}
}
