// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: the parsers of what engines say. After it: records, and the
// answers to GetLoads.

import (
	"sync/atomic"
	"time"
)

// Opt is a value that an engine may leave unsaid.
type Opt[T any] struct {
	Value T
	Known bool
}

// Some returns a known value.
func Some[T any](v T) Opt[T] { return Opt[T]{Value: v, Known: true} }

// or returns o where it is known, else other.
func (o Opt[T]) or(other Opt[T]) Opt[T] {
	if o.Known {
		return o
	}
	return other
}

// Reading is the load of one rank at one time. It is immutable once published.
type Reading struct {
	Rank   int
	Taken  time.Time // when it was so, by this host's clock
	Sample uint64    // counts the readings of this rank, from 1

	Running         Opt[uint32]  // requests
	Waiting         Opt[uint32]  // requests
	WaitingUncached Opt[uint32]  // tokens to prefill that no cache holds, of the requests that wait
	Usage           Opt[float64] // share of the KV pool in use, 0 to 1
	ActiveUsage     Opt[float64] // share of the KV pool that cannot be evicted, 0 to 1
	Throughput      Opt[float64] // generated tokens a second
	HitRate         Opt[float64] // prompt tokens found in the prefix cache, 0 to 1
	MaxRunning      Opt[uint32]  // requests that may run at once
	UsedTokens      Opt[int32]   // of the KV pool
	MaxTokens       Opt[int32]   // of the KV pool
	PrefillPending  Opt[uint32]  // tokens yet to prefill, of all requests

	Memory         Opt[Memory]
	Queues         Opt[Queues]
	Speculative    Opt[Speculative]
	LoRA           Opt[LoRA]
	Disaggregation Opt[Disaggregation]

	// ReportsSteps tells that the source counts every step of the engine, so that
	// counters that stand still mean an engine that stands still.
	ReportsSteps bool
	// Output is when the engine last showed output, or began to hold requests;
	// zero where the source does not tell.
	Output time.Time

	totals totals        // counters that rates are made from
	events *atomic.Int64 // when events of the rank last came, Unix ns; nil for a reading not published
}

// Memory is what the engine's device memory went to, in GB of 10^9 bytes or as
// the engine reckons them.
type Memory struct {
	WeightGB, KVCacheGB, GraphGB float64
	TokenCapacity                int32
}

// Queues are requests that wait, by why.
type Queues struct {
	Waiting, Grammar, Paused, Retracted int32
}

// Speculative says how well drafted tokens do.
type Speculative struct {
	AcceptLength, AcceptRate float64
}

// LoRA is the use of the adapter slots.
type LoRA struct {
	SlotsUsed, SlotsTotal int32
	Utilization           float64
}

// Disaggregation is the state of an engine that only prefills or only decodes.
type Disaggregation struct {
	Mode                                            string
	PrefillPrealloc, PrefillInflight                int32 // requests
	DecodePrealloc, DecodeTransfer, DecodeRetracted int32 // requests
	TransferSpeedGBs /* GB/s */, TransferLatencyMs  float64
}

// Age returns how old the reading is.
func (r *Reading) Age(now time.Time) time.Duration { return max(now.Sub(r.Taken), 0) }

// Silence returns for how long the engine has shown no output while it holds
// requests; ok is false where that cannot be told. An engine that can no longer
// be asked is silent, too, unless its events still come.
func (r *Reading) Silence(now time.Time) (d time.Duration, ok bool) {
	if !r.ReportsSteps || r.Output.IsZero() {
		return 0, false
	}
	if r.Running.Value == 0 {
		return 0, true
	}
	d = now.Sub(r.Output)
	if r.events != nil {
		d = min(d, now.Sub(time.Unix(0, r.events.Load())))
	}
	return max(d, 0), true
}

// totals are counters since the engine's start.
type totals struct {
	generated, prompt Opt[float64] // tokens
	queries, hits     Opt[float64] // prompt tokens looked up in the prefix cache, found there
	steps             Opt[float64]
}

// fillAge is how old a reading of another source may be to say what the newer
// one does not.
const fillAge = 10 * time.Second

// merge returns the newer of two readings of one rank with what only the older
// one says; either may be nil.
func merge(a, b *Reading) *Reading {
	if a == nil || b == nil || b.Taken.Sub(a.Taken).Abs() > fillAge {
		if a == nil || b != nil && b.Taken.After(a.Taken) {
			return b
		}
		return a
	}
	if b.Taken.After(a.Taken) {
		a, b = b, a
	}
	m := *a
	m.Running = a.Running.or(b.Running)
	m.Waiting = a.Waiting.or(b.Waiting)
	m.WaitingUncached = a.WaitingUncached.or(b.WaitingUncached)
	m.Usage = a.Usage.or(b.Usage)
	m.ActiveUsage = a.ActiveUsage.or(b.ActiveUsage)
	m.Throughput = a.Throughput.or(b.Throughput)
	m.HitRate = a.HitRate.or(b.HitRate)
	m.MaxRunning = a.MaxRunning.or(b.MaxRunning)
	m.UsedTokens = a.UsedTokens.or(b.UsedTokens)
	m.MaxTokens = a.MaxTokens.or(b.MaxTokens)
	m.PrefillPending = a.PrefillPending.or(b.PrefillPending)
	m.Memory = a.Memory.or(b.Memory)
	m.Queues = a.Queues.or(b.Queues)
	m.Speculative = a.Speculative.or(b.Speculative)
	m.LoRA = a.LoRA.or(b.LoRA)
	m.Disaggregation = a.Disaggregation.or(b.Disaggregation)
	if !a.ReportsSteps {
		m.ReportsSteps, m.Output = b.ReportsSteps, b.Output
	}
	return &m
}
