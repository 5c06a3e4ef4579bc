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

// rowsEvent is what one worker does for a request: gone, then stored.
type rowsEvent struct {
	worker       slot
	gone, stored []kv.EngineHash
	contents     []kv.ContentHash
}

// rowsBatch is how many requests are prepared, and then timed, at once: reading the
// thread's clock costs as much as a hundred blocks.
const rowsBatch = 8

// requests stores chains from k on, each on its workers, which give up their oldest
// for it, and returns the CPU time of the index in ns.
func (f *rowsFleet) requests(tb testing.TB, k int, held []uint64) int64 {
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
	begin := numa.ThreadCPU()
	for i := range events {
		x := &events[i]
		if unknown := f.c.remove(x.worker, x.gone, nil); len(unknown) > 0 {
			tb.Fatalf("%d of %d unknown", len(unknown), len(x.gone))
		}
		if _, err := f.c.store(x.worker, 1, 0, x.stored, x.contents, held, nil); err != nil {
			tb.Fatal(err)
		}
	}
	return numa.ThreadCPU() - begin
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
// memberships. Times are the medians of thread CPU per block stored or removed.
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
	var times [2][]float64
	for b.Loop() {
		for i, f := range []*rowsFleet{shared, private} {
			ns := f.requests(b, k, held)
			times[i] = append(times[i], float64(ns)/(2*rowsBatch*rowsShare*rowsBlocks))
		}
		k += rowsBatch
	}
	for i := range times {
		slices.Sort(times[i])
	}
	n := len(times[0])
	b.ReportMetric(times[0][n/2], "shared-ns/block")
	b.ReportMetric(times[1][n/2], "private-ns/block")
	b.ReportMetric(times[1][n/2]/times[0][n/2], "private/shared")
	b.ReportMetric(times[1][n/10]/times[0][n/10], "private/shared-p10")
	b.ReportMetric(shared.bytes(), "shared-B/membership")
	b.ReportMetric(private.bytes(), "private-B/membership")
}
