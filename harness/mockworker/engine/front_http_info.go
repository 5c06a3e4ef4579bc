// SPDX-License-Identifier: Apache-2.0

// Before: a gateway, or whoever scrapes metrics. After: engine.go.

package engine

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

func (f *HTTPFront) models(w http.ResponseWriter, _ *http.Request) {
	all := []map[string]any{f.card("")}
	for _, name := range f.engine.cfg.LoRA {
		all = append(all, f.card(name))
	}
	say(w, http.StatusOK, map[string]any{"object": "list", "data": all})
}

// model is one of models.
func (f *HTTPFront) model(w http.ResponseWriter, r *http.Request) {
	lora, _, err := f.adapter(r.PathValue("id"))
	if err != nil {
		tell(w, err)
		return
	}
	say(w, http.StatusOK, f.card(lora))
}

// card tells of an adapter, or of the base model.
func (f *HTTPFront) card(lora string) map[string]any {
	c := &f.engine.cfg
	out := map[string]any{
		"id": c.Model, "object": "model", "created": f.engine.started.Unix(), "owned_by": c.Engine, "root": c.ModelPath, "parent": nil,
		"max_model_len": c.ContextLength,
	}
	if lora != "" {
		out["id"], out["parent"] = lora, c.Model
	}
	return out
}

// serverLoad is vLLM's /load: requests that its server has.
func (f *HTTPFront) serverLoad(w http.ResponseWriter, _ *http.Request) {
	n := 0
	for _, l := range f.engine.Loads() {
		n += l.Running + l.Waiting
	}
	say(w, http.StatusOK, map[string]int{"server_load": n})
}

// oldLoads is SGLang's /get_load of before 0.5.23.
func (f *HTTPFront) oldLoads(w http.ResponseWriter, _ *http.Request) {
	out := []map[string]int{}
	for _, l := range f.engine.Loads() {
		out = append(out, map[string]int{
			"dp_rank": l.Rank, "num_reqs": l.Running + l.Waiting, "num_waiting_reqs": l.Waiting, "num_tokens": l.UsedTokens + l.WaitingUncached,
		})
	}
	say(w, http.StatusOK, out)
}

// loads is SGLang's /v1/loads.
func (f *HTTPFront) loads(w http.ResponseWriter, r *http.Request) {
	only := r.URL.Query().Get("dp_rank")
	rank, err := strconv.Atoi(only)
	if only != "" && (err != nil || rank < 0 || rank >= f.engine.cfg.Ranks) {
		tell(w, refuse("dp_rank", "dp_rank: %q: must be 0 to %d", only, f.engine.cfg.Ranks-1))
		return
	}
	switch format := r.URL.Query().Get("format"); format {
	case "", "json":
	case "prometheus":
		w.Header().Set("Content-Type", contentProm)
		var b strings.Builder
		f.sglangMetrics(&b, "sglang_")
		_, _ = w.Write([]byte(b.String()))
		return
	default:
		tell(w, refuse("format", "format: %q: must be json or prometheus", format))
		return
	}
	now := time.Now()
	all := []map[string]any{}
	for _, l := range f.engine.Loads() {
		if only != "" && l.Rank != rank {
			continue
		}
		all = append(all, map[string]any{
			"timestamp": seconds(now), "dp_rank": l.Rank, "num_running_reqs": l.Running, "num_waiting_reqs": l.Waiting, "num_total_reqs": l.Running + l.Waiting,
			"num_waiting_uncached_tokens": l.WaitingUncached, "num_used_tokens": l.UsedTokens, "num_total_tokens": l.UsedTokens + l.WaitingUncached,
			"num_active_tokens": l.UsedTokens, "num_prealloc_ready_tokens": 0, "max_total_num_tokens": l.MaxTokens, "max_running_requests": l.MaxRunning,
			"token_usage": ratio(l.UsedTokens, l.MaxTokens), "gen_throughput": l.Throughput, "cache_hit_rate": l.HitRate,
			"utilization": ratio(l.Running, l.MaxRunning), "total_prefill_uncached_tokens": l.PromptTokens - l.CachedTokens, "total_prefill_busy_us": l.Busy.Microseconds(),
			"decode_moments": nil,
		})
	}
	say(w, http.StatusOK, map[string]any{
		"timestamp": now.UTC().Format(time.RFC3339Nano), "version": f.engine.cfg.Version, "accelerator": "mock", "num_accelerators": 1,
		"dp_rank_count": f.engine.cfg.Ranks, "loads": all,
	})
}

// serverInfo is SGLang's /server_info, with what a gateway or an index needs to find
// the events.
func (f *HTTPFront) serverInfo(w http.ResponseWriter, _ *http.Request) {
	c := &f.engine.cfg
	out := map[string]any{
		"version": c.Version, "model_path": c.ModelPath, "served_model_name": c.Model, "tokenizer_path": c.ModelPath, "dp_size": c.Ranks, "tp_size": 1,
		"page_size": c.BlockSize, "context_length": c.ContextLength, "max_total_num_tokens": c.Blocks * c.BlockSize,
		"max_running_requests": c.MaxRunning, "uptime": time.Since(f.engine.started).Seconds(), "engine": c.Engine,
	}
	if p := f.engine.Publishers()[0]; strings.HasPrefix(p.Live, "tcp://") {
		host, port := hostPort(p.Live)
		events := map[string]any{
			"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": c.Topic, "block_size": c.BlockSize, "dp_size": c.Ranks,
		}
		if p.Replay != "" {
			_, events["replay_endpoint_port_base"] = hostPort(p.Replay)
		}
		if at := f.engine.LoadEndpoints(); len(at) > 0 {
			_, events["load_endpoint_port_base"] = hostPort(at[0])
			events["load_topic"] = loadTopic
		}
		out["kv_events"] = events
	}
	say(w, http.StatusOK, out)
}

// hostPort takes a bound tcp:// endpoint apart.
func hostPort(endpoint string) (string, int) {
	rest := strings.TrimPrefix(endpoint, "tcp://")
	i := strings.LastIndexByte(rest, ':')
	port, err := strconv.Atoi(rest[i+1:])
	if err != nil {
		panic("an endpoint that was bound: " + err.Error())
	}
	return strings.Trim(rest[:i], "[]"), port
}

func (f *HTTPFront) modelInfo(w http.ResponseWriter, _ *http.Request) {
	c := &f.engine.cfg
	say(w, http.StatusOK, map[string]any{
		"model_path": c.ModelPath, "tokenizer_path": c.ModelPath, "is_generation": true, "served_model_name": c.Model, "model_type": "llama",
		"architectures": []string{"LlamaForCausalLM"}, "max_context_length": c.ContextLength, "vocab_size": c.Vocabulary, "weight_version": "default",
		"preferred_sampling_params": nil,
	})
}

const contentProm = "text/plain; version=0.0.4; charset=utf-8"

func (f *HTTPFront) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", contentProm)
	var b strings.Builder
	if f.engine.cfg.radix() {
		f.sglangMetrics(&b, "sglang:")
	} else {
		f.vllmMetrics(&b)
	}
	_, _ = w.Write([]byte(b.String()))
}

// family is one metric and its value on each rank.
type family struct {
	name, kind, help string
	of               func(l *Load) float64
}

func write(b *strings.Builder, all []family, loads []Load, labels func(l *Load) string) {
	for _, m := range all {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
		for i := range loads {
			fmt.Fprintf(b, "%s{%s} %v\n", m.name, labels(&loads[i]), m.of(&loads[i]))
		}
	}
}

// vllmMetrics writes what vLLM's /metrics says, as far as routing asks.
func (f *HTTPFront) vllmMetrics(b *strings.Builder) {
	c := &f.engine.cfg
	labels := func(l *Load) string { return fmt.Sprintf(`engine="%d",model_name=%q`, l.Rank, c.Model) }
	loads := f.engine.Loads()
	write(b, []family{
		{"vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", func(l *Load) float64 { return float64(l.Running) }},
		{"vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", func(l *Load) float64 { return float64(l.Waiting) }},
		{"vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", func(l *Load) float64 { return ratio(l.UsedTokens, l.MaxTokens) }},
		{"vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in number of queried tokens.", func(l *Load) float64 { return float64(l.PromptTokens) }},
		{"vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in number of cached tokens.", func(l *Load) float64 { return float64(l.CachedTokens) }},
		{"vllm:num_preemptions_total", "counter", "Cumulative number of preemptions.", func(l *Load) float64 { return float64(l.Preemptions) }},
		{"vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", func(l *Load) float64 { return float64(l.PromptTokens) }},
		{"vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", func(l *Load) float64 { return float64(l.OutputTokens) }},
		{"vllm:iteration_tokens_total_count", "counter", "Passes of the engine.", func(l *Load) float64 { return float64(l.Passes) }},
	}, loads, labels)
	b.WriteString("# HELP vllm:num_requests_waiting_by_reason Number of waiting requests, by reason.\n# TYPE vllm:num_requests_waiting_by_reason gauge\n")
	for i := range loads {
		fmt.Fprintf(b, "vllm:num_requests_waiting_by_reason{%s,reason=\"capacity\"} %d\n", labels(&loads[i]), loads[i].Waiting)
	}
	b.WriteString("# HELP vllm:prompt_tokens_cached_by_source_total Cached tokens of prompts, by where they were.\n# TYPE vllm:prompt_tokens_cached_by_source_total counter\n")
	for i := range loads {
		l := &loads[i]
		fmt.Fprintf(b, "vllm:prompt_tokens_cached_by_source_total{%s,source=\"device\"} %d\n", labels(l), l.CachedTokens-l.LoadedTokens)
		fmt.Fprintf(b, "vllm:prompt_tokens_cached_by_source_total{%s,source=\"host\"} %d\n", labels(l), l.LoadedTokens)
	}
	b.WriteString("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n")
	for r := range c.Ranks {
		fmt.Fprintf(b, "vllm:cache_config_info{block_size=\"%d\",enable_prefix_caching=\"True\",engine=\"%d\",num_gpu_blocks=\"%d\"} 1\n", c.BlockSize, r, c.Blocks)
	}
	f.worker.first.write(b, "vllm:time_to_first_token_seconds", c.Model)
}

// sglangMetrics writes what SGLang says, its names after prefix.
func (f *HTTPFront) sglangMetrics(b *strings.Builder, prefix string) {
	c := &f.engine.cfg
	labels := func(l *Load) string { return fmt.Sprintf(`dp_rank="%d",model_name=%q`, l.Rank, c.Model) }
	write(b, []family{
		{prefix + "num_running_reqs", "gauge", "The number of running requests.", func(l *Load) float64 { return float64(l.Running) }},
		{prefix + "num_queue_reqs", "gauge", "The number of requests in the waiting queue.", func(l *Load) float64 { return float64(l.Waiting) }},
		{prefix + "token_usage", "gauge", "The token usage.", func(l *Load) float64 { return ratio(l.UsedTokens, l.MaxTokens) }},
		{prefix + "num_used_tokens", "gauge", "The number of used tokens.", func(l *Load) float64 { return float64(l.UsedTokens) }},
		{prefix + "max_total_num_tokens", "gauge", "The number of tokens that the cache holds.", func(l *Load) float64 { return float64(l.MaxTokens) }},
		{prefix + "max_running_requests", "gauge", "The number of requests that may run.", func(l *Load) float64 { return float64(l.MaxRunning) }},
		{prefix + "num_waiting_uncached_tokens", "gauge", "Tokens of waiting requests that are not cached.", func(l *Load) float64 { return float64(l.WaitingUncached) }},
		{prefix + "gen_throughput", "gauge", "The generation throughput (token/s).", func(l *Load) float64 { return l.Throughput }},
		{prefix + "cache_hit_rate", "gauge", "The prefix cache hit rate.", func(l *Load) float64 { return l.HitRate }},
		{prefix + "prompt_tokens_total", "counter", "Number of prefill tokens processed.", func(l *Load) float64 { return float64(l.PromptTokens) }},
		{prefix + "generation_tokens_total", "counter", "Number of generation tokens processed.", func(l *Load) float64 { return float64(l.OutputTokens) }},
	}, f.engine.Loads(), labels)
}

// firstBuckets are the bounds of vLLM's histogram of first tokens, in s.
var firstBuckets = [...]float64{
	0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
}

// histogram counts times until a first token, by rank.
//
// Concurrency: any goroutine.
type histogram struct {
	mu    sync.Mutex
	ranks []histogramRank // guarded by mu
}

type histogramRank struct {
	counts [len(firstBuckets) + 1]uint64
	sum    float64 // s
}

func (h *histogram) add(rank int, s float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.ranks) <= rank {
		h.ranks = append(h.ranks, histogramRank{})
	}
	i := 0
	for i < len(firstBuckets) && s > firstBuckets[i] {
		i++
	}
	h.ranks[rank].counts[i]++
	h.ranks[rank].sum += s
}

func (h *histogram) write(b *strings.Builder, name, model string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Fprintf(b, "# HELP %s Histogram of time to first token in seconds.\n# TYPE %s histogram\n", name, name)
	for r := range h.ranks {
		all, n := &h.ranks[r], uint64(0)
		for i, c := range all.counts {
			n += c
			bound := "+Inf"
			if i < len(firstBuckets) {
				bound = strconv.FormatFloat(firstBuckets[i], 'g', -1, 64)
			}
			fmt.Fprintf(b, "%s_bucket{engine=\"%d\",le=%q,model_name=%q} %d\n", name, r, bound, model, n)
		}
		fmt.Fprintf(b, "%s_sum{engine=\"%d\",model_name=%q} %v\n%s_count{engine=\"%d\",model_name=%q} %d\n", name, r, model, all.sum, name, r, model, n)
	}
}
