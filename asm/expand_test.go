// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/asm/asmtest"
)

// checkExpand holds ExpandSlots to a plain loop for a dst of room elements, or, when
// those are too few, to a panic.
func checkExpand(t *testing.T, dst, ids []uint32, set, mask []uint64, depth uint32) {
	t.Helper()
	var want []uint32
	for i := range len(set) * 64 {
		if set[i/64]&mask[i/64]>>(i%64)&1 != 0 {
			want = append(want, ids[i], depth, depth, depth)
		}
	}
	short := len(want) > len(dst)/ExpandWords*ExpandWords
	defer func() {
		if r := recover(); (r != nil) != short {
			t.Fatalf("%d of %d elements: got panic %v, want one: %v", len(want)/4, len(dst)/4, r, short)
		}
	}()
	n := ExpandSlots(dst, ids, set, mask, depth)
	if n*ExpandWords != len(want) || !slices.Equal(dst[:len(want)], want) {
		t.Fatalf("expand of %x and %x: got %d elements, want %d, differs at word %d", set, mask, n, len(want)/4, firstDifference(dst, want))
	}
}

func TestExpandSlots(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(6, 6))
		fd, fi, fs, fm := newFence(t, 8*64*2+64), newFence(t, 8*32), newFence(t, 64), newFence(t, 64)
		for range 20_000 {
			words := r.IntN(9)
			set, mask := fs.tail(words), fm.tail(words)
			sparse(r, set)
			sparse(r, mask)
			ids := halves(fi.tail(words * 32))
			for i := range ids {
				ids[i] = r.Uint32()
			}
			held := 0
			for i := range set {
				for m := set[i] & mask[i]; m != 0; m &= m - 1 {
					held++
				}
			}
			room := max(0, held+r.IntN(20)-2)
			before := fd[len(fd)-room*2-1]
			checkExpand(t, halves(fd.tail(room*2)), ids, set, mask, r.Uint32())
			if fd[len(fd)-room*2-1] != before {
				t.Fatalf("expand of %x and %x into %d: wrote before it", set, mask, room)
			}
		}
	}, "expandSlots")
}

func FuzzExpand(f *testing.F) {
	f.Add(uint64(1), uint8(2), uint8(128))
	f.Fuzz(func(t *testing.T, seed uint64, words, room uint8) {
		r := rand.New(rand.NewPCG(seed, 0))
		set, mask := make([]uint64, words), make([]uint64, words)
		sparse(r, set)
		sparse(r, mask)
		ids := make([]uint32, 64*int(words))
		for i := range ids {
			ids[i] = r.Uint32()
		}
		dst := make([]uint32, int(room)*8)
		asmtest.Each(t, func(string) { checkExpand(t, dst, ids, set, mask, uint32(seed)) })
	})
}

// BenchmarkExpandSlots makes matches of so many holders among 128 and 1,024 slots.
func BenchmarkExpandSlots(b *testing.B) {
	for _, slots := range []int{128, 1024} {
		for _, every := range []int{1, 2, 8, 32} {
			set, ids := make([]uint64, slots/64), make([]uint32, slots)
			for i := 0; i < slots; i += every {
				set[i/64] |= 1 << (i % 64)
			}
			dst := make([]uint32, ExpandWords*slots/every)
			asmtest.Each(b, func(level string) {
				b.Run(fmt.Sprintf("slots=%d/held=%d/%s", slots, slots/every, level), func(b *testing.B) {
					for b.Loop() {
						ExpandSlots(dst, ids, set, set, 7)
					}
				})
			})
		}
	}
}
