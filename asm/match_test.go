// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/asm/asmtest"
)

func naiveForward(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func naiveReverse(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[n] {
		n++
	}
	return n
}

// TestMatch compares windows of every length to 130 at both guards with the
// difference, in one bit, at every place, and none.
func TestMatch(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 1))
		fa, fb := newFence(t, 200), newFence(t, 200)
		for n := range 131 {
			fa.sides(n, func(a []uint64) {
				fb.sides(n, func(b []uint64) {
					fill(r, a)
					copy(b, a)
					testMatch(t, r, "forward", MatchForward, a, b)
					slices.Reverse(b)
					testMatch(t, r, "reverse", MatchReverse, a, b)
				})
			})
		}
	}, "matchForward", "matchReverse")
}

// testMatch holds match of a with b, which matches throughout, to its result for
// every difference.
func testMatch(t *testing.T, r *rand.Rand, name string, match func(a, b []uint64) int, a, b []uint64) {
	t.Helper()
	if got := match(a, b); got != len(b) {
		t.Fatalf("%s: %d equal words: got %d", name, len(b), got)
	}
	for d := range b {
		bit := uint64(1) << r.IntN(64)
		b[d] ^= bit
		if got := match(a, b); got != d {
			t.Fatalf("%s: %d words, difference at %d: got %d", name, len(b), d, got)
		}
		b[d] ^= bit
	}
}

// TestMatchUneven compares windows of different lengths.
func TestMatchUneven(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(2, 2))
		fa, fb := newFence(t, 600), newFence(t, 600)
		for range 4000 {
			a, b := fa.tail(r.IntN(600)), fb.tail(r.IntN(600))

			for i := range a {
				a[i] = 0
			}
			for i := range b {
				b[i] = 0
			}
			for range r.IntN(3) {
				if len(a) > 0 {
					a[r.IntN(len(a))] = r.Uint64N(2)
				}
				if len(b) > 0 {
					b[r.IntN(len(b))] = r.Uint64N(2)
				}
			}
			if got, want := MatchForward(a, b), naiveForward(a, b); got != want {
				t.Fatalf("forward of %d and %d words: got %d, want %d", len(a), len(b), got, want)
			}
			if got, want := MatchReverse(a, b), naiveReverse(a, b); got != want {
				t.Fatalf("reverse of %d and %d words: got %d, want %d", len(a), len(b), got, want)
			}
		}
	}, "matchForward", "matchReverse")
}

func FuzzMatch(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte{1, 2, 4})
	f.Add(make([]byte, 70), make([]byte, 69))
	f.Fuzz(func(t *testing.T, x, y []byte) {
		a, b := make([]uint64, len(x)), make([]uint64, len(y))
		for i, v := range x {
			a[i] = uint64(v)
		}
		for i, v := range y {
			b[i] = uint64(v)
		}
		forward, reverse := naiveForward(a, b), naiveReverse(a, b)
		asmtest.Each(t, func(level string) {
			if got := MatchForward(a, b); got != forward {
				t.Errorf("%s: MatchForward(%v, %v): got %d, want %d", level, a, b, got, forward)
			}
			if got := MatchReverse(a, b); got != reverse {
				t.Errorf("%s: MatchReverse(%v, %v): got %d, want %d", level, a, b, got, reverse)
			}
		})
	})
}

// benchLengths are windows of a decode block, a short and a long prompt, and what a
// run holds at most.
var benchLengths = []int{1, 4, 8, 16, 32, 64, 128, 376, 512}

func BenchmarkMatchForward(b *testing.B) {
	for _, n := range benchLengths {
		x := make([]uint64, n)
		y := slices.Clone(x)
		asmtest.Each(b, func(level string) {
			b.Run(fmt.Sprintf("n=%d/%s", n, level), func(b *testing.B) {
				for b.Loop() {
					MatchForward(x, y)
				}
			})
		})
	}
}

func BenchmarkMatchReverse(b *testing.B) {
	for _, n := range benchLengths {
		x := make([]uint64, n)
		y := slices.Clone(x)
		asmtest.Each(b, func(level string) {
			b.Run(fmt.Sprintf("n=%d/%s", n, level), func(b *testing.B) {
				for b.Loop() {
					MatchReverse(x, y)
				}
			})
		})
	}
}
