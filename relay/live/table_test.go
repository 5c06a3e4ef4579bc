// SPDX-License-Identifier: Apache-2.0

package live

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/kv"
)

// TestTable holds a table against a map, with keys that share their hash bits.
func TestTable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	var c cuts
	c.publish()
	var recs slab[record]
	for _, byPosition := range []bool{false, true} {
		tab := &table{seed: r.Uint64(), byPosition: byPosition}
		want := map[uint64][]uint32{}
		var keys []uint64
		count := 0
		for step := range 60_000 {
			grow := step%20_000 < 12_000
			if k := r.IntN(10); len(keys) == 0 || grow && k < 7 || k < 3 {
				key := r.Uint64N(40_000)
				if k == 0 {
					key = uint64(r.IntN(8)) // often the same
				}
				if len(want[key]) > 0 && !byPosition {
					i := recs.fresh(&c)
					recs.mut(i, &c).engine = key
					tab.replace(key, want[key][0], i)
					want[key][0] = i
					continue
				}
				i := recs.fresh(&c)
				rec := recs.mut(i, &c)
				rec.engine, rec.position = key, key
				tab.insert(key, i)
				want[key] = append(want[key], i)
				keys = append(keys, key)
				count++
			} else {
				k := r.IntN(len(keys))
				key := keys[k]
				keys = slices.Delete(keys, k, k+1)
				list := want[key]
				tab.remove(key, list[0])
				if want[key] = list[1:]; len(want[key]) == 0 {
					delete(want, key)
				}
				count--
			}
			key := r.Uint64N(40_000)
			got := tab.find(&recs, key)
			if list := want[key]; got == 0 != (len(list) == 0) || got != 0 && !slices.Contains(list, got) {
				t.Fatalf("step %d: %d is record %d, want one of %d", step, key, got, list)
			}
		}
		used := 0
		for i := range tab.parts {
			used += tab.parts[i].used
		}
		if used != count {
			t.Errorf("%d words are used, want %d", used, count)
		}
		tab.touch(&recs, []kv.EngineHash{1, 2, 3})
	}
}

// TestClasses: each size has the smallest cell that holds it, an eighth too much at
// worst.
func TestClasses(t *testing.T) {
	last := -1
	for n := 1; n <= maxBlob; n++ {
		class, cell := classOf(n)
		if cellSize(class) != cell || cell < n || cell%blobUnit != 0 || class >= numClasses || class < last || class > last+1 {
			t.Fatalf("%d bytes are of class %d with cells of %d (%d), after class %d", n, class, cell, cellSize(class), last)
		}
		if cell-n >= blobUnit && cell-n > n/8+1 {
			t.Fatalf("%d bytes take %d", n, cell)
		}
		last = class
	}
}

// TestBlobs holds blobs of all sizes against copies of them while cells are freed
// and used again, cuts open in between.
func TestBlobs(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	s := New(Options{})
	type kept struct {
		ref  uint32
		want []byte
	}
	var live []kept
	var seen []kept // by the open cut
	var cut *Cut
	check := func(what string, chunks []*[blobChunk]byte, all []kept) {
		for _, k := range all {
			if got := blobAt(chunks, k.ref, len(k.want)); !slices.Equal(got, k.want) {
				t.Fatalf("%s: blob %d is %x, want %x", what, k.ref, got, k.want)
			}
		}
	}
	for step := range 4000 {
		s.blobs.settle(&s.cuts)
		for range r.IntN(6) {
			n := 1 + r.IntN(100)
			if r.IntN(40) == 0 {
				n = 1 + r.IntN(maxBlob)
			}
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			live = append(live, kept{s.blobs.put(b), b})
		}
		for len(live) > 200 {
			k := r.IntN(len(live))
			s.blobs.drop(live[k].ref, len(live[k].want), &s.cuts)
			live = slices.Delete(live, k, k+1)
		}
		if step%50 == 0 {
			check("live", s.blobs.chunks, live)
			if cut != nil {
				check("cut", cut.blobs, seen)
				cut.Close()
			}
			cut, _ = s.Cut()
			seen = slices.Clone(live)
		}
	}
	cut.Close()
	for _, k := range live {
		s.blobs.drop(k.ref, len(k.want), &s.cuts)
	}
	s.blobs.settle(&s.cuts)
	if all, free, kept := s.blobs.bytes(); all > (spareChunks+1)*blobChunk || free != spareChunks*blobChunk || s.blobs.used != 0 || kept > 1<<20 {
		t.Errorf("%d bytes, %d of them free, %d kept, for no blob", all, free, kept)
	}
}

// Memory that blobs of one size had serves those of another.
func TestBlobsOfOtherSizes(t *testing.T) {
	s := New(Options{})
	var old []uint32
	for size := 40; size < 120; size += 8 {
		var now []uint32
		b := make([]byte, size)
		for i := range 10_000 {
			if i < len(old) {
				s.blobs.drop(old[i], size-8, &s.cuts)
			}
			now = append(now, s.blobs.put(b))
			s.blobs.settle(&s.cuts)
		}
		if all, _, _ := s.blobs.bytes(); all > uint64(size+8)*10_000*13/10 {
			t.Fatalf("%d bytes for 10,000 blobs of %d", all, size)
		}
		old = now
	}
}
