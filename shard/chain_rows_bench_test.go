// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"runtime"
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/numa"
)

// rowsFleet is a core and its workers, each of which holds the newest chains of
// its turn.
type rowsFleet struct {
	c       *chainCore
	private bool // each worker has a hash seed of its own
}

const (
	rowsWorkers = 32
	rowsShare   = 4 // workers a chain
	rowsBlocks  = 300
	rowsKept    = 180 // chains a worker holds
)

func newRowsFleet(tb testing.TB, private bool) *rowsFleet {
	tb.Helper()
	f := &rowsFleet{c: newChain(tb, Options{}), private: private}
	for i := range rowsWorkers {
		f.c.open(slot(i + 1))
	}
	return f
}

// engines are the names of a chain for one of the workers that hold it.
func (f *rowsFleet) engines(contents []kv.ContentHash, worker int) []kv.EngineHash {
	if !f.private {
		worker = 0
	}
	return hashesOf(contents, worker)
}

// rowsEvent is what one worker does for a request: gone, then stored, then decoded
// block by block.
type rowsEvent struct {
	worker       slot
	gone, stored []kv.EngineHash
	contents     []kv.ContentHash
}

const (
	// rowsBatch is how many requests are prepared, and then timed, at once: reading
	// the thread's clock costs as much as a hundred blocks.
	rowsBatch = 8
	// rowsDecoded is how many of a chain's blocks are stored one by one.
	rowsDecoded = 3
)

// requests stores chains from k on, each on its workers, which give up their oldest
// for it, and returns the CPU time of the index in ns: for all of that, and for a
// lookup before each.
func (f *rowsFleet) requests(tb testing.TB, k int, held []uint64) (writes, lookups int64) {
	var events []rowsEvent
	for ; len(events) < rowsBatch*rowsShare; k++ {
		contents := chainOf(k, rowsBlocks)
		old := k - rowsKept*rowsWorkers/rowsShare
		for i := range rowsShare {
			worker := (k*rowsShare + i) % rowsWorkers
			x := rowsEvent{worker: slot(worker + 1), stored: f.engines(contents, worker), contents: contents}
			if old >= 0 {
				x.gone = f.engines(chainOf(old, rowsBlocks), worker)
				slices.Reverse(x.gone)
			}
			events = append(events, x)
		}
	}
	dst := make([]slotDepth, 0, rowsWorkers)
	begin := numa.ThreadCPU()
	for i := range events {
		dst = f.c.lookup(1, events[(i+rowsShare)%len(events)].contents, dst[:0])
	}
	middle := numa.ThreadCPU()
	for i := range events {
		x := &events[i]
		if unknown := f.c.remove(x.worker, x.gone, nil); len(unknown) > 0 {
			tb.Fatalf("%d of %d unknown", len(unknown), len(x.gone))
		}
		at := pos(0)
		for lo, hi := 0, rowsBlocks-rowsDecoded; lo < rowsBlocks; lo, hi = hi, hi+1 {
			if lo > 0 {
				at = f.c.find(x.worker, x.stored[lo-1])
			}
			if _, err := f.c.store(x.worker, 1, at, x.stored[lo:hi], x.contents[lo:hi], held, nil); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return numa.ThreadCPU() - middle, middle - begin
}

func (f *rowsFleet) bytes() float64 {
	var st Stats
	f.c.stats(&st)
	sum, held := uint64(0), uint64(0)
	for _, n := range st.Bytes {
		sum += n
	}
	for i := range rowsWorkers {
		held += f.c.held(slot(i + 1))
	}
	return float64(sum) / float64(held)
}

// BenchmarkChainSeeds has two fleets of 4 workers a chain take the same requests in
// turn, one with one hash seed and one with a seed for each worker, at 1.7 million
// memberships. Times are the medians of thread CPU per block stored or removed, and
// in the mix per block looked up, stored or removed.
func BenchmarkChainSeeds(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	shared, private := newRowsFleet(b, false), newRowsFleet(b, true)
	held := make([]uint64, rowsBlocks/64+1)
	k := 0
	for ; k < rowsKept*rowsWorkers/rowsShare; k += rowsBatch {
		shared.requests(b, k, held)
		private.requests(b, k, held)
	}
	const blocks = rowsBatch * rowsShare * rowsBlocks
	var write, mix [2][]float64
	for b.Loop() {
		for i, f := range []*rowsFleet{shared, private} {
			w, l := f.requests(b, k, held)
			write[i] = append(write[i], float64(w)/(2*blocks))
			mix[i] = append(mix[i], float64(w+l)/(3*blocks))
		}
		k += rowsBatch
	}
	report := func(name string, times *[2][]float64) {
		for i := range times {
			slices.Sort(times[i])
		}
		n := len(times[0]) / 2
		b.ReportMetric(times[0][n], "shared-"+name+"-ns/block")
		b.ReportMetric(times[1][n], "private-"+name+"-ns/block")
		b.ReportMetric(times[1][n]/times[0][n], name+"-private/shared")
	}
	report("write", &write)
	report("mix", &mix)
	b.ReportMetric(shared.bytes(), "shared-B/membership")
	b.ReportMetric(private.bytes(), "private-B/membership")
}
