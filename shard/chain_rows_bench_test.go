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
	cpu     int64
	ops     int64
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

// request stores chain k on its workers, which give up their oldest for it.
func (f *rowsFleet) request(tb testing.TB, k int, held []uint64) {
	contents := chainOf(k, rowsBlocks)
	old := k - rowsKept*rowsWorkers/rowsShare
	for i := range rowsShare {
		worker := (k*rowsShare + i) % rowsWorkers
		names := f.engines(contents, worker)
		var gone []kv.EngineHash
		if old >= 0 {
			gone = f.engines(chainOf(old, rowsBlocks), worker)
			slices.Reverse(gone)
		}
		begin := numa.ThreadCPU()
		unknown := f.c.remove(slot(worker+1), gone, nil)
		if _, err := f.c.store(slot(worker+1), 1, 0, names, contents, held, nil); err != nil {
			tb.Fatal(err)
		}
		f.cpu += numa.ThreadCPU() - begin
		f.ops += int64(len(names) + len(gone))
		if len(unknown) > 0 {
			tb.Fatalf("%d of %d unknown", len(unknown), len(gone))
		}
	}
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
// memberships. Times are thread CPU per block stored or removed.
func BenchmarkChainSeeds(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	shared, private := newRowsFleet(b, false), newRowsFleet(b, true)
	held := make([]uint64, rowsBlocks/64+1)
	k := 0
	for ; k < rowsKept*rowsWorkers/rowsShare; k++ {
		shared.request(b, k, held)
		private.request(b, k, held)
	}
	shared.cpu, shared.ops, private.cpu, private.ops = 0, 0, 0, 0
	for b.Loop() {
		shared.request(b, k, held)
		private.request(b, k, held)
		k++
	}
	each := func(f *rowsFleet) float64 { return float64(f.cpu) / float64(f.ops) }
	b.ReportMetric(each(shared), "shared-ns/block")
	b.ReportMetric(each(private), "private-ns/block")
	b.ReportMetric(each(private)/each(shared), "private/shared")
	b.ReportMetric(shared.bytes(), "shared-B/membership")
	b.ReportMetric(private.bytes(), "private-B/membership")
}
