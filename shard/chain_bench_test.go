// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/numa"
)

// benchCore is a core whose chains of blocks blocks are each held by holders of
// 128 slots, and the chains' numbers.
func benchCore(tb testing.TB, chains, blocks, holders, slots int) *chainCore {
	tb.Helper()
	c := newChain(tb, Options{})
	for i := range slots {
		c.open(slot(i + 1))
	}
	for k := range chains {
		contents := chainOf(k, blocks)
		for h := range holders {
			mustStore(tb, c, slot((k*7+h)%slots+1), contents)
		}
	}
	return c
}

// BenchmarkChainLookup asks for whole chains, one after another over more memory
// than a cache holds, and reports the median and the 99th percentile.
func BenchmarkChainLookup(b *testing.B) {
	for _, blocks := range []int{64, 512} {
		for _, holders := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("blocks=%d/holders=%d", blocks, holders), func(b *testing.B) {
				chains := 1_000_000 / blocks
				c := benchCore(b, chains, blocks, holders, 128)
				var queries [][]kv.ContentHash
				for k := range chains {
					queries = append(queries, chainOf(k, blocks))
				}
				r := rand.New(rand.NewPCG(1, 1))
				dst := make([]slotDepth, 0, holders)
				times := make([]time.Duration, 0, 1<<16)
				b.ReportAllocs()
				for b.Loop() {
					q := queries[r.IntN(chains)]
					_ = q[len(q)-1]
					begin := time.Now()
					dst = c.lookup(1, q, dst[:0])
					if d := time.Since(begin); len(times) < cap(times) {
						times = append(times, d)
					}
				}
				if len(dst) != holders {
					b.Fatalf("got %d holders, want %d", len(dst), holders)
				}
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
				b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
			})
		}
	}
}

// BenchmarkChainStoreRemove stores chains of 300 blocks nobody has, the same again
// for another slot, and takes them away from the end upwards, over 2 million
// positions. Times are per block.
func BenchmarkChainStoreRemove(b *testing.B) {
	const blocks, chains = 300, 7000
	contents := make([][]kv.ContentHash, chains)
	engines := make([][]kv.EngineHash, chains)
	back := make([][]kv.EngineHash, chains)
	for k := range chains {
		contents[k] = chainOf(k, blocks)
		engines[k] = hashesOf(contents[k], 0)
		back[k] = slices.Clone(engines[k])
		slices.Reverse(back[k])
	}
	c := newChain(b, Options{})
	c.open(1)
	c.open(2)
	held := make([]uint64, blocks/64+1)
	var fresh, known, removed stopwatch
	store := func(w *stopwatch, s slot, k int) {
		begin := time.Now()
		if _, err := c.store(s, 1, 0, engines[k], contents[k], held, nil); err != nil {
			b.Fatal(err)
		}
		w.add(time.Since(begin), blocks)
	}
	remove := func(w *stopwatch, s slot, k int) {
		begin := time.Now()
		if unknown := c.remove(s, back[k], nil); len(unknown) > 0 {
			b.Fatalf("%d unknown", len(unknown))
		}
		w.add(time.Since(begin), blocks)
	}
	var rest stopwatch
	for k := range chains - 1 {
		store(&rest, 1, k)
	}
	b.ReportAllocs()
	k := chains - 1
	for b.Loop() {
		store(&fresh, 1, k)
		store(&known, 2, k)
		remove(&rest, 2, k)
		k = (k + 1) % chains
		remove(&removed, 1, k)
	}
	b.ReportMetric(fresh.each(), "new-ns/block")
	b.ReportMetric(known.each(), "known-ns/block")
	b.ReportMetric(removed.each(), "remove-ns/block")
}

// BenchmarkChainDecode stores single blocks below a chain's end, as decoding
// engines do, and takes them away one by one. Times are per event.
func BenchmarkChainDecode(b *testing.B) {
	const chains, prompt, decode = 2000, 300, 60
	c := newChain(b, Options{})
	held := make([]uint64, 8)
	var contents [][]kv.ContentHash
	var engines [][]kv.EngineHash
	for k := range chains {
		c.open(slot(k + 1))
		contents = append(contents, chainOf(k, prompt+decode))
		engines = append(engines, hashesOf(contents[k], 0))
		if _, err := c.store(slot(k+1), 1, 0, engines[k][:prompt], contents[k][:prompt], held, nil); err != nil {
			b.Fatal(err)
		}
	}
	var stored, removed stopwatch
	for b.Loop() {
		for i := prompt; i < prompt+decode; i++ {
			for k := range chains {
				s := slot(k + 1)
				begin := time.Now()
				if _, err := c.store(s, 1, c.find(s, engines[k][i-1]), engines[k][i:i+1], contents[k][i:i+1], held, nil); err != nil {
					b.Fatal(err)
				}
				stored.add(time.Since(begin), 1)
			}
		}
		for i := prompt + decode - 1; i >= prompt; i-- {
			for k := range chains {
				begin := time.Now()
				c.remove(slot(k+1), engines[k][i:i+1], nil)
				removed.add(time.Since(begin), 1)
			}
		}
	}
	b.ReportMetric(stored.each(), "store-ns")
	b.ReportMetric(removed.each(), "remove-ns")
}

// stopwatch adds up times, but for those of more than 100 us, in which the thread
// was put aside.
type stopwatch struct {
	sum time.Duration
	n   int
}

func (w *stopwatch) add(d time.Duration, n int) {
	if d < 100*time.Microsecond {
		w.sum += d
		w.n += n
	}
}

func (w *stopwatch) each() float64 { return float64(w.sum) / float64(w.n) }

// BenchmarkChainBytes reports what a membership takes, everything counted.
func BenchmarkChainBytes(b *testing.B) {
	for _, shape := range []struct{ holders, slots int }{{1, 128}, {4, 128}, {16, 128}, {128, 128}, {1, 40_000}, {16, 40_000}, {128, 40_000}, {4096, 40_000}} {
		b.Run(fmt.Sprintf("holders=%d/slots=%d", shape.holders, shape.slots), func(b *testing.B) {
			var st Stats
			held := uint64(0)
			for b.Loop() {
				chains := max(2000/shape.holders, 20)
				c := benchCore(b, chains, 300, shape.holders, shape.slots)
				st, held = Stats{}, 0
				c.stats(&st)
				for i := range shape.slots {
					held += c.held(slot(i + 1))
				}
			}
			sum := uint64(0)
			for p, n := range st.Bytes {
				sum += n
				b.ReportMetric(float64(n)/float64(held), Purpose(p).String()+"-B")
			}
			b.ReportMetric(float64(sum)/float64(held), "B/membership")
		})
	}
}

// BenchmarkEdgesGrow enters a million edges, and reports the CPU time of one with
// its share of growth, and of the longest.
func BenchmarkEdgesGrow(b *testing.B) {
	const n = 1_000_000
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := rand.New(rand.NewPCG(1, 1))
	tags := make([]uint32, n)
	for i := range tags {
		tags[i] = max(r.Uint32(), 1)
	}
	grow := func(each func(insert func())) {
		c := newChain(b, Options{})
		for i, tag := range tags {
			each(func() {
				if !c.edgesUsable(c.edgesWant(1)) {
					b.Fatal("no memory")
				}
				c.insertEdge(tag, uint32(i+1))
			})
		}
		c.release()
	}
	least, longest := int64(math.MaxInt64), int64(math.MaxInt64)
	for b.Loop() {
		begin := numa.ThreadCPU()
		grow(func(insert func()) { insert() })
		least = min(least, numa.ThreadCPU()-begin)
		worst := int64(0)
		grow(func(insert func()) {
			begin := numa.ThreadCPU()
			insert()
			worst = max(worst, numa.ThreadCPU()-begin)
		})
		longest = min(longest, worst)
	}
	b.ReportMetric(float64(least)/n, "cpu-ns/edge")
	b.ReportMetric(float64(longest), "longest-cpu-ns")
}

// BenchmarkChainFill stores chains nobody has until 4 million positions stand, in
// events of a decoded block, of 300 and of 8,000, and reports what a block costs
// while the dictionary grows and what the dearest events cost, in CPU time.
func BenchmarkChainFill(b *testing.B) {
	for _, blocks := range []int{1, 300, 8000} {
		b.Run(strconv.Itoa(blocks), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var each, worst, p9999 float64
			for b.Loop() {
				c := newChain(b, Options{})
				c.open(1)
				held := make([]uint64, blocks/64+1)
				var times []int64
				n, at, sum := 0, pos(0), int64(0)
				for k := 0; n < 4_000_000; k++ {
					contents := chainOf(k, blocks)
					engines := hashesOf(contents, 0)
					if k%300 == 0 {
						at = 0
					}
					begin := numa.ThreadCPU()
					if _, err := c.store(1, 1, at, engines, contents, held, nil); err != nil {
						b.Fatal(err)
					}
					d := numa.ThreadCPU() - begin
					if blocks == 1 {
						at = c.find(1, engines[0])
					}
					times = append(times, d)
					sum += d
					n += blocks
				}
				slices.Sort(times)
				each, worst, p9999 = float64(sum)/float64(n), float64(times[len(times)-1]), float64(times[len(times)*9999/10000])
				c.release()
			}
			b.ReportMetric(each, "ns/block")
			b.ReportMetric(worst/1e3, "worst-us")
			b.ReportMetric(p9999/1e3, "p99.99-us")
		})
	}
}
