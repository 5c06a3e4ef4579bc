// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"kindex/asm/asmtest"
)

// makeRun writes a header of length blocks with a holder block at line block, and
// contents.
func makeRun(run []uint64, version uint64, length int, block uint32, contents []uint64) {
	for k := range RunHeaderWords {
		run[k] = uint64(k)<<56 | uint64(k)
	}
	run[0] = version
	run[runLength] = 7 | uint64(length)<<runLengthShift | 9<<48
	run[runHolders] = uint64(block) | 5<<32
	copy(run[RunHeaderWords:], contents)
}

func TestReadRun(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		run := newFence(t, 400)
		f := func(version uint64, length int, chain []uint64, wantMatch int, wantOK bool) {
			t.Helper()
			// The contents end where the memory ends, as a run's may not, but almost.
			at := run.tail(RunHeaderWords + length)
			contents := make([]uint64, length)
			for i := range contents {
				contents[i] = uint64(100 + i)
			}
			makeRun(at, version, length, 0, contents)
			out := [RunHeaderWords]uint64{1: 99}
			match, ok := ReadRun(&at[0], chain, &out)
			if match != wantMatch || ok != wantOK {
				t.Errorf("version %d, length %d, chain of %d: got %d, %v; want %d, %v", version, length, len(chain), match, ok, wantMatch, wantOK)
			}
			if ok && !slices.Equal(out[:], at[:RunHeaderWords]) {
				t.Errorf("header: got %v, want %v", out, at[:RunHeaderWords])
			}
		}
		long := make([]uint64, 300)
		for i := range long {
			long[i] = uint64(100 + i)
		}
		f(2, 12, nil, 0, true)
		f(2, 0, long, 0, true)
		f(2, 12, []uint64{100, 101}, 2, true)
		f(2, 12, []uint64{100, 7}, 1, true)
		f(2, 12, []uint64{7}, 0, true)
		f(4, 12, long, 12, true) // no further than the length
		f(3, 12, long, 0, false)
		for n := range 131 {
			f(6, n, long, n, true)
			f(6, 131, long[:n], n, true)
			for d := range n {
				other := slices.Clone(long[:n])
				other[d]++
				f(8, 131, other, d, true)
			}
		}
	}, "readRun")
}

// TestReadRunAnd compares with the parts: header, match, AND.
func TestReadRunAnd(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 5))
		lines := newFence(t, 1<<13)
		fc, fk := newFence(t, 64), newFence(t, 64)
		run := make([]uint64, RunHeaderWords+100)
		chain := make([]uint64, 100)
		fill(r, chain)
		for range 20_000 {
			length := r.IntN(101)
			own := slices.Clone(chain)
			if at := r.IntN(200); at < len(own) {
				own[at]++
			}
			version := uint64(r.IntN(8))
			blockLine := uint32(r.IntN(3)) * (1 + uint32(r.IntN(500)))
			makeRun(run, version, length, blockLine, own)
			block := lines[blockLine*RunHeaderWords:]
			width := r.IntN(40)
			fill(r, block[:HolderBlockWords+width])
			block[0] = block[0]&^0xffff | uint64(width)
			sparse(r, block[HolderBlockWords:][:width])
			cand := fc.tail(r.IntN(40))
			sparse(r, cand)
			keep := fk.tail(len(cand))
			for i := range keep {
				keep[i] = 77
			}
			wantKeep, wantAll := slices.Clone(keep), false
			wantMatch := min(naiveForward(own, chain), length)
			if version&1 != 0 {
				wantMatch = 0
			} else if blockLine != 0 && wantMatch != 0 {
				wantAll = andShared(wantKeep, cand, block[HolderBlockWords:][:width])
			}

			var out RunRead
			match, all, ok := ReadRunAnd(&run[0], chain, &out, unsafe.Pointer(&lines[0]), cand, keep)
			if ok != (version&1 == 0) || match != wantMatch || all != wantAll || !slices.Equal(keep, wantKeep) {
				t.Fatalf("version %d, length %d, block %d of %d words: got %d, %v, %v, keep %x; want %d, %v, keep %x",
					version, length, blockLine, width, match, all, ok, keep, wantMatch, wantAll, wantKeep)
			}
			if ok && !slices.Equal(out.Header[:], run[:RunHeaderWords]) {
				t.Fatalf("header: got %x, want %x", out.Header, run[:RunHeaderWords])
			}
			if ok && match > 0 && blockLine != 0 && !slices.Equal(out.Block[:HolderBlockWords], block[:HolderBlockWords]) {
				t.Fatalf("block: got %x, want %x", out.Block, block[:HolderBlockWords])
			}
		}
	}, "readRunAnd")
}

func FuzzReadRun(f *testing.F) {
	f.Add(uint64(1), uint16(12), uint16(7), uint16(3))
	f.Fuzz(func(t *testing.T, seed uint64, length, chain, differs uint16) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := int(length) % 513
		run := make([]uint64, RunHeaderWords+n)
		contents := make([]uint64, n)
		fill(r, contents)
		makeRun(run, seed, n, 0, contents)
		asked := make([]uint64, int(chain)%600)
		copy(asked, contents)
		if int(differs) < len(asked) {
			asked[differs]++
		}
		var want [RunHeaderWords]uint64
		wantMatch, wantOK := readRun(&run[0], asked, &want)
		asmtest.Each(t, func(level string) {
			var out RunRead
			match, ok := ReadRun(&run[0], asked, &out.Header)
			if match != wantMatch || ok != wantOK || ok && out.Header != want {
				t.Errorf("%s: got %d, %v, %x; want %d, %v, %x", level, match, ok, out.Header, wantMatch, wantOK, want)
			}
			out = RunRead{}
			match, _, ok = ReadRunAnd(&run[0], asked, &out, nil, nil, nil)
			if match != wantMatch || ok != wantOK || ok && out.Header != want {
				t.Errorf("%s, and: got %d, %v, %x; want %d, %v, %x", level, match, ok, out.Header, wantMatch, wantOK, want)
			}
		})
	})
}

// turn is what the writer of the concurrency test makes of a run in its k-th turn:
// every word but the entries and the stamp says k, so that a mixture shows.
//
// The entries and the stamp change without the version: first the stamp goes up,
// then the entries follow. So a reader never may see an entry above the stamp.
func turn(run, block []uint64, k uint64) {
	atomic.StoreUint64(&run[0], run[0]|1)
	for i := range 64 {
		atomic.StoreUint64(&run[RunHeaderWords+i], k)
	}
	atomic.StoreUint64(&run[2], k)
	for i := range 8 {
		atomic.StoreUint64(&block[HolderBlockWords+i], k)
	}
	atomic.StoreUint64(&run[0], run[0]+1)
	for i := range uint64(4) {
		atomic.StoreUint64(&run[runGap], k*4+i)
		for e := 5; e < RunHeaderWords; e++ {
			atomic.StoreUint64(&run[e], k*4+i)
		}
	}
}

// TestReadRunWhileWritten has one writer against a reader: whatever the reader is
// given as good was one state.
func TestReadRunWhileWritten(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		memory := make([]uint64, 1024)
		off := 0
		for uintptr(unsafe.Pointer(&memory[off]))%lineBytes != 0 {
			off++
		}
		lines := memory[off:]
		run, block := lines[:RunHeaderWords+64], lines[10*RunHeaderWords:]
		makeRun(run, 0, 64, 10, nil)
		block[0] = 8
		turn(run, block, 0)
		var stop atomic.Bool
		var turns atomic.Uint64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for k := uint64(1); !stop.Load(); k++ {
				turns.Store(k)
				turn(run, block, k)
				for range k % 64 {
					_ = atomic.LoadUint64(&run[0])
				}
			}
		}()
		chain := make([]uint64, 64)
		cand := slices.Repeat([]uint64{^uint64(0)}, 8)
		keep := make([]uint64, 8)
		good, tries := 0, 0
		for ; (good < 20_000 || turns.Load() < 1000) && tries < 5_000_000; tries++ {
			if tries%1000 == 0 {
				runtime.Gosched() // on one core, the writer's turn
			}
			k := atomic.LoadUint64(&run[2])
			for i := range chain {
				chain[i] = k
			}
			var out RunRead
			match, _, ok := ReadRunAnd(&run[0], chain, &out, unsafe.Pointer(&lines[0]), cand, keep)
			if !ok {
				continue
			}
			good++
			h := out.Header
			if (h[2] == k) != (match == 64) || match != 0 && match != 64 {
				t.Fatalf("version %d: turn %d, asked for %d, and %d of 64 match", h[0], h[2], k, match)
			}
			if match == 64 && (keep[0] != k || keep[7] != k || slices.Max(keep) != slices.Min(keep)) {
				t.Fatalf("version %d: turn %d, and coverage of %d", h[0], h[2], keep)
			}
			for _, e := range h[5:] {
				if e > h[runGap] {
					t.Fatalf("entry %d was seen with the older stamp %d", e, h[runGap])
				}
			}
		}
		stop.Store(true)
		<-done
		t.Logf("%d turns, %d of %d reads good", turns.Load(), good, tries)
		if good == 0 {
			t.Errorf("no read was good")
		}
	}, "readRun", "readRunAnd")
}

func BenchmarkReadRun(b *testing.B) {
	for _, n := range benchLengths {
		run, chain := make([]uint64, RunHeaderWords+n), make([]uint64, n)
		makeRun(run, 2, n, 0, chain)
		asmtest.Each(b, func(level string) {
			b.Run(fmt.Sprintf("n=%d/%s", n, level), func(b *testing.B) {
				var out [RunHeaderWords]uint64
				for b.Loop() {
					ReadRun(&run[0], chain, &out)
				}
			})
		})
	}
}

// BenchmarkReadRunAnd reads a run and its coverage among 512 slots.
func BenchmarkReadRunAnd(b *testing.B) {
	for _, n := range benchLengths {
		lines, chain := make([]uint64, 1024), make([]uint64, n)
		makeRun(lines, 2, n, 100, chain)
		lines[800] = 8
		cand, keep := make([]uint64, 8), make([]uint64, 8)
		asmtest.Each(b, func(level string) {
			b.Run(fmt.Sprintf("n=%d/%s", n, level), func(b *testing.B) {
				var out RunRead
				for b.Loop() {
					ReadRunAnd(&lines[0], chain, &out, unsafe.Pointer(&lines[0]), cand, keep)
				}
			})
		})
	}
}
