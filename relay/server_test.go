// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	relayv1 "kindex/proto/kindex/relay/v1"
	"kindex/proto/peer/common"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
	"kindex/relay/feed"
	"kindex/relay/load"
)

// TestPeerRules: the rules of the peer's contract, one cursor after another.
func TestPeerRules(t *testing.T) {
	g := newRig(t, EngineConfig{HistoryBatches: 10}, rigOptions(), &served{})
	ctx := testContext(t)

	early := g.peer(ctx, 0)
	if _, err := early.Header(); err != nil {
		t.Fatalf("no header before the first batch: %v", err)
	}
	g.publish(0, 0, 4, 2)
	wantBatches(t, early, 0, 4, 2)
	wantBatches(t, g.peer(ctx, 0), 0, 4, 2)
	wantBatches(t, g.peer(ctx, 2), 3, 4, 2)
	newest := g.peer(ctx, 4)
	if _, err := newest.Header(); err != nil {
		t.Fatal(err)
	}
	g.publish(0, 5, 9, 2)
	wantBatches(t, newest, 5, 9, 2)
	g.publish(0, 10, 24, 2)

	_, err := g.peer(ctx, 25).Recv()
	wantCode(t, "cursor beyond the newest", err, codes.OutOfRange, "25", "24")
	_, err = g.peer(ctx, 3).Recv()
	wantCode(t, "cursor below the window", err, codes.OutOfRange, "15")
	wantBatches(t, g.peer(ctx, 14), 15, 24, 2)

	// The history has rolled: a state, then live.
	snap := g.peer(ctx, 0)
	b, err := snap.Recv()
	if err != nil {
		t.Fatal(err)
	}
	c := b.GetSnapshot()
	if c == nil || c.GetIndex() != 0 || c.GetCount() != 1 || c.GetBlocks() != 50 || c.GetUnknownBefore() != 0 || b.GetSequenceNumber() != 24 {
		t.Fatalf("got %v, want one chunk of 50 blocks numbered 24", b)
	}
	if b.GetEvents()[0].GetCleared() == nil {
		t.Errorf("chunk 0 begins with %v, want cleared", b.GetEvents()[0])
	}
	g.publish(0, 25, 25, 2)
	wantBatches(t, snap, 25, 25, 2)

	g.e.engine.Ranks()[0].Forget(feed.ForgetRestart, &g.faults)
	_, err = snap.Recv()
	wantCode(t, "restart", err, codes.DataLoss, "restarted")
	if n := g.e.stats.ended[contractPeer][EndDataLoss].Load(); n == 0 {
		t.Error("no end by data loss is counted")
	}
	again := g.peer(ctx, 0)
	if _, err := again.Header(); err != nil {
		t.Fatal(err)
	}
	g.publish(0, 0, 0, 3)
	wantBatches(t, again, 0, 0, 3)
}

// TestPeerAllRanks: one stream carries every rank.
func TestPeerAllRanks(t *testing.T) {
	g := newRig(t, EngineConfig{Kind: "sglang", Ranks: 3}, rigOptions(), &served{})
	for rank := range 3 {
		g.publish(rank, 0, 1, 1)
	}
	s, err := sglang.NewSglangSchedulerClient(g.conn).SubscribeKvEvents(testContext(t), &common.SubscribeKvEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[int32]uint64{}
	for range 6 {
		b, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if b.GetSequenceNumber() != got[b.GetDpRank()] {
			t.Errorf("rank %d: batch %d, want %d", b.GetDpRank(), b.GetSequenceNumber(), got[b.GetDpRank()])
		}
		got[b.GetDpRank()]++
	}
	if len(got) != 3 {
		t.Errorf("batches of ranks %v, want three ranks", got)
	}
}

// TestHashTokens: no token id leaves a relay that hashes them.
func TestHashTokens(t *testing.T) {
	g := newRig(t, EngineConfig{HashTokens: true}, rigOptions(), &served{})
	g.publish(0, 0, 0, 1)
	ctx := testContext(t)
	_, err := g.peer(ctx, 0).Recv()
	wantCode(t, "SubscribeKvEvents", err, codes.FailedPrecondition, "hash-tokens", "kindex.relay.v1.RelayService")
	s, err := relayv1.NewRelayServiceClient(g.conn).Subscribe(ctx, &relayv1.SubscribeRequest{TokenIds: true})
	if err == nil {
		_, err = s.Recv()
	}
	wantCode(t, "token_ids", err, codes.FailedPrecondition, "hash-tokens")
}

// TestOwnContract: what comes in which order, and that every field arrives.
func TestOwnContract(t *testing.T) {
	g := newRig(t, EngineConfig{Ranks: 2, HistoryBatches: 4}, rigOptions(), &served{})
	g.publish(0, 0, 2, 2)
	g.publish(1, 0, 9, 1) // rolled
	ctx := testContext(t)
	client := relayv1.NewRelayServiceClient(g.conn)

	for _, tokens := range []bool{false, true} {
		s, err := client.Subscribe(ctx, &relayv1.SubscribeRequest{TokenIds: tokens})
		if err != nil {
			t.Fatal(err)
		}
		var standings, batches, chunks, exact int
		for batches < 3 || chunks < 1 || exact < 2 {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if want := g.e.engine.Ranks()[m.GetRank()].Info().Epoch; m.GetEpoch() != want {
				t.Fatalf("epoch %d, want %d", m.GetEpoch(), want)
			}
			switch body := m.GetBody().(type) {
			case *relayv1.SubscribeResponse_Standing:
				st := body.Standing
				if !st.GetPrimed() || st.GetExact() != st.GetAny() || st.GetExact() != (st.GetWhy() == "") {
					t.Errorf("standing %v, want primed, and exact once the batches were sent", st)
				}
				if standings++; st.GetExact() {
					exact++
				}
			case *relayv1.SubscribeResponse_Batch:
				checkOwnBatch(t, m, body.Batch, uint64(batches), tokens)
				batches++
			case *relayv1.SubscribeResponse_Snapshot:
				checkOwnChunk(t, m, body.Snapshot, tokens)
				chunks++
			default:
				t.Fatalf("unexpected %v", m)
			}
		}
	}

	// Resumed: rank 0 after its second batch, rank 1 at its newest.
	infos := []RankInfo{g.e.engine.Ranks()[0].Info(), g.e.engine.Ranks()[1].Info()}
	s, err := client.Subscribe(ctx, &relayv1.SubscribeRequest{Engine: "w0", Cursors: []*relayv1.Cursor{
		{Rank: 0, Epoch: infos[0].Epoch, Sequence: 1, Check: 1001}, {Rank: 1, Epoch: infos[1].Epoch, Sequence: 9, Check: 1009},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetStanding() != nil {
			continue
		}
		if b := m.GetBatch(); b == nil || m.GetRank() != 0 || b.GetSequence() != 2 {
			t.Errorf("got %v, want batch 2 of rank 0", m)
		}
		break
	}
	g.e.engine.Ranks()[1].Lost(10, 12, "gone")
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if h := m.GetHole(); h != nil {
			if m.GetRank() != 1 || h.GetFrom() != 10 || h.GetTo() != 12 || h.GetWhy() != "gone" {
				t.Errorf("got %v, want the hole 10 to 12 of rank 1", m)
			}
			break
		}
	}
	g.e.engine.Ranks()[0].Forget(feed.ForgetRestart, &g.faults)
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r := m.GetReset_(); r != nil {
			if m.GetRank() != 0 || m.GetEpoch() == infos[0].Epoch || !strings.Contains(r.GetWhy(), "restarted") {
				t.Errorf("got %v, want rank 0 reset in another epoch", m)
			}
			break
		}
	}
}

func checkOwnBatch(t *testing.T, m *relayv1.SubscribeResponse, b *relayv1.Batch, seq uint64, tokens bool) {
	t.Helper()
	if m.GetRank() != 0 || b.GetSequence() != seq || b.GetCheck() != 1000+seq || b.GetTimestamp() != 1 {
		t.Errorf("got %v, want batch %d of rank 0", m, seq)
	}
	if tokens {
		if ev := b.GetPeer().GetEvents(); b.GetPeer().GetSequenceNumber() != seq || len(ev) != 1 || len(ev[0].GetStored().GetBlocks()[0].GetTokenIds()) != 16 || len(b.GetEvents()) != 0 {
			t.Errorf("got %v, want the peer's form", m)
		}
		return
	}
	if st := b.GetEvents()[0].GetStored(); len(st.GetEngines()) != 2 || len(st.GetContents()) != 2 || st.GetBlockSize() != 16 || b.GetPeer() != nil {
		t.Errorf("got %v, want two stored blocks", m)
	}
}

func checkOwnChunk(t *testing.T, m *relayv1.SubscribeResponse, c *relayv1.SnapshotChunk, tokens bool) {
	t.Helper()
	if m.GetRank() != 1 || c.GetIndex() != 0 || c.GetCount() != 1 || c.GetBlocks() != 10 || !c.GetAny() || c.GetThrough() != 9 || c.GetCheck() != 1009 {
		t.Errorf("got %v, want one chunk of 10 blocks through 9", m)
	}
	switch {
	case tokens && (c.GetPeer().GetSnapshot().GetBlocks() != 10 || len(c.GetEvents()) != 0):
		t.Errorf("got %v, want the peer's form", m)
	case !tokens && (len(c.GetEvents()) == 0 || c.GetDigest() == 0 || c.GetPeer() != nil):
		t.Errorf("got %v, want events and a digest", m)
	}
}

// TestOwnRefusals: bad requests of the relay's own contract.
func TestOwnRefusals(t *testing.T) {
	g := newRig(t, EngineConfig{Ranks: 2}, rigOptions(), &served{})
	client := relayv1.NewRelayServiceClient(g.conn)
	for _, c := range []struct {
		req   *relayv1.SubscribeRequest
		code  codes.Code
		words string
	}{
		{&relayv1.SubscribeRequest{Engine: "nope"}, codes.NotFound, "Describe lists them"},
		{&relayv1.SubscribeRequest{Ranks: []uint32{2}}, codes.InvalidArgument, "ranks 0 to 1"},
		{&relayv1.SubscribeRequest{Ranks: []uint32{0, 1, 4294967295}}, codes.InvalidArgument, "ranks: 3 of them"},
		{&relayv1.SubscribeRequest{Cursors: []*relayv1.Cursor{{Rank: 7}}}, codes.InvalidArgument, "ranks 0 to 1"},
		{&relayv1.SubscribeRequest{Cursors: []*relayv1.Cursor{{Rank: 1}, {Rank: 1}}}, codes.InvalidArgument, "twice"},
		{&relayv1.SubscribeRequest{Ranks: []uint32{1, 1}}, codes.InvalidArgument, "ranks: rank 1 is given twice"},
		{&relayv1.SubscribeRequest{Cursors: make([]*relayv1.Cursor, 3)}, codes.InvalidArgument, "cursors: 3 of them"},
	} {
		s, err := client.Subscribe(testContext(t), c.req)
		if err == nil {
			_, err = s.Recv()
		}
		wantCode(t, fmt.Sprint(c.req), err, c.code, c.words)
	}
	if _, err := client.Describe(testContext(t), &relayv1.DescribeRequest{Engine: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("Describe of an unknown engine: %v, want NotFound", err)
	}
	g.publish(1, 0, 3, 2)
	d, err := client.Describe(testContext(t), &relayv1.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e := d.GetEngines()[0]
	r := e.GetRanks()[1]
	if e.GetName() != "w0" || e.GetKind() != "vllm" || e.GetListen() != g.e.listen || len(e.GetRanks()) != 2 || e.GetRanks()[0].GetAny() ||
		!r.GetAny() || r.GetSequence() != 3 || r.GetCheck() != 1003 || r.GetOldest() != 0 || r.GetLiveBlocks() != 8 || r.GetBlockSize() != 16 || !r.GetStanding().GetPrimed() {
		t.Errorf("got %v, want w0 with batch 3 of rank 1", d)
	}
}

// TestSubscriptionLimit: the limit is said, and a place that is left is free.
func TestSubscriptionLimit(t *testing.T) {
	o := rigOptions()
	o.maxSubscriptions = 2
	g := newRig(t, EngineConfig{}, o, &served{})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	for range 2 {
		if _, err := g.peer(ctx, 0).Header(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := g.peer(testContext(t), 0).Recv()
	wantCode(t, "one too many", err, codes.ResourceExhausted, "max-subscriptions", "2")
	s, err := relayv1.NewRelayServiceClient(g.conn).Subscribe(testContext(t), &relayv1.SubscribeRequest{})
	if err == nil {
		_, err = s.Recv()
	}
	wantCode(t, "one too many of the other contract", err, codes.ResourceExhausted)
	cancel()
	for g.e.stats.subscribers[contractPeer].Load() > 0 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if _, err := g.peer(testContext(t), 0).Header(); err != nil {
		t.Error(err)
	}
}

// TestHealthAndReflection: both are there for every service.
func TestHealthAndReflection(t *testing.T) {
	g := newRig(t, EngineConfig{}, rigOptions(), &served{})
	services := []string{"", "vllm.grpc.engine.VllmEngine", "kindex.relay.v1.RelayService"}
	for _, name := range services {
		r, err := healthpb.NewHealthClient(g.conn).Check(testContext(t), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", name, r, err)
		}
	}
	s, err := reflectionpb.NewServerReflectionClient(g.conn).ServerReflectionInfo(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range services[1:] {
		if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name}}); err != nil {
			t.Fatal(err)
		}
		r, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(r.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("reflection of %s: %v", name, r)
		}
	}
}

// vllmMetrics is what a vLLM engine says of its load.
const vllmMetrics = `vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
`

// TestLoads: a record rides on every batch and comes alone while the engine is
// quiet, and GetLoads answers from the same readings.
func TestLoads(t *testing.T) {
	var up atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, vllmMetrics)
	}))
	defer web.Close()
	meter, err := load.New(load.Config{Engine: "vllm", Ranks: 1, Metrics: web.URL, Interval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	g := newRig(t, EngineConfig{}, rigOptions(), &served{meter: meter})
	ctx := testContext(t)
	go meter.Run(ctx)
	client := vllm.NewVllmEngineClient(g.conn)
	_, err = client.GetLoads(ctx, &vllm.GetLoadsRequest{})
	wantCode(t, "GetLoads before the first reading", err, codes.Unavailable, "w0")

	s, err := client.SubscribeKvEvents(ctx, &common.SubscribeKvEventsRequest{LoadRecordsBeforeFirstBatch: true})
	if err != nil {
		t.Fatal(err)
	}
	up.Store(true)
	b, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	l := b.GetLoad()
	if b.GetSequenceNumber() != 0 || len(b.GetEvents()) != 0 || b.DpRank == nil || !l.GetLoadOnly() || l.GetRunningRequests() != 3 || l.GetWaitingRequests() != 2 || l.GetTokenUsage() != 0.5 {
		t.Errorf("got %v, want a record alone, numbered 0", b)
	}
	g.publish(0, 0, 1, 1)
	for seq := uint64(0); seq < 2; {
		if b, err = s.Recv(); err != nil {
			t.Fatal(err)
		}
		if b.GetLoad().GetRunningRequests() != 3 {
			t.Fatalf("batch %v carries no load", b)
		}
		if len(b.GetEvents()) > 0 {
			if b.GetSequenceNumber() != seq || b.GetLoad().GetLoadOnly() {
				t.Fatalf("got %v, want batch %d", b, seq)
			}
			seq++
		}
	}
	if b, err = s.Recv(); err != nil || !b.GetLoad().GetLoadOnly() || b.GetSequenceNumber() != 1 {
		t.Errorf("got %v, %v, want a heartbeat numbered 1", b, err)
	}

	r, err := client.GetLoads(ctx, &vllm.GetLoadsRequest{Include: []string{"core"}})
	if err != nil || len(r.GetLoads()) != 1 || r.GetLoads()[0].GetNumRunningReqs() != 3 || r.GetLoads()[0].GetNumTotalReqs() != 5 || r.GetDpRankCount() != 1 {
		t.Errorf("GetLoads: %v, %v", r, err)
	}
	_, err = client.GetLoads(ctx, &vllm.GetLoadsRequest{Include: []string{"cores"}})
	wantCode(t, "include", err, codes.InvalidArgument, "cores", "core, memory")
	one := int32(1)
	_, err = client.GetLoads(ctx, &vllm.GetLoadsRequest{DpRank: &one})
	wantCode(t, "dp_rank", err, codes.InvalidArgument, "ranks 0 to 0")

	bare := newRig(t, EngineConfig{}, rigOptions(), &served{})
	_, err = vllm.NewVllmEngineClient(bare.conn).GetLoads(ctx, &vllm.GetLoadsRequest{})
	wantCode(t, "GetLoads without a source", err, codes.Unimplemented, "metrics=http://host:port")
}

// TestShutdown: subscribers are told, and one that does not read does not hold it
// up.
func TestShutdown(t *testing.T) {
	g := newRig(t, EngineConfig{}, rigOptions(), &served{})
	g.publish(0, 0, 0, 1)
	s := g.peer(testContext(t), 0)
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	stuck := g.peer(testContext(t), 0)
	if _, err := stuck.Header(); err != nil {
		t.Fatal(err)
	}
	g.publish(0, 1, 500, 50)
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := s.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	for g.e.stats.messages[contractPeer].Load() < 501 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	defer cancel()
	g.server.drain(ctx)
	if ctx.Err() != nil {
		t.Error("a subscriber that does not read held up the shutdown")
	}
	wantCode(t, "shutdown", <-ended, codes.Unavailable, "shuts down")
}
