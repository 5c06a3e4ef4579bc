// SPDX-License-Identifier: Apache-2.0

package load

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"kindex/proto/peer/common"
)

var t0 = time.Unix(1_796_010_653, 0)

func fullReading() Reading {
	return Reading{
		Rank: 1, Taken: t0, Sample: 300,
		Running: Some(uint32(4)), Waiting: Some(uint32(2)), WaitingUncached: Some(uint32(0)),
		Usage: Some(0.5), ActiveUsage: Some(0.0), Throughput: Some(281.25), HitRate: Some(0.0),
		MaxRunning: Some(uint32(64)), UsedTokens: Some(int32(0)), MaxTokens: Some(int32(120000)), PrefillPending: Some(uint32(7)),
		Memory:         Some(Memory{1, 2, 3, 4}),
		Queues:         Some(Queues{1, 0, 3, 4}),
		Speculative:    Some(Speculative{2.5, 0.75}),
		LoRA:           Some(LoRA{3, 8, 0.375}),
		Disaggregation: Some(Disaggregation{"prefill", 1, 2, 3, 4, 5, 6.5, 7.5}),
		ReportsSteps:   true, Output: t0.Add(-1500 * time.Millisecond),
	}
}

func decodeRecord(t *testing.T, b []byte) *common.EngineLoad {
	t.Helper()
	var l common.EngineLoad
	if err := proto.Unmarshal(b, &l); err != nil {
		t.Fatalf("the record is no EngineLoad: %v", err)
	}
	if len(l.ProtoReflect().GetUnknown()) > 0 {
		t.Fatalf("the record has unknown fields: %x", l.ProtoReflect().GetUnknown())
	}
	return &l
}

// TestRecord reads what AppendRecord wrote with the generated code of the contract.
func TestRecord(t *testing.T) {
	full := fullReading()
	core := func() *common.EngineLoad {
		return &common.EngineLoad{
			RunningRequests: 4, WaitingRequests: 2, WaitingUncachedTokens: proto.Uint32(0), TokenUsage: 0.5, GenThroughput: 281.25,
			MaxRunningRequests: 64, AgeMs: 250, Sample: 300, ActiveTokenUsage: proto.Float64(0),
			EngineSilenceMs: proto.Uint32(1750), EngineReportsSteps: new(true), PrefillPendingTokens: proto.Uint32(7),
		}
	}
	telemetry := core()
	telemetry.LoadOnly = true
	telemetry.CacheHitRate, telemetry.NumUsedTokens, telemetry.MaxTotalNumTokens = proto.Float64(0), proto.Int32(0), proto.Int32(120000)
	telemetry.Memory = &common.EngineMemory{WeightGb: 1, KvCacheGb: 2, GraphGb: 3, TokenCapacity: 4}
	telemetry.Queues = &common.EngineQueues{Waiting: 1, Paused: 3, Retracted: 4}
	telemetry.Speculative = &common.EngineSpeculative{AcceptLength: 2.5, AcceptRate: 0.75}
	telemetry.Lora = &common.EngineLora{SlotsUsed: 3, SlotsTotal: 8, Utilization: 0.375}
	telemetry.Disaggregation = &common.EngineDisaggregation{
		Mode: "prefill", PrefillPreallocQueueReqs: 1, PrefillInflightQueueReqs: 2, DecodePreallocQueueReqs: 3,
		DecodeTransferQueueReqs: 4, DecodeRetractedQueueReqs: 5, KvTransferSpeedGbS: 6.5, KvTransferLatencyMs: 7.5,
	}
	idle := Reading{Taken: t0, Sample: 1, Running: Some(uint32(0)), ReportsSteps: true, Output: t0.Add(-time.Hour)}
	now := t0.Add(250 * time.Millisecond)
	for _, c := range []struct {
		name           string
		r              Reading
		full, loadOnly bool
		want           *common.EngineLoad
	}{
		{"core", full, false, false, core()},
		{"telemetry", full, true, true, telemetry},
		{"nothing known", Reading{Taken: t0, Sample: 1}, true, false, &common.EngineLoad{AgeMs: 250, Sample: 1}},
		{"idle", idle, true, false, &common.EngineLoad{AgeMs: 250, Sample: 1, EngineSilenceMs: proto.Uint32(0), EngineReportsSteps: new(true)}},
	} {
		got := decodeRecord(t, c.r.AppendRecord(nil, now, c.full, c.loadOnly))
		if d := cmp.Diff(c.want, got, protocmp.Transform()); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	r := fullReading()
	dst := make([]byte, 0, 512)
	if n := testing.AllocsPerRun(10, func() { dst = r.AppendRecord(dst[:0], t0, true, true) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestSilence: an engine that cannot be asked is silent unless its events come.
func TestSilence(t *testing.T) {
	m := meter(t, Config{Engine: "vllm", Ranks: 1, Ask: nothing})
	r := Reading{Taken: t0, Running: Some(uint32(3)), ReportsSteps: true, totals: totals{generated: Some(5.0)}}
	m.took([]Reading{r})
	at := t0.Add(4 * time.Second)
	if d, ok := m.Rank(0).Silence(at); !ok || d != 4*time.Second {
		t.Errorf("silence %v, %v without events, want 4s", d, ok)
	}
	m.Output(0, t0.Add(3*time.Second))
	if d, ok := m.Rank(0).Silence(at); !ok || d != time.Second {
		t.Errorf("silence %v, %v after events at 3 s, want 1s", d, ok)
	}
	later := func(after time.Duration, running uint32, generated float64) {
		m.took([]Reading{{Taken: t0.Add(after), Running: Some(running), ReportsSteps: true, totals: totals{generated: Some(generated)}}})
	}
	later(8*time.Second, 3, 5) // counters stood still
	if d, _ := m.Rank(0).Silence(t0.Add(9 * time.Second)); d != 6*time.Second {
		t.Errorf("silence %v with counters that stand still, want 6s", d)
	}
	later(10*time.Second, 3, 6)
	if d, _ := m.Rank(0).Silence(t0.Add(11 * time.Second)); d != time.Second {
		t.Errorf("silence %v after a token, want 1s", d)
	}
	later(20*time.Second, 0, 6)
	later(30*time.Second, 1, 6) // took a request between the two: no output is owed from before
	if d, _ := m.Rank(0).Silence(t0.Add(31 * time.Second)); d != time.Second {
		t.Errorf("silence %v after an idle time, want 1s", d)
	}
}
