// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/relay/wire"
)

// The engine: vLLM's server with a model of two layers and dummy weights, and a
// pool small enough that requests evict one another's blocks.
const (
	vllmPort    = 18000
	vllmBlock   = 32 // tokens; the CPU backend takes multiples of 32 only
	vllmBlocks  = 96
	vllmContext = 1024 // tokens
	vllmVocab   = 2048
)

// TestRealEngine plays one client of a real engine: 200 requests that share
// prefixes, one at a time, each asked of the index first. The prediction must be
// the engine's own cached_tokens on every one.
func TestRealEngine(t *testing.T) {
	if !inNamespace(t, 15*time.Minute, func() {
		vllmEnv.install(t)
		buildIndexsrv(t)
	}) {
		return
	}

	began := time.Now()
	engine := startVLLM(t, []string{"VLLM_ENABLE_V1_MULTIPROCESSING=0"}, "--distributed-executor-backend", "uni", "--skip-tokenizer-init")
	host := startIndexsrv(t)
	reg := registration{
		Instance: 1, Model: "tiny", Block: vllmBlock,
		Endpoint: "tcp://127.0.0.1:15557", Replay: "tcp://127.0.0.1:15657",
	}
	host.must(t, http.StatusCreated, http.MethodPost, "/register", &reg, nil)
	api := newClient(vllmPort)
	api.http.Timeout = time.Minute
	api.awaitUp(t, engine, 8*time.Minute)
	t.Logf("engine up after %.0f s", time.Since(began).Seconds())

	published := newEngineCursor(t, reg.Replay)
	work := newConversation(1)
	var figures struct{ requests, exact, prompt, cached, hits, output int }
	began = time.Now()
	for range 200 {
		req := work.next()
		predicted := predict(host.ask(t, &question{Model: "tiny", Tokens: req.Prompt, Salt: req.Salt}), len(req.Prompt))
		output, cached := complete(t, api, req)
		work.answered(req, output)

		figures.requests++
		figures.prompt += len(req.Prompt)
		figures.output += len(output)
		figures.cached += cached
		if cached > 0 {
			figures.hits++
		}
		if predicted == cached {
			figures.exact++
		} else {
			t.Errorf("request %d of %d tokens: predicted %d cached tokens, the engine says %d",
				figures.requests, len(req.Prompt), predicted, cached)
		}
		if last, ok := published.last(t); ok {
			host.awaitSeq(t, "tiny", map[string]uint64{"0": last})
		}
	}
	t.Logf("%d requests in %.0f s: %d exact; %d of %d prompt tokens cached, %d requests with a hit, %d tokens generated",
		figures.requests, time.Since(began).Seconds(), figures.exact, figures.cached, figures.prompt, figures.hits, figures.output)
	if figures.hits < 60 || figures.hits == figures.requests {
		t.Errorf("%d of %d requests hit: the workload shows little", figures.hits, figures.requests)
	}
	if err := host.server.stop(); err != nil {
		t.Errorf("indexsrv after SIGTERM: %v, want exit 0: %s", err, host.server.tail())
	}
}

// startVLLM starts the engine's server, which takes minutes. The model has no tokenizer:
// args name one, or say that there is none.
func startVLLM(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	model, err := filepath.Abs("../testdata/fixtures/models/tinyllama")
	if err != nil {
		t.Fatal(err)
	}
	return start(t, "vllm", append([]string{
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "VLLM_NO_USAGE_STATS=1",
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_HOST_IP=127.0.0.1",
	}, env...), append([]string{
		vllmEnv.python(t), "-m", "vllm.entrypoints.openai.api_server",
		"--model", model, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", strconv.Itoa(vllmPort),
		"--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16",
		"--max-model-len", strconv.Itoa(vllmContext), "--max-num-seqs", "8",
		"--block-size", strconv.Itoa(vllmBlock), "--num-gpu-blocks-override", strconv.Itoa(vllmBlocks),
		"--enable-prefix-caching", "--enable-prompt-tokens-details",
		"--kv-events-config", `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:15557",` +
			`"replay_endpoint":"tcp://127.0.0.1:15657","topic":"kv-events"}`,
	}, args...)...)
}

// predict returns how many tokens of a prompt of n the engine will find cached:
// whole blocks of what the worker holds, the last token always computed anew.
func predict(r reply, n int) int {
	depth := r.Instances["1"].Longest / vllmBlock
	return min(depth, (n-1)/vllmBlock) * vllmBlock
}

// completion is a request as the engine's API takes it.
type completion struct {
	Model     string   `json:"model"`
	Prompt    []uint32 `json:"prompt"`
	MaxTokens int      `json:"max_tokens"`
	Salt      string   `json:"cache_salt,omitempty"`

	Temperature float64 `json:"temperature"`
	IgnoreEOS   bool    `json:"ignore_eos"`
	Detokenize  bool    `json:"detokenize"`
	ReturnIDs   bool    `json:"return_token_ids"`
}

// complete has the engine answer req and returns its tokens, and how many of the
// prompt's it found cached.
func complete(t *testing.T, api *client, req *completion) (output []uint32, cached int) {
	t.Helper()
	var resp struct {
		Choices []struct {
			Tokens []uint32 `json:"token_ids"`
		} `json:"choices"`
		Usage struct {
			Details *struct {
				Cached *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	api.must(t, http.StatusOK, http.MethodPost, "/v1/completions", req, &resp)
	if len(resp.Choices) != 1 || resp.Usage.Details == nil || resp.Usage.Details.Cached == nil {
		t.Fatalf("the engine answered without token ids or cached_tokens: %+v", resp)
	}
	return resp.Choices[0].Tokens, *resp.Usage.Details.Cached
}

// conversation makes requests as clients do: a few long system prompts, turns
// that go on from an earlier answer, exact repeats, strangers; now and then
// under a salt, which shares nothing with the bare namespace.
type conversation struct {
	rng     *rand.Rand
	systems [][]uint32
	turns   []*completion // earlier requests, their prompts grown by the answers
}

func newConversation(seed uint64) *conversation {
	c := &conversation{rng: rand.New(rand.NewPCG(seed, 0))}
	for range 5 {
		c.systems = append(c.systems, c.tokens(40+c.rng.IntN(300)))
	}
	return c
}

func (c *conversation) tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = 3 + c.rng.Uint32N(vllmVocab-3)
	}
	return out
}

// next returns the next request; its prompt and output fit the context.
func (c *conversation) next() *completion {
	req := &completion{Model: "tiny", MaxTokens: 1 + c.rng.IntN(48), IgnoreEOS: true, ReturnIDs: true}
	var prefix []uint32
	switch kind := c.rng.IntN(10); {
	case kind < 4 && len(c.turns) > 0: // one of the last conversations goes on
		turn := c.turns[len(c.turns)-1-c.rng.IntN(min(8, len(c.turns)))]
		prefix, req.Salt = turn.Prompt, turn.Salt
	case kind < 8:
		prefix = c.systems[c.rng.IntN(len(c.systems))]
		if kind == 7 {
			req.Salt = fmt.Sprintf("tenant-%d", c.rng.IntN(2))
		}
	}
	tail := c.rng.IntN(120)
	if c.rng.IntN(5) == 0 { // exactly to a block's end: the last token is computed anew all the same
		tail = (vllmBlock - len(prefix)%vllmBlock) % vllmBlock
	}
	if len(prefix)+tail == 0 {
		tail = 1 + c.rng.IntN(vllmBlock)
	}
	if len(prefix)+tail+req.MaxTokens >= vllmContext {
		prefix, tail = prefix[:200], 50
	}
	req.Prompt = append(append([]uint32{}, prefix...), c.tokens(tail)...)
	return req
}

// answered makes req's answer a place to go on from.
func (c *conversation) answered(req *completion, output []uint32) {
	grown := *req
	grown.Prompt = append(append([]uint32{}, req.Prompt...), output...)
	c.turns = append(c.turns, &grown)
}

// engineCursor asks the engine's replay socket how far it has published. It is
// independent of the index host.
type engineCursor struct {
	socket *zmq.Socket
	next   uint64 // first sequence not seen yet
}

func newEngineCursor(t *testing.T, endpoint string) *engineCursor {
	t.Helper()
	s, err := zmq.NewSocket(zmq.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, set := range []error{s.SetLinger(0), s.SetRcvtimeo(10 * time.Second), s.Connect(endpoint)} {
		if set != nil {
			t.Fatal(set)
		}
	}
	return &engineCursor{socket: s}
}

// last returns the newest sequence published by the time it was called. The
// publisher takes one batch off its queue between two replay requests: when a
// second answer brings nothing new, the queue was empty in between.
func (e *engineCursor) last(t *testing.T) (seq uint64, ok bool) {
	t.Helper()
	for quiet := 0; quiet < 2; {
		before := e.next
		if _, err := e.socket.SendMessage(anys(wire.MakeReplayRequest(e.next))...); err != nil {
			t.Fatal(err)
		}
		for {
			parts, err := e.socket.RecvMessageBytes(0)
			if err != nil || len(parts) < 3 || len(parts[len(parts)-2]) != 8 {
				t.Fatalf("the engine's replay socket: %v, %d parts", err, len(parts))
			}
			at := binary.BigEndian.Uint64(parts[len(parts)-2])
			if at == 1<<64-1 && len(parts[len(parts)-1]) == 0 {
				break
			}
			e.next = at + 1
		}
		quiet++
		if e.next != before {
			quiet = 0
		}
	}
	return e.next - 1, e.next > 0
}
