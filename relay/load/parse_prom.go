// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: Prometheus text. After it: readings.

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// figure is what a metric is taken for.
type figure uint8

const (
	figRunning figure = iota
	figWaiting
	figUsage
	figPrompt      // tokens, since the start
	figGenerated   // tokens, since the start
	figQueries     // tokens looked up in the prefix cache, since the start
	figHits        // tokens found there, since the start
	figSteps       // since the start
	figCacheConfig // block_size and num_gpu_blocks are labels
	figThroughput
	figHitRate
	figUsedTokens
	figMaxTokens
	figMaxRunning
	figWaitingUncached
	figMemoryWeight
	figMemoryKV
	figMemoryGraph
	figMemoryCapacity
	numFigures
)

// counts reports whether f counts since the engine's start.
func (f figure) counts() bool {
	switch f {
	case figPrompt, figGenerated, figQueries, figHits, figSteps:
		return true
	default:
		return false
	}
}

// prefixes begin every metric of an engine that counts here. SGLang's
// /v1/loads?format=prometheus writes an underscore where /metrics has a colon.
var prefixes = [...]string{"vllm:", "sglang:", "sglang_"}

// names are the metrics without the engine's prefix, and without the _total that
// some releases' client libraries add. Where releases renamed one, all names stand.
var names = map[string]figure{
	"num_requests_running":     figRunning,
	"num_requests_waiting":     figWaiting,
	"kv_cache_usage_perc":      figUsage,
	"gpu_cache_usage_perc":     figUsage, // before 0.10
	"prompt_tokens":            figPrompt,
	"generation_tokens":        figGenerated,
	"prefix_cache_queries":     figQueries,
	"prefix_cache_hits":        figHits,
	"gpu_prefix_cache_queries": figQueries, // before 0.10
	"gpu_prefix_cache_hits":    figHits,
	"iteration_tokens_total":   figSteps, // a histogram, one observation a step
	"cache_config_info":        figCacheConfig,

	"num_running_reqs":            figRunning,
	"num_queue_reqs":              figWaiting,
	"num_waiting_reqs":            figWaiting,
	"token_usage":                 figUsage,
	"gen_throughput":              figThroughput,
	"cache_hit_rate":              figHitRate,
	"num_used_tokens":             figUsedTokens,
	"max_total_num_tokens":        figMaxTokens,
	"max_running_requests":        figMaxRunning,
	"num_waiting_uncached_tokens": figWaitingUncached,
	"memory_weight_gb":            figMemoryWeight,
	"memory_kv_cache_gb":          figMemoryKV,
	"memory_graph_gb":             figMemoryGraph,
	"memory_token_capacity":       figMemoryCapacity,
}

// figureOf returns what the metric of that name, as it stands in a line, is taken
// for.
func figureOf(name []byte) (figure, bool) {
	for _, p := range prefixes {
		rest, ok := bytes.CutPrefix(name, []byte(p))
		if !ok {
			continue
		}
		if f, ok := names[string(rest)]; ok {
			return f, true
		}
		if cut, ok := bytes.CutSuffix(rest, []byte("_total")); ok {
			f, ok := names[string(cut)]
			return f, ok && f.counts() && f != figSteps
		}
		if cut, ok := bytes.CutSuffix(rest, []byte("_count")); ok {
			f, ok := names[string(cut)]
			return f, ok && f == figSteps
		}
	}
	return 0, false
}

// promRank is what the metrics of one rank say.
type promRank struct {
	value [numFigures]Opt[float64]
	vllm  bool
}

// parseProm reads the metrics of an engine. Lines of other metrics, most of an
// answer, are left out before the text is parsed: a scrape costs what the few
// metrics of ours cost, and another metric's oddities harm nothing.
func parseProm(text []byte, at time.Time) ([]Reading, error) {
	ours := filter(text)
	if len(ours) == 0 {
		return nil, nil
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(ours))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	ranks := map[int]*promRank{}
	for name, f := range families {
		what, ok := figureOf([]byte(name))
		if !ok {
			continue
		}
		for _, m := range f.GetMetric() {
			rank, ok := rankOf(m)
			if !ok {
				continue
			}
			if ranks[rank] == nil {
				if len(ranks) == MaxRanks {
					return nil, fmt.Errorf("metrics: more than %d ranks", MaxRanks)
				}
				ranks[rank] = &promRank{}
			}
			ranks[rank].vllm = ranks[rank].vllm || name[0] == 'v'
			ranks[rank].add(what, m)
		}
	}
	var out []Reading
	for rank, p := range ranks {
		if r := p.reading(rank, at); r.Running.Known || r.Waiting.Known {
			out = append(out, r)
		}
	}
	sortByRank(out)
	return out, nil
}

// filter returns the samples of text that count here, and none of its comments: a
// sample without a type is a plain value, all that is wanted.
func filter(text []byte) []byte {
	var ours []byte
	for line := range bytes.Lines(text) {
		if line = bytes.TrimLeft(line, " \t"); len(line) < 8 || line[0] != 'v' && line[0] != 's' {
			continue
		}
		end := bytes.IndexAny(line, "{ \t")
		if end < 0 {
			continue
		}
		if _, ok := figureOf(line[:end]); !ok {
			continue
		}
		if i := bytes.LastIndex(line, []byte(" # ")); i >= 0 { // an exemplar
			line = append(line[:i:i], '\n')
		}
		ours = append(ours, line...)
	}
	if n := len(ours); n > 0 && ours[n-1] != '\n' {
		ours = append(ours, '\n')
	}
	return ours
}

// rankOf returns the data-parallel rank of one sample: 0 where it names none.
func rankOf(m *dto.Metric) (int, bool) {
	for _, l := range m.GetLabel() {
		if n := l.GetName(); n == "engine" || n == "dp_rank" {
			if l.GetValue() == "" || l.GetValue() == "None" {
				continue
			}
			rank, err := strconv.Atoi(l.GetValue())
			return rank, err == nil && rank >= 0
		}
	}
	return 0, true
}

// add takes one sample. Samples of one rank that differ in other labels are added
// up where they count since the start, and else repeat one figure, as the ranks of
// tensor parallelism do, or take it apart, as priorities do: the largest counts.
func (p *promRank) add(what figure, m *dto.Metric) {
	if what == figCacheConfig {
		p.cacheConfig(m)
		return
	}
	v := m.GetUntyped().GetValue()
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return
	}
	to := &p.value[what]
	if what.counts() {
		*to = Some(to.Value + v)
	} else {
		*to = Some(max(to.Value, v))
	}
}

// cacheConfig reads the size of vLLM's KV pool, which stands in labels: in tokens,
// or in blocks where a release does not say that.
func (p *promRank) cacheConfig(m *dto.Metric) {
	var tokens, size, blocks float64
	for _, l := range m.GetLabel() {
		v, err := strconv.ParseFloat(l.GetValue(), 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			continue // "None" while the engine starts
		}
		switch l.GetName() {
		case "kv_cache_size_tokens":
			tokens = v
		case "block_size":
			size = v
		case "num_gpu_blocks":
			blocks = v
		}
	}
	if tokens == 0 {
		tokens = size * blocks
	}
	if tokens > 0 {
		p.value[figMaxTokens] = Some(tokens)
	}
}

func (p *promRank) reading(rank int, at time.Time) Reading {
	r := Reading{Rank: rank, Taken: at}
	get(p, figRunning, &r.Running, toCount)
	get(p, figWaiting, &r.Waiting, toCount)
	get(p, figWaitingUncached, &r.WaitingUncached, toCount)
	get(p, figWaitingUncached, &r.PrefillPending, toCount)
	get(p, figUsage, &r.Usage, toShare)
	get(p, figThroughput, &r.Throughput, toRate)
	get(p, figHitRate, &r.HitRate, toShare)
	get(p, figUsedTokens, &r.UsedTokens, toTokens)
	get(p, figMaxTokens, &r.MaxTokens, toTokens)
	get(p, figMaxRunning, &r.MaxRunning, toCount)
	if r.MaxTokens.Value > 0 {
		limit := float64(r.MaxTokens.Value)
		if !r.UsedTokens.Known && r.Usage.Known {
			r.UsedTokens = toTokens(r.Usage.Value * limit)
		}
		if !r.Usage.Known && r.UsedTokens.Known {
			r.Usage = toShare(float64(r.UsedTokens.Value) / limit)
		}
	}
	if w, kv := p.value[figMemoryWeight], p.value[figMemoryKV]; w.Known || kv.Known {
		r.Memory = Some(Memory{w.Value, kv.Value, p.value[figMemoryGraph].Value, toTokens(p.value[figMemoryCapacity].Value).Value})
	}
	r.totals = totals{
		prompt: p.value[figPrompt], generated: p.value[figGenerated],
		queries: p.value[figQueries], hits: p.value[figHits], steps: p.value[figSteps],
	}
	if p.vllm {
		// vLLM's usage counts the blocks that requests hold; blocks that are only
		// cached are free to it. Its counters are fed by every step.
		r.ActiveUsage = r.Usage
		r.ReportsSteps = r.totals.generated.Known || r.totals.steps.Known
	}
	return r
}

func get[T any](p *promRank, what figure, to *Opt[T], convert func(float64) Opt[T]) {
	if v := p.value[what]; v.Known {
		*to = convert(v.Value)
	}
}
