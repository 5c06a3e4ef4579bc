// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: readings, or an engine's own GetLoads. After it: GetLoads of
// the peer's contracts, and readings.

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"

	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// AskVLLM asks a vLLM engine's own gRPC service.
func AskVLLM(conn grpc.ClientConnInterface) Ask {
	client := vllm.NewVllmEngineClient(conn)
	return func(ctx context.Context) ([]Reading, error) {
		resp, err := client.GetLoads(ctx, &vllm.GetLoadsRequest{})
		if err != nil {
			return nil, err
		}
		var rs []Reading
		for _, l := range resp.GetLoads() {
			rs = append(rs, coreReading(l))
		}
		return rs, nil
	}
}

// AskSGLang asks an SGLang engine's own gRPC service.
func AskSGLang(conn grpc.ClientConnInterface) Ask {
	client := sglang.NewSglangSchedulerClient(conn)
	return func(ctx context.Context) ([]Reading, error) {
		resp, err := client.GetLoads(ctx, &sglang.GetLoadsRequest{Include: []string{"all"}})
		if err != nil {
			return nil, err
		}
		var rs []Reading
		for _, l := range resp.GetLoads() {
			r := coreReading(l)
			sglangSections(&r, l)
			rs = append(rs, r)
		}
		return rs, nil
	}
}

// coreLoad is what both contracts' loads of one rank have.
type coreLoad interface {
	GetDpRank() int32
	GetNumRunningReqs() int32
	GetNumWaitingReqs() int32
	GetNumUsedTokens() int32
	GetMaxTotalNumTokens() int32
	GetTokenUsage() float64
	GetGenThroughput() float64
	GetCacheHitRate() float64
	GetMaxRunningRequests() int32
	GetNumWaitingUncachedTokens() int32
}

// coreReading reads fields that have no presence: 0 of what is never truly 0, and
// of what an engine that does not know it leaves 0, is unsaid.
func coreReading(l coreLoad) Reading {
	r := Reading{
		Rank:       int(l.GetDpRank()),
		Running:    toCount(float64(l.GetNumRunningReqs())),
		Waiting:    toCount(float64(l.GetNumWaitingReqs())),
		Usage:      toShare(l.GetTokenUsage()),
		UsedTokens: toTokens(float64(l.GetNumUsedTokens())),
	}
	if v := l.GetNumWaitingUncachedTokens(); v > 0 || v == 0 && l.GetNumWaitingReqs() == 0 {
		r.WaitingUncached = toCount(float64(v))
	}
	if v := l.GetMaxTotalNumTokens(); v > 0 {
		r.MaxTokens = toTokens(float64(v))
	}
	if v := l.GetMaxRunningRequests(); v > 0 {
		r.MaxRunning = toCount(float64(v))
	}
	if v := l.GetGenThroughput(); v > 0 || l.GetNumRunningReqs() == 0 {
		r.Throughput = toRate(v)
	}
	if v := l.GetCacheHitRate(); v > 0 {
		r.HitRate = toShare(v)
	}
	return r
}

func sglangSections(r *Reading, l *sglang.SchedulerLoad) {
	if m := l.GetMemory(); m != nil {
		r.Memory = Some(Memory{m.GetWeightGb(), m.GetKvCacheGb(), m.GetGraphGb(), m.GetTokenCapacity()})
	}
	if q := l.GetQueues(); q != nil {
		r.Queues = Some(Queues{q.GetWaiting(), q.GetGrammar(), q.GetPaused(), q.GetRetracted()})
	}
	if s := l.GetSpeculative(); s != nil {
		r.Speculative = Some(Speculative{s.GetAcceptLength(), s.GetAcceptRate()})
	}
	if a := l.GetLora(); a != nil {
		r.LoRA = Some(LoRA{a.GetSlotsUsed(), a.GetSlotsTotal(), a.GetUtilization()})
	}
	if d := l.GetDisaggregation(); d != nil {
		r.Disaggregation = Some(Disaggregation{
			Mode:              clip(d.GetMode()),
			PrefillPrealloc:   d.GetPrefillPreallocQueueReqs(),
			PrefillInflight:   d.GetPrefillInflightQueueReqs(),
			DecodePrealloc:    d.GetDecodePreallocQueueReqs(),
			DecodeTransfer:    d.GetDecodeTransferQueueReqs(),
			DecodeRetracted:   d.GetDecodeRetractedQueueReqs(),
			TransferSpeedGBs:  d.GetKvTransferSpeedGbS(),
			TransferLatencyMs: d.GetKvTransferLatencyMs(),
		})
	}
}

// VLLMLoads answers GetLoads of vLLM's contract from the newest readings. Its
// timestamp is that of the oldest reading in it: a load that is old says so.
func (m *Meter) VLLMLoads(req *vllm.GetLoadsRequest, now time.Time) *vllm.GetLoadsResponse {
	rs := m.chosen(req.DpRank)
	resp := &vllm.GetLoadsResponse{Timestamp: stamp(rs, now), Version: m.Version(), DpRankCount: m.rankCount()}
	for _, r := range rs {
		resp.Loads = append(resp.Loads, &vllm.SchedulerLoad{
			DpRank:                   int32(r.Rank),
			NumRunningReqs:           signed(r.Running.Value),
			NumWaitingReqs:           signed(r.Waiting.Value),
			NumTotalReqs:             signed(r.Running.Value) + signed(r.Waiting.Value),
			NumUsedTokens:            r.UsedTokens.Value,
			MaxTotalNumTokens:        r.MaxTokens.Value,
			TokenUsage:               r.Usage.Value,
			GenThroughput:            r.Throughput.Value,
			CacheHitRate:             r.HitRate.Value,
			Utilization:              r.utilization(),
			MaxRunningRequests:       signed(r.MaxRunning.Value),
			NumWaitingUncachedTokens: signed(r.WaitingUncached.Value),
		})
	}
	return resp
}

// SGLangLoads answers GetLoads of SGLang's contract, as [Meter.VLLMLoads] does.
func (m *Meter) SGLangLoads(req *sglang.GetLoadsRequest, now time.Time) *sglang.GetLoadsResponse {
	rs := m.chosen(req.DpRank)
	resp := &sglang.GetLoadsResponse{Timestamp: stamp(rs, now), Version: m.Version(), DpRankCount: m.rankCount()}
	sum := &sglang.AggregateMetrics{}
	for _, r := range rs {
		l := &sglang.SchedulerLoad{
			DpRank:                   int32(r.Rank),
			NumRunningReqs:           signed(r.Running.Value),
			NumWaitingReqs:           signed(r.Waiting.Value),
			NumTotalReqs:             signed(r.Running.Value) + signed(r.Waiting.Value),
			NumUsedTokens:            r.UsedTokens.Value,
			MaxTotalNumTokens:        r.MaxTokens.Value,
			TokenUsage:               r.Usage.Value,
			GenThroughput:            r.Throughput.Value,
			CacheHitRate:             r.HitRate.Value,
			Utilization:              r.utilization(),
			MaxRunningRequests:       signed(r.MaxRunning.Value),
			NumWaitingUncachedTokens: signed(r.WaitingUncached.Value),
		}
		r.appendSections(l, req.GetInclude())
		resp.Loads = append(resp.Loads, l)
		sum.TotalRunningReqs += l.GetNumRunningReqs()
		sum.TotalWaitingReqs += l.GetNumWaitingReqs()
		sum.TotalReqs += l.GetNumTotalReqs()
		n := float64(len(rs))
		sum.AvgTokenUsage += l.GetTokenUsage() / n
		sum.AvgThroughput += l.GetGenThroughput() / n
		sum.AvgUtilization += l.GetUtilization() / n
	}
	resp.Aggregate = sum
	return resp
}

// appendSections adds the sections that include names: all where it names none.
func (r *Reading) appendSections(l *sglang.SchedulerLoad, include []string) {
	wants := func(section string) bool {
		return len(include) == 0 || slices.Contains(include, section) || slices.Contains(include, "all")
	}
	if m := r.Memory.Value; r.Memory.Known && wants("memory") {
		l.Memory = &sglang.MemoryMetrics{WeightGb: m.WeightGB, KvCacheGb: m.KVCacheGB, GraphGb: m.GraphGB, TokenCapacity: m.TokenCapacity}
	}
	if s := r.Speculative.Value; r.Speculative.Known && wants("spec") {
		l.Speculative = &sglang.SpeculativeMetrics{AcceptLength: s.AcceptLength, AcceptRate: s.AcceptRate}
	}
	if a := r.LoRA.Value; r.LoRA.Known && wants("lora") {
		l.Lora = &sglang.LoRAMetrics{SlotsUsed: a.SlotsUsed, SlotsTotal: a.SlotsTotal, Utilization: a.Utilization}
	}
	if q := r.Queues.Value; r.Queues.Known && wants("queues") {
		l.Queues = &sglang.QueueMetrics{Waiting: q.Waiting, Grammar: q.Grammar, Paused: q.Paused, Retracted: q.Retracted}
	}
	if d := r.Disaggregation.Value; r.Disaggregation.Known && wants("disagg") {
		l.Disaggregation = &sglang.DisaggregationMetrics{
			Mode:                     d.Mode,
			PrefillPreallocQueueReqs: d.PrefillPrealloc, PrefillInflightQueueReqs: d.PrefillInflight,
			DecodePreallocQueueReqs: d.DecodePrealloc, DecodeTransferQueueReqs: d.DecodeTransfer, DecodeRetractedQueueReqs: d.DecodeRetracted,
			KvTransferSpeedGbS: d.TransferSpeedGBs, KvTransferLatencyMs: d.TransferLatencyMs,
		}
	}
}

// chosen returns the newest readings of one rank, or of all.
func (m *Meter) chosen(only *int32) []*Reading {
	if only == nil {
		return m.Readings(nil)
	}
	if r := m.Rank(int(*only)); r != nil {
		return []*Reading{r}
	}
	return nil
}

func (m *Meter) rankCount() int32 {
	if m == nil {
		return 0
	}
	return int32(len(m.ranks))
}

func stamp(rs []*Reading, now time.Time) string {
	for _, r := range rs {
		if r.Taken.Before(now) {
			now = r.Taken
		}
	}
	return now.UTC().Format(time.RFC3339Nano)
}

func signed(v uint32) int32 { return int32(min(v, 1<<31-1)) }

// utilization is the share of the requests that may run at once.
func (r *Reading) utilization() float64 {
	if r.MaxRunning.Value == 0 {
		return 0
	}
	return min(float64(r.Running.Value)/float64(r.MaxRunning.Value), 1)
}
