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
		fc, fk := newFence(t, MaxSlotWords), newFence(t, MaxSlotWords)
		run := make([]uint64, RunHeaderWords+100)
		chain := make([]uint64, 100)
		fill(r, chain)
		for range 10_000 {
			length := r.IntN(101)
			own := slices.Clone(chain)
			if at := r.IntN(200); at < len(own) {
				own[at]++
			}
			version := uint64(r.IntN(8))
			width := r.IntN(40)
			if r.IntN(20) == 0 {
				width = r.IntN(MaxSlotWords - lineBytes/8)
			}
			// The bitset ends where the memory ends.
			blockLine := uint32((len(lines) - HolderBlockWords - width) / RunHeaderWords)
			width = len(lines) - HolderBlockWords - int(blockLine)*RunHeaderWords
			block := lines[blockLine*RunHeaderWords:]
			if r.IntN(3) == 0 {
				blockLine = 0
			}
			makeRun(run, version, length, blockLine, own)
			fill(r, block[:HolderBlockWords+width])
			block[0] = block[0]&^0xffff | uint64(width)
			sparse(r, block[HolderBlockWords:][:width])
			cand := fc.tail(r.IntN(40))
			if width > 40 {
				cand = fc.tail(r.IntN(MaxSlotWords + 1))
			}
			sparse(r, cand)
			keep := fk.tail(len(cand))
			for i := range keep {
				keep[i] = 77
			}
			if r.IntN(4) == 0 {
				keep = cand
			}
			wantKeep, wantAll := slices.Clone(keep), false
			wantMatch := min(naiveForward(own, chain), length)
			if version&1 != 0 {
				wantMatch = 0
			} else if blockLine != 0 && wantMatch != 0 {
				wantAll = true
				for i, c := range cand {
					wantKeep[i] = 0
					if i < width {
						wantKeep[i] = c & block[HolderBlockWords+i]
					}
					wantAll = wantAll && wantKeep[i] == c
				}
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

// The run of the concurrency test is so long that a read is far from over when it
// begins to look at the contents. Words that its writer changes: under the version,
// so that all of them say one number, and without, each after the stamp.
const (
	turnLength = 512
	turnBlock  = 100 * RunHeaderWords
	turnBits   = turnBlock + HolderBlockWords
)

var (
	turned  = []int{2, RunHeaderWords, RunHeaderWords + turnLength - 1, turnBits, turnBits + 7}
	stamped = []int{5, 6, 7, turnBits + 3}
)

// turn writes the k-th state of a run and its holder block, which are lines, and
// then some without the version. A section is short, so that readers meet both of
// its ends often.
func turn(lines []uint64, k uint64) {
	atomic.StoreUint64(&lines[0], lines[0]|1)
	for i := range turned {
		atomic.StoreUint64(&lines[turned[(i+int(k))%len(turned)]], k)
	}
	atomic.StoreUint64(&lines[0], lines[0]+1)
	for i := range uint64(4) {
		atomic.StoreUint64(&lines[runGap], k*4+i)
		for _, at := range stamped {
			atomic.StoreUint64(&lines[at], k*4+i)
		}
	}
}

// seen returns what is wrong with a read of such lines that was good: with the
// coverage, which is nil for [ReadRun].
func seen(h *[RunHeaderWords]uint64, k uint64, match int, keep []uint64) error {
	if (h[2] == k) != (match == turnLength) || h[2] != k && match != 0 {
		return fmt.Errorf("version %d: turn %d, asked for %d, and %d blocks match", h[0], h[2], k, match)
	}
	for _, e := range h[5:] {
		if e > h[runGap] {
			return fmt.Errorf("an entry of %d was seen with the older stamp %d", e, h[runGap])
		}
	}
	if keep == nil || match == 0 {
		return nil
	}
	if keep[0] != k || keep[7] != k {
		return fmt.Errorf("version %d: turn %d, and coverage of %d", h[0], h[2], keep)
	}
	if keep[3] > h[runGap] {
		return fmt.Errorf("coverage of %d was seen with the older stamp %d", keep[3], h[runGap])
	}
	return nil
}

// TestReadRunWhileWritten has one writer against a reader: whatever the reader is
// given as good was one state.
func TestReadRunWhileWritten(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		lines := make([]uint64, 1024)
		for uintptr(unsafe.Pointer(&lines[0]))%lineBytes != 0 {
			lines = lines[1:]
		}
		makeRun(lines, 0, turnLength, turnBlock/RunHeaderWords, make([]uint64, turnLength))
		lines[turnBlock] = 8
		turn(lines, 0)
		var stop atomic.Bool
		var turns atomic.Uint64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for k := uint64(1); !stop.Load(); k++ {
				turns.Store(k)
				turn(lines, k)
			}
		}()
		chain, keep := make([]uint64, turnLength), make([]uint64, 8)
		cand := slices.Repeat([]uint64{^uint64(0)}, 8)
		good, tries := 0, 0
		// Until enough reads met a change, which on one core they hardly do.
		for ; (good < 50_000 || tries-good < 50_000) && tries < 3_000_000; tries++ {
			if tries%1000 == 0 {
				runtime.Gosched()
			}
			k := atomic.LoadUint64(&lines[2])
			chain[0], chain[turnLength-1] = k, k
			var out RunRead
			var err error
			if tries%2 == 0 {
				match, ok := ReadRun(&lines[0], chain, &out.Header)
				if !ok {
					continue
				}
				err = seen(&out.Header, k, match, nil)
			} else {
				match, _, ok := ReadRunAnd(&lines[0], chain, &out, unsafe.Pointer(&lines[0]), cand, keep)
				if !ok {
					continue
				}
				err = seen(&out.Header, k, match, keep)
			}
			if good++; err != nil {
				t.Fatal(err)
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
