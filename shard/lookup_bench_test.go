// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/numa"
)

// BenchmarkLookup asks for chains of 376 blocks whose first six all holders hold
// and whose others one does, over more memory than caches hold, in each form,
// with and without a writer that removes and stores such chains as fast as it
// can. cpu-ns is the asking thread's time for one lookup, without clock reads;
// p50 and p99 have two reads of the clock in them, for a whole batch where there
// is one.
func BenchmarkLookup(b *testing.B) {
	for _, shape := range []struct{ holders, blocks, chains int }{{4, 376, 8000}, {128, 376, 8000}, {1000, 376, 8000}, {128, 40, 60_000}, {3, 40, 60_000}} {
		holders := shape.holders
		h := hotShard(b, holders, 6, shape.blocks, shape.chains)
		for _, writing := range []bool{false, true} {
			for _, form := range []string{"flat", "grouped", "batched"} {
				b.Run(fmt.Sprintf("holders=%d/blocks=%d/writer=%v/%s", holders, shape.blocks, writing, form), func(b *testing.B) {
					if writing {
						defer h.write()()
					}
					h.measure(b, form)
				})
			}
		}
	}
}

// write starts a writer and returns what stops it.
func (h *hot) write() (stop func()) {
	var enough atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := rand.New(rand.NewPCG(5, 5))
		for !enough.Load() {
			k := r.IntN(len(h.chains))
			id, chain := h.holders[k%len(h.holders)], h.chains[k][6:]
			engines := hashesOf(h.chains[k], 0)
			back := slices.Clone(engines[6:])
			slices.Reverse(back)
			_ = h.idx.Remove(id, &Remove{Engines: back})
			_ = h.idx.Store(id, &Store{Namespace: 1, HasParent: true, Parent: engines[5], Engines: engines[6:], Contents: chain})
		}
	}()
	return func() { enough.Store(true); <-done }
}

// asker returns what asks for n chains in one form.
func (h *hot) asker(form string) (ask func(chains [][]kv.ContentHash), n int) {
	var dst []kv.Match
	var a Answer
	qs := make([]Query, batchMax)
	switch form {
	case "grouped":
		return func(chains [][]kv.ContentHash) { a.Reset(); h.idx.LookupGroups(1, chains[0], &a) }, 1
	case "batched":
		return func(chains [][]kv.ContentHash) {
			for i, chain := range chains {
				qs[i] = Query{Namespace: 1, Chain: chain, Matches: qs[i].Matches[:0]}
			}
			h.idx.LookupBatch(qs)
		}, batchMax
	}
	return func(chains [][]kv.ContentHash) { dst = h.idx.Lookup(1, chains[0], dst[:0]) }, 1
}

func (h *hot) measure(b *testing.B, form string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ask, n := h.asker(form)
	r := rand.New(rand.NewPCG(1, 1))
	chains := slices.Clone(h.chains)
	r.Shuffle(len(chains), func(i, j int) { chains[i], chains[j] = chains[j], chains[i] })
	var times []time.Duration
	cpu, asked := int64(0), 0
	for b.Loop() {
		began := numa.ThreadCPU()
		for i := 0; i+n <= len(chains); i += n {
			ask(chains[i : i+n])
			asked += n
		}
		cpu += numa.ThreadCPU() - began
		for i := 0; i+n <= len(chains)/8; i += n {
			began := time.Now()
			ask(chains[i : i+n])
			times = append(times, time.Since(began))
		}
	}
	slices.Sort(times)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(cpu)/float64(asked), "cpu-ns")
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
}
