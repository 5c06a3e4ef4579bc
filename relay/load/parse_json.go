// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: a JSON answer of /v1/loads or /get_load. After it: readings.

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// loadsAnswer is the answer of /v1/loads, as SGLang 0.5.23 gives it.
type loadsAnswer struct {
	Timestamp json.RawMessage `json:"timestamp"` // when it was made; text, older ones none
	Version   string          `json:"version"`
	Loads     []loadJSON      `json:"loads"`
}

// loadJSON is one rank of either answer. Numbers are read as such whatever form
// they have; null and absent mean unsaid.
type loadJSON struct {
	Timestamp       number `json:"timestamp"` // Unix s, when the engine took it
	Rank            number `json:"dp_rank"`
	Running         number `json:"num_running_reqs"`
	Waiting         number `json:"num_waiting_reqs"`
	WaitingUncached number `json:"num_waiting_uncached_tokens"`
	Used            number `json:"num_used_tokens"`
	Active          number `json:"num_active_tokens"`
	MaxTokens       number `json:"max_total_num_tokens"`
	MaxRunning      number `json:"max_running_requests"`
	Usage           number `json:"token_usage"`
	ActiveUsage     number `json:"active_token_usage"`
	Throughput      number `json:"gen_throughput"`
	HitRate         number `json:"cache_hit_rate"`

	// Of /get_load.
	Requests number `json:"num_reqs"` // running and waiting
	Tokens   number `json:"num_tokens"`
	Pending  number `json:"num_pending_tokens"`

	Memory *struct {
		Weight   number `json:"weight_gb"`
		KVCache  number `json:"kv_cache_gb"`
		Graph    number `json:"graph_gb"`
		Capacity number `json:"token_capacity"`
	} `json:"memory"`
	Queues *struct {
		Waiting   number `json:"waiting"`
		Grammar   number `json:"grammar"`
		Paused    number `json:"paused"`
		Retracted number `json:"retracted"`
	} `json:"queues"`
	Speculative *speculativeJSON `json:"speculative"`
	Spec        *speculativeJSON `json:"spec"`
	LoRA        *struct {
		Used        number `json:"slots_used"`
		Total       number `json:"slots_total"`
		Utilization number `json:"utilization"`
	} `json:"lora"`
	Disaggregation *disaggregationJSON `json:"disaggregation"`
	Disagg         *disaggregationJSON `json:"disagg"`
}

type speculativeJSON struct {
	Length number `json:"accept_length"`
	Rate   number `json:"accept_rate"`
}

type disaggregationJSON struct {
	Mode             string `json:"mode"`
	PrefillPrealloc  number `json:"prefill_prealloc_queue_reqs"`
	PrefillBootstrap number `json:"prefill_bootstrap_queue_reqs"` // the same queue, as later releases name it
	PrefillInflight  number `json:"prefill_inflight_queue_reqs"`
	DecodePrealloc   number `json:"decode_prealloc_queue_reqs"`
	DecodeTransfer   number `json:"decode_transfer_queue_reqs"`
	DecodeRetracted  number `json:"decode_retracted_queue_reqs"`
	TransferSpeed    number `json:"kv_transfer_speed_gb_s"`
	TransferLatency  number `json:"kv_transfer_latency_ms"`
}

// number is a figure of an answer. What is no number is unsaid: releases differ in
// what they leave out, and how.
type number Opt[float64]

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseFloat(string(b), 64)
	*n = number{Value: v, Known: err == nil}
	return nil
}

// parseJSON reads /v1/loads, an object with the ranks in "loads", or /get_load, an
// array of ranks; the oldest answered one rank's object bare.
func parseJSON(text []byte, at time.Time) (answer, error) {
	var a answer
	var made float64 // the engine's clock when it answered, Unix s; 0 unknown
	var loads []loadJSON
	if text[0] == '[' {
		if err := json.Unmarshal(text, &loads); err != nil {
			return a, fmt.Errorf("loads: %w", err)
		}
	} else {
		var l loadsAnswer
		if err := json.Unmarshal(text, &l); err != nil {
			return a, fmt.Errorf("loads: %w", err)
		}
		loads, a.version, made = l.Loads, l.Version, madeAt(l.Timestamp)
		if l.Loads == nil {
			var one loadJSON
			if err := json.Unmarshal(text, &one); err != nil {
				return a, fmt.Errorf("loads: %w", err)
			}
			loads = []loadJSON{one}
		}
	}
	if len(loads) > MaxRanks {
		return a, fmt.Errorf("loads: %d ranks, more than %d", len(loads), MaxRanks)
	}
	for i := range loads {
		if r, ok := loads[i].reading(i, made, at); ok {
			a.readings = append(a.readings, r)
		}
	}
	return a, nil
}

// madeAt reads the time of an answer, if it says its zone.
func madeAt(raw json.RawMessage) float64 {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return 0
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// maxBacklog is the oldest that an answer may call its own content.
const maxBacklog = time.Hour

// reading returns what l says; ok is false where it says nothing of requests. i is
// its place in the answer.
func (l *loadJSON) reading(i int, made float64, at time.Time) (r Reading, ok bool) {
	r = Reading{Rank: i, Taken: at}
	if l.Rank.Known {
		if !(l.Rank.Value >= 0 && l.Rank.Value < math.MaxInt32) {
			return r, false
		}
		r.Rank = int(l.Rank.Value)
	}
	// Both times are of the engine's clock: what lies between is age, however that
	// clock stands to ours.
	if l.Timestamp.Known && made > l.Timestamp.Value {
		r.Taken = at.Add(-time.Duration(min((made-l.Timestamp.Value)*1e9, float64(maxBacklog))))
	}
	each(l.Running, &r.Running, toCount)
	each(l.Waiting, &r.Waiting, toCount)
	each(l.WaitingUncached, &r.WaitingUncached, toCount)
	each(l.WaitingUncached, &r.PrefillPending, toCount)
	each(l.Used, &r.UsedTokens, toTokens)
	each(l.MaxTokens, &r.MaxTokens, toTokens)
	each(l.MaxRunning, &r.MaxRunning, toCount)
	each(l.Usage, &r.Usage, toShare)
	each(l.ActiveUsage, &r.ActiveUsage, toShare)
	each(l.Throughput, &r.Throughput, toRate)
	each(l.HitRate, &r.HitRate, toShare)
	l.derived(&r)
	l.sections(&r)
	return r, r.Running.Known || r.Waiting.Known
}

func each[T any](from number, to *Opt[T], convert func(float64) Opt[T]) {
	if from.Known {
		*to = convert(from.Value)
	}
}

// derived sets what other figures imply.
func (l *loadJSON) derived(r *Reading) {
	if l.Requests.Known && !r.Running.Known {
		r.Running = toCount(max(l.Requests.Value-float64(r.Waiting.Value), 0))
	}
	if l.Tokens.Known && !r.UsedTokens.Known {
		// Tokens of requests that wait hold nothing yet.
		r.UsedTokens = toTokens(max(l.Tokens.Value-l.Pending.Value, 0))
	}
	if r.MaxTokens.Value == 0 {
		return
	}
	if !r.Usage.Known && r.UsedTokens.Known {
		r.Usage = toShare(float64(r.UsedTokens.Value) / float64(r.MaxTokens.Value))
	}
	// Releases that do not count it yet send 0.
	if !r.ActiveUsage.Known && l.Active.Value > 0 {
		r.ActiveUsage = toShare(l.Active.Value / float64(r.MaxTokens.Value))
	}
}

func (l *loadJSON) sections(r *Reading) {
	if m := l.Memory; m != nil {
		r.Memory = Some(Memory{m.Weight.plain(), m.KVCache.plain(), m.Graph.plain(), m.Capacity.whole()})
	}
	if q := l.Queues; q != nil {
		r.Queues = Some(Queues{q.Waiting.whole(), q.Grammar.whole(), q.Paused.whole(), q.Retracted.whole()})
	}
	if s := firstOf(l.Speculative, l.Spec); s != nil {
		r.Speculative = Some(Speculative{s.Length.plain(), s.Rate.plain()})
	}
	if a := l.LoRA; a != nil {
		r.LoRA = Some(LoRA{a.Used.whole(), a.Total.whole(), a.Utilization.plain()})
	}
	if d := firstOf(l.Disaggregation, l.Disagg); d != nil {
		r.Disaggregation = Some(Disaggregation{
			Mode:              clip(d.Mode),
			PrefillPrealloc:   max(d.PrefillPrealloc.whole(), d.PrefillBootstrap.whole()),
			PrefillInflight:   d.PrefillInflight.whole(),
			DecodePrealloc:    d.DecodePrealloc.whole(),
			DecodeTransfer:    d.DecodeTransfer.whole(),
			DecodeRetracted:   d.DecodeRetracted.whole(),
			TransferSpeedGBs:  d.TransferSpeed.plain(),
			TransferLatencyMs: d.TransferLatency.plain(),
		})
	}
}

// plain returns n as a figure that is 0 when unsaid.
func (n number) plain() float64 { return toRate(n.Value).Value }

// whole is plain for counts.
func (n number) whole() int32 { return toTokens(n.Value).Value }

func firstOf[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// clip bounds a word of an engine.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 64)], "") }
