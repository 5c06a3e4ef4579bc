// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
)

// benchBatches makes batches of 8 blocks of 16 tokens below one another in
// prompts of 64 blocks, each taking 8 away once 50,000 are held.
func benchBatches(n int) [][]byte {
	const per, prompt, held = 8, 64, 50_000
	batches := make([][]byte, n)
	next := uint64(1)
	for i := range batches {
		ev := kv.Event{Kind: kv.KindStored, BlockSize: testBlock, Medium: "GPU", Spec: kv.SpecFull, SpecName: "full_attention", HasGroup: true}
		if (next-1)%prompt != 0 {
			ev.Parent, ev.HasParent = kv.EngineHash((next-1)*0x9e37_79b9_7f4a_7c15), true
		}
		for range per {
			ev.Hashes = append(ev.Hashes, kv.EngineHash(next*0x9e37_79b9_7f4a_7c15))
			for j := range uint64(testBlock) {
				ev.Tokens = append(ev.Tokens, uint32((next*31+j*7919)%150_000))
			}
			next++
		}
		events := []kv.Event{ev}
		if next > held {
			var gone kv.Event
			gone.Kind, gone.Medium, gone.HasGroup = kv.KindRemoved, "GPU", true
			for j := range uint64(per) {
				gone.Hashes = append(gone.Hashes, kv.EngineHash((next-held+j)*0x9e37_79b9_7f4a_7c15))
			}
			events = append(events, gone)
		}
		batches[i] = payload(float64(i), events...)
	}
	return batches
}

// One batch of 8 blocks from its payload to the history's encoded entries, with
// admission; nobody reads.
func BenchmarkCommit(b *testing.B) {
	for _, hash := range []bool{false, true} {
		b.Run(fmt.Sprintf("hash_tokens=%t", hash), func(b *testing.B) {
			e, ps := openTest(b, 1, func(c *EngineConfig) { c.HashTokens = hash })
			ps[0].connect()
			batches := benchBatches(b.N)
			msg := make([]feed.Message, 1)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				msg[0] = feed.Message{Seq: uint64(i), Payload: batches[i]}
				ps[0].stream.Live(msg, ps[0].now)
			}
			b.StopTimer()
			st := e.Ranks()[0].Stats()
			b.ReportMetric(float64(st.HistoryBytes)/float64(st.HistoryBatches), "history_B/batch")
			b.ReportMetric(float64(st.Live.Bytes.Total())/float64(max(st.LiveBlocks, 1)), "live_B/block")
		})
	}
}

// One batch from its payload into the hands of one subscriber that waits for it.
func BenchmarkDeliver(b *testing.B) {
	e, ps := openTest(b, 1, nil)
	ps[0].connect()
	batches := benchBatches(b.N)
	s := subscribe(b, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})
	done := make(chan int)
	go func() {
		got := 0
		for got < b.N {
			it, err := s.Next(context.Background())
			if err != nil {
				break
			}
			got += len(it.Batches)
		}
		done <- got
	}()
	msg := make([]feed.Message, 1)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		msg[0] = feed.Message{Seq: uint64(i), Payload: batches[i]}
		ps[0].stream.Live(msg, ps[0].now)
	}
	if got := <-done; got != b.N {
		b.Fatalf("the subscriber got %d of %d batches", got, b.N)
	}
}
