// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/common"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// subscriber is a client of SubscribeKvEvents.
type subscriber interface {
	Recv() (*common.KvEventBatch, error)
}

// TestEvents subscribes by gRPC as a gateway does: before anything was published,
// late, and from a sequence on; what is told is what the ranks hold.
func TestEvents(t *testing.T) {
	for _, kind := range []string{VLLM, SGLang} {
		t.Run(kind, func(t *testing.T) {
			s := start(t, "--engine "+kind+" --block 4 --blocks 200 --ranks 2 --topic kv")
			subscribe := func(q *common.SubscribeKvEventsRequest) subscriber {
				t.Helper()
				var out grpc.ServerStreamingClient[common.KvEventBatch]
				var err error
				if kind == VLLM {
					out, err = vllm.NewVllmEngineClient(s.conn).SubscribeKvEvents(t.Context(), q)
				} else {
					out, err = sglang.NewSglangSchedulerClient(s.conn).SubscribeKvEvents(t.Context(), q)
				}
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			early := subscribe(&common.SubscribeKvEventsRequest{LoadRecordsBeforeFirstBatch: true})
			rng := rand.New(rand.NewPCG(3, 4))
			for range 20 {
				s.complete(t, tokensOf(rng, 1+rng.IntN(60)), 1+rng.IntN(6))
			}
			late := subscribe(&common.SubscribeKvEventsRequest{})
			again := func() subscriber { return subscribe(&common.SubscribeKvEventsRequest{}) }
			for name, in := range map[string]subscriber{"early": early, "late": late} {
				s.holdBlocks(t, name, in, again)
			}
		})
	}
}

// holdBlocks reads a subscription until it tells what the ranks hold. One that ends
// because data was lost begins again, as its contract says.
func (s *started) holdBlocks(t *testing.T, name string, in subscriber, again func() subscriber) {
	t.Helper()
	want := map[string]bool{}
	for _, truth := range s.truth(t) {
		for _, b := range truth.Blocks {
			want[fmt.Sprint(truth.Rank, int64(b.Engine))] = true
		}
	}
	got := map[string]int{}
	for n, left := 0, true; left; n++ {
		b, err := in.Recv()
		if status.Code(err) == codes.DataLoss {
			in = again()
			clear(got)
			continue
		}
		if err != nil || n > 10_000 {
			t.Fatalf("%s: %d of %d blocks after %d batches: %v", name, len(got), len(want), n, err)
		}
		for _, e := range b.GetEvents() {
			for _, block := range e.GetStored().GetBlocks() {
				got[fmt.Sprint(b.GetDpRank(), block.GetBlockHash())]++
			}
			for _, hash := range e.GetRemoved().GetBlockHashes() {
				key := fmt.Sprint(b.GetDpRank(), hash)
				if got[key]--; got[key] == 0 {
					delete(got, key)
				}
			}
		}
		left = len(got) != len(want)
		for key := range want {
			left = left || got[key] == 0
		}
	}
}
