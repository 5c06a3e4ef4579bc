// SPDX-License-Identifier: Apache-2.0

package prompt_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/prompt"
	"kindex/gateway/upstream"
	"kindex/harness/mockworker/engine"
)

// against is a resolver before mock engines.
type against struct {
	t      *testing.T
	pool   *fleet.Pool
	client *upstream.Client
	r      *prompt.Resolver
}

func newAgainst(t *testing.T, kind string, n int, o prompt.Options) *against {
	t.Helper()
	f, err := engine.OpenFleet(engine.Config{
		Engine: kind, HTTP: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", Model: "m", LoRA: []string{"tuned"}, MaxTokens: 2, Quiet: true, ContextLength: 1 << 20, Blocks: 1 << 16,
	}, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	a := &against{t: t, client: upstream.New(upstream.DefaultOptions())}
	t.Cleanup(a.client.Close)
	var all []*fleet.Worker
	for i, e := range f.Workers() {
		w := fleet.NewWorker(fmt.Sprint(i), &fleet.Spec{URL: "http://" + e.HTTP(), Engine: kind, Models: []string{"m"}, Ranks: 1, Instance: fmt.Sprint(i), BlockSize: 16})
		w.SetState(fleet.Ready)
		all = append(all, w)
	}
	a.pool = fleet.NewPool("m", 1, all)
	o.Client = a.client
	a.r = prompt.New(o)
	t.Cleanup(a.r.Close)
	return a
}

var routes = map[openai.Kind]string{openai.Chat: "/v1/chat/completions", openai.Completion: "/v1/completions", openai.Embedding: "/v1/embeddings", openai.Generate: "/generate"}

// check sends a request and holds what was found of its prompt against what the engine
// made of it.
func (a *against) check(kind openai.Kind, body string) (p prompt.Prompt) {
	a.t.Helper()
	var c openai.Call
	if err := openai.Parse(kind, []byte(body), &c); err != nil {
		a.t.Errorf("%.200s: %v", body, err)
		return p
	}
	a.r.Resolve(a.t.Context(), a.pool, &c, &p)
	status, answer, err := a.client.Post(a.t.Context(), a.pool.Workers[0], routes[kind], []byte(body), 64<<20)
	if err != nil || status != 200 {
		a.t.Errorf("%.200s: %d %.300s %v", body, status, answer, err)
		return p
	}
	var u openai.Usage
	openai.ScanUsage(answer, &u)
	a.r.Confirm(&c, &p, u)
	var said struct {
		Choices []struct {
			Prompt []uint32 `json:"prompt_token_ids"`
		} `json:"choices"`
	}
	_ = json.Unmarshal(answer, &said)
	if p.Source == prompt.None || c.Prompts > 1 {
		return p
	}
	if len(said.Choices) > 0 && said.Choices[0].Prompt != nil && !slices.Equal(said.Choices[0].Prompt, p.Tokens) && !p.Partial {
		a.t.Errorf("%.200s: %d tokens from %v, the engine has %d", body, len(p.Tokens), p.Source, len(said.Choices[0].Prompt))
	}
	if p.Partial && len(said.Choices) > 0 && (len(said.Choices[0].Prompt) < len(p.Tokens) || !slices.Equal(said.Choices[0].Prompt[:len(p.Tokens)], p.Tokens)) {
		a.t.Errorf("%.200s: %d tokens are not the first of the engine's %d", body, len(p.Tokens), len(said.Choices[0].Prompt))
	}
	if u.Known && !p.Partial && u.Prompt != int64(len(p.Tokens)) {
		a.t.Errorf("%.200s: %d tokens from %v, the engine says %d", body, len(p.Tokens), p.Source, u.Prompt)
	}
	return p
}

// TestEngines: in every shape a prompt has the tokens that the engine makes of it.
func TestEngines(t *testing.T) {
	long := strings.Repeat("w1 w2 w3 ", 20)
	for _, kind := range []string{engine.VLLM, engine.SGLang} {
		t.Run(kind, func(t *testing.T) {
			a := newAgainst(t, kind, 2, prompt.Options{Budget: time.Minute})
			for _, c := range []struct {
				kind openai.Kind
				body string
				want prompt.Source
			}{
				{openai.Completion, `{"model":"m","prompt":[5,6,7],"return_token_ids":true}`, prompt.Given},
				{openai.Completion, `{"model":"m","prompt":"` + long + `","return_token_ids":true}`, prompt.Asked},
				{openai.Completion, `{"model":"m","prompt":"` + long + `","return_token_ids":true}`, prompt.Cached},
				{openai.Completion, `{"model":"tuned","prompt":"` + long + `","return_token_ids":true}`, prompt.Asked},
				{openai.Completion, `{"model":"m","prompt":["` + long + `","b"]}`, prompt.Cached},
				{openai.Completion, `{"model":"m","prompt":"caf\u00e9 \"x\" \ud83d\ude00\n\t` + long + `","return_token_ids":true}`, prompt.Asked},
				{openai.Chat, `{"model":"m","messages":[{"role":"system","content":"w1"},{"role":"user","content":[{"type":"text","text":"w2 w3"}]}],"return_token_ids":true}`, prompt.Asked},
				{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"w2 w3"},{"role":"assistant","content":null,"tool_calls":[]},{"role":"tool","content":"4"}],"tools":[{"type":"function","function":{"name":"f"}}],"return_token_ids":true}`, prompt.Asked},
				{openai.Chat, `{"model":"m","messages":[{"role":"system","content":"` + long + `"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y"}},{"type":"text","text":"w2 w3"}]}],"return_token_ids":true}`, prompt.Asked},
				{openai.Embedding, `{"model":"m","input":"` + long + `"}`, prompt.Cached},
			} {
				if p := a.check(c.kind, c.body); p.Source != c.want {
					t.Errorf("%.200s: from %v (%s), want %v", c.body, p.Source, p.Why, c.want)
				}
			}
			if kind == engine.SGLang {
				if p := a.check(openai.Generate, `{"text":"`+long+`","sampling_params":{"max_new_tokens":2}}`); p.Source != prompt.Asked {
					t.Errorf("/generate: from %v (%s)", p.Source, p.Why)
				}
				a.check(openai.Generate, `{"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":2}}`)
			}
			if s := a.r.Stats(); s.Mismatches != 0 || s.Confirmed < 7 || s.Failed != 0 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// TestEngineConversations: many conversations at once grow by short questions, and every
// turn has the engine's tokens.
func TestEngineConversations(t *testing.T) {
	a := newAgainst(t, engine.VLLM, 3, prompt.Options{Budget: time.Minute, CacheBytes: 8 << 20})
	const turns = 12
	var whole, sent sync.Map
	talk := func(id int) {
		rng := rand.New(rand.NewPCG(uint64(id), 1))
		say := func(role string, n int) string {
			return fmt.Sprintf(`{"role":%q,"content":%q}`, role, strings.TrimSpace(strings.Repeat(fmt.Sprintf("w%d é世 ", rng.IntN(2_000)), n)))
		}
		all := []string{say("system", 400), say("user", 10)}
		for turn := range turns {
			body := fmt.Sprintf(`{"model":"m","messages":[%s],"return_token_ids":true,"seed":%d}`, strings.Join(all, ","), rng.IntN(9))
			p := a.check(openai.Chat, body)
			sent.Store([2]int{id, turn}, p.Source)
			whole.Store([2]int{id, turn}, len(body))
			all = append(all, say("assistant", 30), say("user", 5+rng.IntN(20)))
		}
	}
	talk(0)
	var others sync.WaitGroup
	for id := 1; id < 6; id++ {
		others.Go(func() { talk(id) })
	}
	others.Wait()
	bytes, from := 0, map[prompt.Source]int{}
	whole.Range(func(_, v any) bool { bytes += v.(int); return true })
	sent.Range(func(_, v any) bool { from[v.(prompt.Source)]++; return true })
	s := a.r.Stats()
	t.Logf("%v: %d questions of %d bytes for %d bytes of chats; compared %d", from, s.Calls, s.SentBytes, bytes, s.Compared)
	if s.Differences != 0 || s.Mismatches != 0 || s.Confirmed != 6*turns || from[prompt.Grown] < 50 || s.SentBytes > uint64(bytes)*2/3 {
		t.Errorf("%v, counted %+v", from, s)
	}
}
