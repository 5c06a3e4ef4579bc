// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"kindex/internal/kv"
	relayv1 "kindex/proto/kindex/relay/v1"
	"kindex/relay/feed"
	"kindex/relay/wire"
)

// publishSize hands rank 0 batch seq, one block of so many tokens.
func (g *rig) publishSize(seq uint64, size int) {
	g.t.Helper()
	ev := kv.Event{Kind: kv.KindStored, BlockSize: size, Hashes: []kv.EngineHash{kv.EngineHash(g.next)}, Tokens: make([]uint32, size)}
	g.next++
	r := g.e.engine.Ranks()[0]
	payload := wire.AppendBatch(nil, &kv.Batch{Timestamp: 1, Events: []kv.Event{ev}}, g.layout)
	if !r.Stage(&feed.Batch{Seq: seq, Payload: payload, Sum: 1000 + seq}) {
		g.t.Fatalf("batch %d is none", seq)
	}
	r.Commit(&g.faults)
	r.stands(feed.Standing{State: feed.StateActive, Epoch: 1}, "")
}

// TestShortBlocks: under hash-tokens not one event of short blocks goes out, to
// those who subscribe later and to those who are there when the size is learned.
func TestShortBlocks(t *testing.T) {
	for _, c := range []struct {
		size, least int
		hash        bool
		served      bool
	}{
		{1, 0, true, false},
		{7, 0, true, false},
		{8, 0, true, true},
		{1, 0, false, true},
		{1, 1, true, true},
		{4, 2, true, true},
		{15, 16, true, false},
	} {
		g := newRig(t, EngineConfig{HashTokens: c.hash, MinHashBlock: c.least}, rigOptions(), &served{})
		client := relayv1.NewRelayServiceClient(g.conn)
		early, err := client.Subscribe(testContext(t), &relayv1.SubscribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := early.Header(); err != nil {
			t.Fatal(err)
		}
		g.publishSize(0, c.size)
		late, err := client.Subscribe(testContext(t), &relayv1.SubscribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []interface {
			Recv() (*relayv1.SubscribeResponse, error)
		}{early, late} {
			batches := 0
			for batches == 0 && err == nil {
				var m *relayv1.SubscribeResponse
				if m, err = s.Recv(); m.GetBatch() != nil {
					batches++
				}
			}
			if (batches == 1) != c.served {
				t.Errorf("%+v: %d batches and %v", c, batches, err)
			}
			if !c.served {
				wantCode(t, "short blocks", err, codes.FailedPrecondition, "rank 0", "hash-tokens-min-block")
			}
			err = nil
		}
		in := g.e.engine.Ranks()[0].Info()
		if in.Standing.Primed != c.served || strings.Contains(in.Standing.Why, "hash-tokens-min-block") == c.served {
			t.Errorf("%+v: the rank stands at %+v", c, in.Standing)
		}
		// Another life with larger blocks is served.
		g.e.engine.Ranks()[0].Forget(feed.ForgetRestart, &g.faults)
		g.publishSize(0, 16)
		again, err := client.Subscribe(testContext(t), &relayv1.SubscribeRequest{})
		if err == nil {
			_, err = again.Recv()
		}
		if err != nil {
			t.Errorf("%+v: after a restart with blocks of 16: %v", c, err)
		}
	}
}
