// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"kindex/asm/asmtest"
)

// sparse fills words with bits of one density: none, few, half, most or all.
func sparse(r *rand.Rand, words []uint64) {
	density := r.IntN(5)
	for i := range words {
		switch density {
		case 0:
			words[i] = 0
		case 1:
			words[i] = 1<<r.IntN(64) | 1<<r.IntN(64)&r.Uint64()
		case 2:
			words[i] = r.Uint64()
		case 3:
			words[i] = r.Uint64() | r.Uint64() | r.Uint64()
		default:
			words[i] = ^uint64(0)
		}
	}
}

// checkAnd holds AndWords to a plain loop, in place, too.
func checkAnd(t *testing.T, keep, cand, bits []uint64) {
	t.Helper()
	want, all := make([]uint64, len(cand)), true
	for i, c := range cand {
		if i < len(bits) {
			want[i] = c & bits[i]
		}
		all = all && want[i] == c
	}
	for i := range keep {
		keep[i] = 77
	}
	if got := AndWords(keep, cand, bits); got != all || !slices.Equal(keep[:len(cand)], want) {
		t.Fatalf("AND of %x and %x: got %x, all %v; want %x, all %v", cand, bits, keep[:len(cand)], got, want, all)
	}
	for i, w := range keep[len(cand):] {
		if w != 77 {
			t.Fatalf("AND of %d words wrote word %d: %x", len(cand), len(cand)+i, w)
		}
	}
	copy(keep, cand)
	if got := AndWords(keep[:len(cand)], keep[:len(cand)], bits); got != all || !slices.Equal(keep[:len(cand)], want) {
		t.Fatalf("AND of %x and %x in place: got %x, all %v; want %x, all %v", cand, bits, keep[:len(cand)], got, want, all)
	}
}

func TestAndWords(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 3))
		fk, fc, fb := newFence(t, 1100), newFence(t, 1100), newFence(t, 1100)
		for n := range 40 {
			for m := range 40 {
				fc.sides(n, func(cand []uint64) {
					fb.sides(m, func(bits []uint64) {
						fk.sides(n+r.IntN(2)*3, func(keep []uint64) {
							sparse(r, cand)
							sparse(r, bits)
							checkAnd(t, keep, cand, bits)
						})
					})
				})
			}
		}
		for _, n := range []int{255, 256, 257, MaxAndWords} {
			for _, m := range []int{0, 255, 256, 257, 512, MaxAndWords} {
				cand, bits := fc.tail(n), fb.tail(m)
				sparse(r, cand)
				sparse(r, bits)
				checkAnd(t, fk.tail(n), cand, bits)
			}
		}
	}, "andWords")
}

// checkList holds ListBits to a plain loop for room in dst, which lies at a guard.
func checkList(t *testing.T, dst fence, room int, bits []uint64, add uint64) {
	t.Helper()
	var want []uint64
	for i := range len(bits) * 64 {
		if bits[i/64]>>(i%64)&1 != 0 {
			want = append(want, add+uint64(i))
		}
	}
	got := dst.tail(room)
	before := dst[len(dst)-room-1]
	if n := ListBits(got, bits, add); n != len(want) {
		t.Fatalf("list of %x into %d: got %d, want %d", bits, room, n, len(want))
	}
	if m := min(room, len(want)); !slices.Equal(got[:m], want[:m]) {
		t.Fatalf("list of %x into %d: differs at %d", bits, room, firstDifference(got, want))
	}
	if dst[len(dst)-room-1] != before {
		t.Fatalf("list of %x into %d: wrote before it", bits, room)
	}
}

func TestListBits(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(4, 4))
		fd, fb := newFence(t, 1<<12), newFence(t, 64)
		for range 20_000 {
			bits := fb.tail(r.IntN(20))
			sparse(r, bits)
			held := 0
			for _, w := range bits {
				for ; w != 0; w &= w - 1 {
					held++
				}
			}
			room := max(0, held+r.IntN(40)-20)
			checkList(t, fd, room, bits, []uint64{0, 5 << 32, ^uint64(0)}[r.IntN(3)])
		}
	}, "listBits")
}

func FuzzCover(f *testing.F) {
	f.Add(uint64(1), uint8(2), uint8(2), uint8(100))
	f.Fuzz(func(t *testing.T, seed uint64, n, m, room uint8) {
		r := rand.New(rand.NewPCG(seed, 0))
		cand, bits := make([]uint64, n), make([]uint64, m)
		sparse(r, cand)
		sparse(r, bits)
		dst := make(fence, int(room)+1)
		asmtest.Each(t, func(string) {
			checkAnd(t, make([]uint64, len(cand)), cand, bits)
			checkList(t, dst, int(room), bits, seed)
		})
	})
}

// TestHints shows that no address, mapped or not, does any harm: there is nothing
// else to see.
func TestHints(t *testing.T) {
	asmtest.ForEachLevel(t, func(*testing.T) {
		Prefetch(nil)
		PrefetchLines(nil, nil)
		PrefetchLines(nil, []uint32{0, 1, ^uint32(0)})
		PrefetchRange(nil, 0)
		PrefetchRange(nil, 100)
		Pause()
	}, "prefetch", "prefetchLines", "prefetchRange", "pause")
}

func BenchmarkHints(b *testing.B) {
	lines := make([]uint64, 1<<10)
	at, numbers := unsafe.Pointer(&lines[0]), make([]uint32, 32)
	for i := range numbers {
		numbers[i] = uint32(i * 2)
	}
	for _, f := range []struct {
		name string
		call func()
	}{
		{"one", func() { Prefetch(at) }},
		{"lines=32", func() { PrefetchLines(at, numbers) }},
		{"range=8", func() { PrefetchRange(at, 8) }},
		{"pause", Pause},
	} {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				f.call()
			}
		})
	}
}

func BenchmarkAndWords(b *testing.B) {
	for _, n := range []int{1, 2, 4, 8, 16, 64} {
		keep, cand, bits := make([]uint64, n), make([]uint64, n), make([]uint64, n)
		asmtest.Each(b, func(level string) {
			b.Run(fmt.Sprintf("words=%d/%s", n, level), func(b *testing.B) {
				for b.Loop() {
					AndWords(keep, cand, bits)
				}
			})
		})
	}
}

// BenchmarkListBits lists holders of one run among 128 and 1,024 slots.
func BenchmarkListBits(b *testing.B) {
	for _, slots := range []int{128, 1024} {
		for _, every := range []int{1, 2, 8, 32} {
			bits, dst := make([]uint64, slots/64), make([]uint64, slots+8)
			for i := 0; i < slots; i += every {
				bits[i/64] |= 1 << (i % 64)
			}
			asmtest.Each(b, func(level string) {
				b.Run(fmt.Sprintf("slots=%d/held=%d/%s", slots, slots/every, level), func(b *testing.B) {
					for b.Loop() {
						ListBits(dst, bits, 7<<32)
					}
				})
			})
		}
	}
}
