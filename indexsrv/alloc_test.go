// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// steadyBatches are count batches of a stream as vLLM sends it, after which the
// content is what it was: each tells prefixes and single decode blocks below the
// last of them, and evicts as many of the oldest.
func steadyBatches(count, keep int) [][]byte { return steadyBatchesOf(count, keep, 4) }

// steadyBatchesOf is steadyBatches with so many prompts, of 30 blocks, a batch.
func steadyBatchesOf(count, keep, prompts int) [][]byte {
	const length, decoded = 24, 6
	each := uint64(prompts) * (length + decoded)
	var ps [][]byte
	for i := range uint64(count + keep) {
		var evs []kv.Event
		first := i*each + 1
		for p := range uint64(prompts) {
			begin := first + p*(length+decoded)
			if i >= uint64(keep) {
				old := begin - uint64(keep)*each
				var gone []uint64
				for b := range uint64(length + decoded) { // leaves first, as engines evict
					gone = append(gone, old+length+decoded-1-b)
				}
				evs = append(evs, removeOf(gone...))
			}
			var blocks []uint64
			for b := range uint64(length) {
				blocks = append(blocks, begin+b)
			}
			evs = append(evs, storeOf(0, blocks...))
			for b := range uint64(decoded) {
				evs = append(evs, storeOf(begin+length+b-1, begin+length+b))
			}
		}
		ps = append(ps, payload(evs...))
	}
	return ps
}

// TestSteadyAllocs: from a payload's bytes to the applied batch nothing is
// allocated once buffers have grown: decoding, normalising, hashing, lanes, copies,
// index. The content changes all the time and stays as large as it is.
func TestSteadyAllocs(t *testing.T) {
	const warm, runs, keep = 600, 400, 40
	ps := steadyBatches(warm+runs+1, keep)
	for _, kind := range []string{"chain", "no index"} {
		t.Run(kind, func(t *testing.T) {
			idx, err := shard.NewSharded("chain", shard.Options{}, shard.Options{})
			if err != nil {
				t.Fatal(err)
			}
			w := NewPoolWriter(idx, newLanes(t, 2))
			h, err := w.AddHolder(testModel)
			if err != nil {
				t.Fatal(err)
			}
			worker, err := w.Worker(h)
			if err != nil {
				t.Fatal(err)
			}
			f := NewFeed(StreamConfig{Model: testModel, BlockSize: testBlock}, w, h)
			if kind == "no index" {
				f.sink.idx = NewWriter(nullIndex{})
			}
			f.Connected(epochTime)
			b := &feed.Burst{Feed: f.Feed, Received: epochTime}
			msgs := make([]feed.Message, 1)
			seq := uint64(0)
			next := func() {
				msgs[0] = feed.Message{Seq: seq, Payload: ps[seq]}
				b.Messages = msgs
				if err := worker.Do(b); err != nil {
					t.Fatal(err)
				}
				seq++
			}
			for range keep + warm {
				next()
			}
			before := f.Status()
			if got := testing.AllocsPerRun(runs, next); got != 0 {
				t.Errorf("%v allocations a batch, want 0", got)
			}
			after := f.Status()
			if after.State != feed.StateActive || after.Batches != uint64(keep+warm+runs+1) {
				t.Errorf("%v after %d batches: %s", after.State, after.Batches, after.LastError)
			}
			if kind == "chain" && (before.Memberships != keep*4*30 || after.Memberships != before.Memberships) {
				t.Errorf("%d memberships before, %d after, want %d", before.Memberships, after.Memberships, keep*4*30)
			}
		})
	}
}
