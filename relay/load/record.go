// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: a reading. After it: a batch of a stream, whose load field
// these bytes are.

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The field numbers of smg.grpc.common.EngineLoad, as released.
const (
	fieldRunning         = 1
	fieldWaiting         = 2
	fieldWaitingUncached = 3
	fieldUsage           = 4
	fieldThroughput      = 5
	fieldMaxRunning      = 6
	fieldAgeMs           = 7
	fieldSample          = 8
	fieldLoadOnly        = 9
	fieldHitRate         = 10
	fieldUsedTokens      = 11
	fieldMaxTokens       = 12
	fieldMemory          = 13
	fieldQueues          = 14
	fieldSpeculative     = 15
	fieldLoRA            = 16
	fieldDisaggregation  = 17
	fieldActiveUsage     = 18
	fieldSilenceMs       = 19
	fieldReportsSteps    = 20
	fieldPrefillPending  = 21
)

// AppendRecord appends r as an smg.grpc.common.EngineLoad. full adds the fields
// that describe rather than steer (10 to 17); loadOnly marks a batch that
// carries no events. It allocates only when dst is too small.
func (r *Reading) AppendRecord(dst []byte, now time.Time, full, loadOnly bool) []byte {
	dst = appendUint(dst, fieldRunning, uint64(r.Running.Value))
	dst = appendUint(dst, fieldWaiting, uint64(r.Waiting.Value))
	dst = appendOptUint(dst, fieldWaitingUncached, r.WaitingUncached)
	dst = appendDouble(dst, fieldUsage, r.Usage.Value)
	dst = appendDouble(dst, fieldThroughput, r.Throughput.Value)
	dst = appendUint(dst, fieldMaxRunning, uint64(r.MaxRunning.Value))
	dst = appendUint(dst, fieldAgeMs, millis(r.Age(now)))
	dst = appendUint(dst, fieldSample, r.Sample)
	dst = appendUint(dst, fieldLoadOnly, bit(loadOnly))
	if full {
		dst = r.appendTelemetry(dst)
	}
	dst = appendOptDouble(dst, fieldActiveUsage, r.ActiveUsage)
	if d, ok := r.Silence(now); ok {
		dst = appendOptUint(dst, fieldSilenceMs, Some(uint32(millis(d))))
	}
	if r.ReportsSteps {
		dst = appendOptUint(dst, fieldReportsSteps, Some(uint32(1)))
	}
	return appendOptUint(dst, fieldPrefillPending, r.PrefillPending)
}

func (r *Reading) appendTelemetry(dst []byte) []byte {
	dst = appendOptDouble(dst, fieldHitRate, r.HitRate)
	dst = appendOptInt(dst, fieldUsedTokens, r.UsedTokens)
	dst = appendOptInt(dst, fieldMaxTokens, r.MaxTokens)
	if m := r.Memory.Value; r.Memory.Known {
		dst = appendMessage(dst, fieldMemory, func(b []byte) []byte {
			b = appendDouble(appendDouble(appendDouble(b, 1, m.WeightGB), 2, m.KVCacheGB), 3, m.GraphGB)
			return appendInts(b, 4, m.TokenCapacity)
		})
	}
	if q := r.Queues.Value; r.Queues.Known {
		dst = appendMessage(dst, fieldQueues, func(b []byte) []byte {
			return appendInts(b, 1, q.Waiting, q.Grammar, q.Paused, q.Retracted)
		})
	}
	if s := r.Speculative.Value; r.Speculative.Known {
		dst = appendMessage(dst, fieldSpeculative, func(b []byte) []byte {
			return appendDouble(appendDouble(b, 1, s.AcceptLength), 2, s.AcceptRate)
		})
	}
	if l := r.LoRA.Value; r.LoRA.Known {
		dst = appendMessage(dst, fieldLoRA, func(b []byte) []byte {
			return appendDouble(appendInts(b, 1, l.SlotsUsed, l.SlotsTotal), 3, l.Utilization)
		})
	}
	if d := r.Disaggregation.Value; r.Disaggregation.Known {
		dst = appendMessage(dst, fieldDisaggregation, func(b []byte) []byte {
			if d.Mode != "" {
				b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), d.Mode)
			}
			b = appendInts(b, 2, d.PrefillPrealloc, d.PrefillInflight, d.DecodePrealloc, d.DecodeTransfer, d.DecodeRetracted)
			return appendDouble(appendDouble(b, 7, d.TransferSpeedGBs), 8, d.TransferLatencyMs)
		})
	}
	return dst
}

// appendMessage appends a message that body appends. Its length takes two bytes
// whatever it is, a form that every reader takes, so that nothing need be moved:
// no message of ours is 16,384 bytes long.
func appendMessage(dst []byte, field protowire.Number, body func([]byte) []byte) []byte {
	dst = append(protowire.AppendTag(dst, field, protowire.BytesType), 0x80, 0)
	from := len(dst)
	dst = body(dst)
	n := len(dst) - from
	if n >= 1<<14 {
		panic("BUG: load: a record of 16,384 bytes or more")
	}
	dst[from-2], dst[from-1] = byte(n)|0x80, byte(n>>7)
	return dst
}

func appendUint(dst []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
}

func appendOptUint(dst []byte, field protowire.Number, v Opt[uint32]) []byte {
	if !v.Known {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), uint64(v.Value))
}

func appendOptInt(dst []byte, field protowire.Number, v Opt[int32]) []byte {
	if !v.Known {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), uint64(int64(v.Value)))
}

// appendInts appends values that have consecutive field numbers from first.
func appendInts(dst []byte, first protowire.Number, values ...int32) []byte {
	for i, v := range values {
		dst = appendUint(dst, first+protowire.Number(i), uint64(int64(v)))
	}
	return dst
}

func appendDouble(dst []byte, field protowire.Number, v float64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendFixed64(protowire.AppendTag(dst, field, protowire.Fixed64Type), math.Float64bits(v))
}

func appendOptDouble(dst []byte, field protowire.Number, v Opt[float64]) []byte {
	if !v.Known {
		return dst
	}
	return protowire.AppendFixed64(protowire.AppendTag(dst, field, protowire.Fixed64Type), math.Float64bits(v.Value))
}

func millis(d time.Duration) uint64 { return uint64(min(max(d.Milliseconds(), 0), math.MaxUint32)) }

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
