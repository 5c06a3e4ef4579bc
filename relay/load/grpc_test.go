// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

type vllmServer struct {
	vllm.UnimplementedVllmEngineServer
	resp *vllm.GetLoadsResponse
}

func (s *vllmServer) GetLoads(context.Context, *vllm.GetLoadsRequest) (*vllm.GetLoadsResponse, error) {
	return s.resp, nil
}

type sglangServer struct {
	sglang.UnimplementedSglangSchedulerServer
	resp *sglang.GetLoadsResponse
}

func (s *sglangServer) GetLoads(context.Context, *sglang.GetLoadsRequest) (*sglang.GetLoadsResponse, error) {
	return s.resp, nil
}

func dial(t *testing.T, register func(s *grpc.Server)) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	register(srv)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestGRPCRoundTrip: what an engine's own GetLoads says is what ours answers from
// the readings made of it.
func TestGRPCRoundTrip(t *testing.T) {
	v := &vllm.GetLoadsResponse{DpRankCount: 2, Loads: []*vllm.SchedulerLoad{
		{DpRank: 0},
		{DpRank: 1, NumRunningReqs: 4, NumWaitingReqs: 2, NumTotalReqs: 6, NumUsedTokens: 30, MaxTotalNumTokens: 120, TokenUsage: 0.25, GenThroughput: 12.5, CacheHitRate: 0.5, Utilization: 0.5, MaxRunningRequests: 8, NumWaitingUncachedTokens: 9},
	}}
	m := run(t, Config{Engine: "vllm", Ranks: 2, Ask: AskVLLM(dial(t, func(s *grpc.Server) { vllm.RegisterVllmEngineServer(s, &vllmServer{resp: v}) }))})
	eventually(t, "both ranks", func() bool { return len(m.Readings(nil)) == 2 })
	got := m.VLLMLoads(&vllm.GetLoadsRequest{}, time.Now())
	if d := cmp.Diff(v, got, protocmp.Transform(), protocmp.IgnoreFields(v, "timestamp")); d != "" {
		t.Errorf("vllm (-want +got):\n%s", d)
	}
	if at, err := time.Parse(time.RFC3339Nano, got.GetTimestamp()); err != nil || time.Since(at) < 0 || time.Since(at) > time.Minute {
		t.Errorf("timestamp %q, %v", got.GetTimestamp(), err)
	}
	if one := m.VLLMLoads(&vllm.GetLoadsRequest{DpRank: proto.Int32(1)}, time.Now()).GetLoads(); len(one) != 1 || one[0].GetDpRank() != 1 {
		t.Errorf("rank 1 alone: %v", one)
	}
	if none := m.VLLMLoads(&vllm.GetLoadsRequest{DpRank: proto.Int32(2)}, time.Now()).GetLoads(); len(none) != 0 {
		t.Errorf("a rank that is not there: %v", none)
	}

	g := &sglang.GetLoadsResponse{DpRankCount: 1, Loads: []*sglang.SchedulerLoad{{
		NumRunningReqs: 4, NumTotalReqs: 4, TokenUsage: 0.25,
		Memory: &sglang.MemoryMetrics{WeightGb: 1, KvCacheGb: 2, GraphGb: 3, TokenCapacity: 4}, Speculative: &sglang.SpeculativeMetrics{AcceptLength: 1, AcceptRate: 2},
		Lora: &sglang.LoRAMetrics{SlotsUsed: 1, SlotsTotal: 2, Utilization: 0.5}, Queues: &sglang.QueueMetrics{Waiting: 1, Grammar: 2, Paused: 3, Retracted: 4},
		Disaggregation: &sglang.DisaggregationMetrics{Mode: "decode", PrefillPreallocQueueReqs: 1, PrefillInflightQueueReqs: 2, DecodePreallocQueueReqs: 3, DecodeTransferQueueReqs: 4, DecodeRetractedQueueReqs: 5, KvTransferSpeedGbS: 6, KvTransferLatencyMs: 7},
	}}, Aggregate: &sglang.AggregateMetrics{TotalRunningReqs: 4, TotalReqs: 4, AvgTokenUsage: 0.25}}
	m = run(t, Config{Engine: "sglang", Ranks: 1, Ask: AskSGLang(dial(t, func(s *grpc.Server) { sglang.RegisterSglangSchedulerServer(s, &sglangServer{resp: g}) }))})
	eventually(t, "a rank", func() bool { return len(m.Readings(nil)) == 1 })
	if d := cmp.Diff(g, m.SGLangLoads(&sglang.GetLoadsRequest{}, time.Now()), protocmp.Transform(), protocmp.IgnoreFields(g, "timestamp")); d != "" {
		t.Errorf("sglang (-want +got):\n%s", d)
	}
	if l := m.SGLangLoads(&sglang.GetLoadsRequest{Include: []string{"core", "queues"}}, time.Now()).GetLoads()[0]; l.Queues == nil || l.Memory != nil || l.Disaggregation != nil {
		t.Errorf("core and queues: %v", l)
	}
}
