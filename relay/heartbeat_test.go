// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	commonpb "kindex/proto/peer/common"
	"kindex/relay/load"
)

// kindsFor returns what s tells in d.
func kindsFor(t *testing.T, s *Subscription, d time.Duration) map[ItemKind]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	kinds := map[ItemKind]int{}
	for {
		it, err := s.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				t.Fatal(err)
			}
			return kinds
		}
		kinds[it.Kind]++
	}
}

// Where no load is known the standing shows that the stream lives; under the
// peer's rules silence is silence.
func TestStandingBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, ps := openTest(t, 1, nil)
		ps[0].connect()
		feedChain(ps[0], 0, 0)
		own := subscribe(t, e, SubscribeRequest{})
		peer := subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})
		if k := kindsFor(t, own, 21*time.Second); k[ItemStanding] != 5 || k[ItemBatches] != 1 || len(k) != 2 {
			t.Errorf("in 21 s of silence: %v, want the standing at first and four times again", k)
		}
		if k := kindsFor(t, peer, 21*time.Second); k[ItemBatches] != 1 || len(k) != 1 {
			t.Errorf("the peer's, in 21 s of silence: %v, want one item of batches", k)
		}
	})
}

// The newest load record goes with what is sent, and alone when it is due; not
// before the first batch where the subscriber does not want it.
func TestLoadRides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Uint32
		running.Store(3)
		meter, err := load.New(load.Config{Engine: "vllm", Ranks: 1, Ask: func(context.Context) ([]load.Reading, error) {
			return []load.Reading{{Running: load.Some(running.Load())}}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() {
			meter.Run(ctx)
			close(ran)
		}()
		defer func() {
			cancel()
			<-ran
		}()
		time.Sleep(time.Second)
		e, ps := openTest(t, 1, func(c *EngineConfig) { c.Load = meter })
		ps[0].connect()
		first := subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer, LoadFirst: true})
		later := subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})
		if k := kindsFor(t, first, 2500*time.Millisecond); k[ItemLoad] != 3 || len(k) != 1 {
			t.Errorf("before the first batch, in 2.5 s: %v, want three load records", k)
		}
		if k := kindsFor(t, later, 2500*time.Millisecond); len(k) != 0 {
			t.Errorf("before the first batch, not wanted: %v, want nothing", k)
		}
		feedChain(ps[0], 0, 2)
		for _, s := range []*Subscription{first, later} {
			it, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var m commonpb.EngineLoad
			if err := proto.Unmarshal(it.Load, &m); err != nil || it.Kind != ItemBatches || len(it.Batches) != 3 || m.RunningRequests != 3 || m.LoadOnly {
				t.Errorf("item of kind %d with %d batches and load %v (%v), want 3 batches with 3 running", it.Kind, len(it.Batches), &m, err)
			}
		}
		running.Store(9)
		it, err := later.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var m commonpb.EngineLoad
		if err := proto.Unmarshal(it.Load, &m); err != nil || it.Kind != ItemLoad || m.RunningRequests != 9 || !m.LoadOnly || it.LastSequence != 2 {
			t.Errorf("item of kind %d after batch %d with load %v (%v), want a record alone after batch 2", it.Kind, it.LastSequence, &m, err)
		}
	})
}
