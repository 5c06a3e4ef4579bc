// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mockVocab is how many words the mock engines' tokenizer has.
const mockVocab = 2048

// writeTokenizer writes the smallest tokenizer that a gateway loads: word wN is
// token N. It returns its folder.
func writeTokenizer(t *testing.T) string {
	t.Helper()
	special := []string{"<unk>", "<s>", "</s>"}
	vocab := map[string]int{}
	var added []map[string]any
	for i, word := range special {
		vocab[word] = i
		added = append(added, map[string]any{
			"id": i, "content": word, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	for i := len(special); i < mockVocab; i++ {
		vocab["w"+strconv.Itoa(i)] = i
	}
	dir := t.TempDir()
	for name, content := range map[string]any{
		"tokenizer.json": map[string]any{
			"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
			"pre_tokenizer": map[string]any{"type": "WhitespaceSplit"}, "post_processor": nil, "decoder": nil,
			"model": map[string]any{"type": "WordLevel", "vocab": vocab, "unk_token": special[0]},
		},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": special[0], "bos_token": special[1], "eos_token": special[2],
			"model_max_length": 131072,
		},
		"config.json": map[string]any{
			"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": mockVocab,
			"max_position_embeddings": 131072, "bos_token_id": 1, "eos_token_id": 2,
		},
	} {
		data, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// words writes tokens as that tokenizer reads them.
func words(tokens []uint32) string {
	var b strings.Builder
	for i, token := range tokens {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteByte('w')
		b.WriteString(strconv.Itoa(int(token)))
	}
	return b.String()
}

// smgGateway is the peer's gateway.
type smgGateway struct {
	*process
	api     *client
	metrics string // URL
}

// startSMG starts the peer's gateway, its decisions by events alone: nothing is
// diverted to warm a worker up.
func startSMG(t *testing.T, name string, port int, tokenizer string, workers []string) *smgGateway {
	t.Helper()
	g := &smgGateway{api: newClient(port), metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", port+1)}
	args := []string{
		filepath.Join(filepath.Dir(smgEnv.python(t)), "smg"), "launch",
		"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(port + 1),
		"--backend", "vllm", "--model-path", tokenizer, "--policy", "cache_aware", "--kv-index", "chain", "--log-level", "warn",
		"--worker-warmup-secs", "0", "--worker-warmup-thin-ratio", "0", "--worker-warmup-divert-every", "0", "--worker-urls",
	}
	g.process = start(t, name, nil, append(args, workers...)...)
	g.awaitWorkers(t, len(workers))
	return g
}

// awaitWorkers waits until n workers can be routed to.
func (g *smgGateway) awaitWorkers(t *testing.T, n int) {
	t.Helper()
	eventually(t, 60*time.Second, g.name+" to have its workers", func() (bool, string) {
		if g.exited() {
			t.Fatalf("%s ended: %s", g.name, g.tail())
		}
		var ready struct {
			Healthy int `json:"healthy_workers"`
		}
		_, err := g.api.call(http.MethodGet, "/readiness", nil, &ready)
		return err == nil && ready.Healthy == n, fmt.Sprintf("%d of %d workers: %v", ready.Healthy, n, err)
	})
}

// smgAnswer is what the gateway says of one request.
type smgAnswer struct {
	worker string // URL; "" where it did not say
	prompt int    // tokens
	cached int    // tokens
	output int    // tokens
}

// ask puts a prompt to the gateway.
func (g *smgGateway) ask(prompt []uint32, most int, stream bool) (a smgAnswer, err error) {
	body := map[string]any{"model": "mock", "prompt": words(prompt), "max_tokens": most, "stream": stream}
	if stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	resp, err := g.api.http.Post(g.api.base+"/v1/completions", "application/json", bytes.NewReader(data))
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(resp.Body)
		return a, fmt.Errorf("%s: %.300s", resp.Status, said)
	}
	a.worker = resp.Header.Get("X-Smg-Routed-Worker-Id")
	var last struct {
		Usage *struct {
			Prompt  int `json:"prompt_tokens"`
			Output  int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if stream {
		done := false
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			event, ok := strings.CutPrefix(lines.Text(), "data: ")
			switch {
			case !ok:
			case event == "[DONE]":
				done = true
			default:
				if err := json.Unmarshal([]byte(event), &last); err != nil {
					return a, fmt.Errorf("%w in %.300s", err, event)
				}
			}
		}
		if err := lines.Err(); err != nil || !done {
			return a, fmt.Errorf("a stream without end: %w", err)
		}
	} else if err := json.NewDecoder(resp.Body).Decode(&last); err != nil {
		return a, err
	}
	if last.Usage == nil {
		return a, fmt.Errorf("an answer without usage")
	}
	a.prompt, a.output, a.cached = last.Usage.Prompt, last.Usage.Output, last.Usage.Details.Cached
	if a.prompt != len(prompt) || a.output != most {
		return a, fmt.Errorf("%d prompt tokens and %d generated, want %d and %d", a.prompt, a.output, len(prompt), most)
	}
	return a, nil
}

// counters reads the gateway's metrics: value by name and labels as it writes
// them.
func (g *smgGateway) counters(t *testing.T) map[string]float64 {
	t.Helper()
	resp, err := g.api.http.Get(g.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && key != "#" && err == nil {
			out[key] = v
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// total adds up a metric over the series that have all of labels, written as
// name="value".
func total(counters map[string]float64, name string, labels ...string) float64 {
	sum := 0.0
series:
	for key, v := range counters {
		rest, ok := strings.CutPrefix(key, name)
		if !ok || rest != "" && rest[0] != '{' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue series
			}
		}
		sum += v
	}
	return sum
}
