// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/asm/asmtest"
)

// newDict is a table of lines homes with room for n keys past the last.
func newDict(lines, n int) *DictTable {
	return &DictTable{
		Words: make([]uint64, (lines+n/DictSlots+2)*DictLineWords),
		Lines: uint64(lines), Old: uint64(lines),
	}
}

// guarded returns words right before a page that nobody may touch.
func guarded(t *testing.T, words int) []uint64 {
	f := newFence(t, words)
	return f[len(f)-words:]
}

// dictPlay runs calls on a table with the kernels of a level, the same on a second
// one with their twins, and keeps what is in both in a plain map.
type dictPlay struct {
	t          *testing.T
	fast, twin *DictTable
	sweep      DictSweep
	model      map[uint64]map[uint32]bool
	keyOf      map[uint32]uint64
	next       uint32 // position
	n          int
	known      int // lines moved without keys
}

func newDictPlay(t *testing.T, lines, maxLines, n int) *dictPlay {
	d := &dictPlay{
		t: t, fast: newDict(maxLines, n), twin: newDict(maxLines, n),
		model: map[uint64]map[uint32]bool{}, keyOf: map[uint32]uint64{}, next: 512,
	}
	words := len(d.fast.Words)
	d.fast.Words = guarded(t, words)
	for _, table := range []*DictTable{d.fast, d.twin} {
		table.Lines, table.Old = uint64(lines), uint64(lines)
	}
	return d
}

func (d *dictPlay) insert(keys []uint64) {
	d.t.Helper()
	got, want := make([]uint32, len(keys)), make([]uint32, len(keys))
	got = got[:DictInsert(d.fast, keys, d.next, got)]
	want = want[:dictInsertGeneric(d.twin, keys, d.next, want)]
	if !slices.Equal(got, want) {
		d.t.Fatalf("insert of %x: hits %v, twin's are %v", keys, got, want)
	}
	for i, k := range keys {
		// A hit may be a tag's accident, but no known key may be missed.
		if len(d.model[k]) > 0 && !slices.Contains(got, uint32(i)) {
			d.t.Fatalf("insert of key %#x: already at %v, and no hit", k, d.model[k])
		}
		if d.model[k] == nil {
			d.model[k] = map[uint32]bool{}
		}
		d.model[k][d.next] = true
		d.keyOf[d.next] = k
		d.next++
	}
	d.n += len(keys)
	d.same("insert")
}

// remove takes out up to n positions in a row, some of which are perhaps not there.
func (d *dictPlay) remove(first uint32, n int) {
	d.t.Helper()
	keys, missing := make([]uint64, n), 0
	for i := range keys {
		p := first + uint32(i)
		k, ok := d.keyOf[p]
		if !ok {
			k = uint64(p)
			missing++
		}
		keys[i] = k
		delete(d.keyOf, p)
		delete(d.model[k], p)
		if len(d.model[k]) == 0 {
			delete(d.model, k)
		}
	}
	d.n -= n - missing
	got, want := DictDelete(d.fast, keys, first), dictDeleteGeneric(d.twin, keys, first)
	if got != want || got != missing {
		d.t.Fatalf("delete of %d positions: %d missing, twin says %d, want %d", n, got, want, missing)
	}
	d.same("delete")
}

// grow begins growth or moves some lines on.
func (d *dictPlay) grow(lines uint64) {
	d.t.Helper()
	for _, table := range []*DictTable{d.fast, d.twin} {
		if !table.Growing() {
			if lines > table.Lines {
				table.Grow(lines)
			}
			continue
		}
		if lines%3 != 0 {
			d.known += int(table.MoveKnown(1 + lines%7))
			if !table.Growing() {
				continue
			}
		}
		table.Gather(&d.sweep, 1+lines%7)
		for i, p := range d.sweep.Positions {
			d.sweep.Keys[i] = d.keyOf[p]
		}
		table.Move(&d.sweep)
	}
	d.same("growth")
}

func (d *dictPlay) same(after string) {
	d.t.Helper()
	if !slices.Equal(d.fast.Words, d.twin.Words) {
		d.t.Fatalf("%s: the tables differ", after)
	}
}

// look compares what the table says of keys with the model.
func (d *dictPlay) look(keys []uint64) {
	d.t.Helper()
	n, err := d.fast.Check(func(p uint32) uint64 { return d.keyOf[p] })
	if err != nil || n != uint64(d.n) {
		d.t.Fatalf("%d entries, %v; want %d", n, err, d.n)
	}
	got, want := make([]uint32, len(keys)), make([]uint32, len(keys))
	DictProbe(d.fast, keys, got)
	dictProbeGeneric(d.twin, keys, want)
	if !slices.Equal(got, want) {
		d.t.Fatalf("probe of %x: got %v, twin says %v", keys, got, want)
	}
	for i, k := range keys {
		out := make([]uint32, 4)
		n := DictFind(d.fast, k, out)
		if n > len(out) {
			out = make([]uint32, n)
			if again := DictFind(d.fast, k, out); again != n {
				d.t.Fatalf("find of key %#x: %d candidates, then %d", k, n, again)
			}
		}
		out = out[:n]
		if n > 0 && got[i] != out[0] || n == 0 && got[i] != 0 {
			d.t.Fatalf("probe of key %#x: got %d, want first of %v", k, got[i], out)
		}
		for p := range d.model[k] {
			if !slices.Contains(out, p) {
				d.t.Fatalf("find of key %#x: got %v, want %d among them", k, out, p)
			}
		}
	}
}

// empty takes everything out and wants nothing left but counts at their maximum.
func (d *dictPlay) empty() {
	d.t.Helper()
	for p := range d.keyOf {
		d.remove(p, 1)
	}
	for i, w := range d.fast.Words {
		if i%DictLineWords < 3 && w != 0 && (i%DictLineWords != 2 || w != dictFull<<32) {
			d.t.Fatalf("word %d is %#x after all keys went, want 0", i, w)
		}
	}
}

// TestDictAgainstTwin runs random batches: tables from nearly empty to nearly
// full, keys from all different to nearly all the same, growth mostly under way.
func TestDictAgainstTwin(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		known := 0
		for seed := range uint64(60) {
			r := rand.New(rand.NewPCG(seed, 1))
			lines := 1 + r.IntN(40)
			room := lines * DictSlots * 9 / 10
			space := []uint64{3, 40, 1000, 1 << 62}[seed%4]
			d := newDictPlay(t, lines, 3*lines, room)
			some := func(n int) []uint64 {
				keys := make([]uint64, n)
				for i := range keys {
					keys[i] = r.Uint64N(space) * (1 + seed*0x100000001)
				}
				return keys
			}
			for range 200 {
				switch op := r.IntN(6); {
				case op < 3 && d.n < room:
					d.insert(some(1 + r.IntN(min(300, room-d.n))))
				case op < 5:
					if span := d.next - 512; span > 0 {
						first := 512 + r.Uint32N(span)
						d.remove(first, 1+r.IntN(min(300, int(d.next-first))))
					}
				default:
					d.grow(min(uint64(lines)*3, d.fast.Lines+1+r.Uint64N(uint64(lines))))
				}
				DictPrefetch(d.fast, some(r.IntN(150)))
				d.look(some(1 + r.IntN(150)))
			}
			d.empty()
			known += d.known
			if DictDelete(d.fast, []uint64{5}, 7) != 1 {
				t.Fatalf("seed %d: delete from an empty table found something", seed)
			}
		}
		if known == 0 {
			t.Error("no line was moved without its keys")
		}
		t.Logf("%d lines moved without their keys", known)
	}, "dictInsert", "dictDelete", "dictProbe", "dictPrefetch")
}

// TestDictManyOfOneKey grows a table in which thousands of positions have one key.
func TestDictManyOfOneKey(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		const n, lines = 3000, 350
		for key := range uint64(5) {
			d := newDictPlay(t, lines, 2*lines, n)
			keys := make([]uint64, 500)
			for i := range keys {
				keys[i] = key << 61 // homes all over, the last lines, too
			}
			for range n / 500 {
				d.insert(keys)
			}
			d.insert([]uint64{1, 2, 3, 4, 5, 6, 7})
			d.grow(lines * 5 / 4)
			for d.fast.Growing() {
				d.grow(6)
				if d.fast.Rest>>57&31 == 0 {
					d.look([]uint64{key << 61, 4, 5})
				}
			}
			d.look([]uint64{key << 61, 4, 5})
			for p := uint32(512); p < d.next; p += 400 {
				d.remove(p, int(min(400, d.next-p)))
			}
			d.empty()
		}
	}, "dictInsert", "dictDelete", "dictProbe")
}

// TestDictOverflowSaturates holds that a count at its maximum stays, so that what
// lies behind is found for ever.
func TestDictOverflowSaturates(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		dict := newDict(4, 40)
		key := []uint64{0}
		hits := make([]uint32, 1)
		for p := range uint32(DictSlots) {
			DictInsert(dict, key, p+1, hits)
		}
		count := &dict.line(dict.home(dictHash(0)))[2]
		*count |= (dictFull - 1) << 32
		for p := range uint32(3) {
			DictInsert(dict, key, 100+p, hits)
		}
		if got := *count >> 32; got != dictFull {
			t.Fatalf("overflow count: got %d, want %d", got, dictFull)
		}
		DictDelete(dict, key, 100)
		DictDelete(dict, key, 101)
		if got := *count >> 32; got != dictFull {
			t.Errorf("overflow count after deletions: got %d, want %d", got, dictFull)
		}
		if n := DictFind(dict, 0, nil); n != DictSlots+1 {
			t.Errorf("got %d candidates, want %d", n, DictSlots+1)
		}
	}, "dictInsert", "dictDelete")
}

// TestDictFull holds that an insert past the last line panics and touches nothing
// behind it.
func TestDictFull(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		dict := &DictTable{Words: guarded(t, 3*DictLineWords), Lines: 3, Old: 3}
		defer func() {
			if recover() == nil {
				t.Error("31 keys went into 30 slots")
			}
		}()
		DictInsert(dict, make([]uint64, 31), 1, make([]uint32, 31))
	}, "dictInsert")
}

// FuzzDict plays calls that the input says, three bytes each: what, how many, and
// of which keys.
func FuzzDict(f *testing.F) {
	f.Add([]byte{0, 9, 1, 0, 200, 3, 2, 5, 0, 2, 7, 0, 1, 9, 4, 3, 20, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		const lines, room = 6, 400
		asmtest.ForEachLevel(t, func(t *testing.T) {
			d := newDictPlay(t, lines, 8*lines, room)
			for script := script; len(script) >= 3; script = script[3:] {
				n := int(script[1]) + 1
				keys := make([]uint64, n)
				for i := range keys {
					keys[i] = uint64(i%int(script[2]/8+1)) << (script[2] % 8 * 8)
				}
				switch script[0] % 4 {
				case 0:
					d.insert(keys[:max(0, min(n, room-d.n))])
				case 1:
					d.remove(512+uint32(binary.LittleEndian.Uint16(script[1:])), n)
				case 2:
					d.grow(min(8*lines, d.fast.Lines+uint64(n)/8))
				case 3:
					d.look(keys)
				}
			}
			d.empty()
		}, "dictInsert", "dictDelete", "dictProbe")
	})
}
