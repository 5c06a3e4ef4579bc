// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
)

// mockRequests is how many requests go through the peer's gateway to each fleet.
const mockRequests = 500

// TestPeerGatewayMocks has the peer's released gateway route over four mock engines
// as they are, with no relay beside them: by gRPC, where they answer
// SubscribeKvEvents themselves, and by HTTP. No request may fail, and each engine
// must get some.
func TestPeerGatewayMocks(t *testing.T) {
	if !inNamespace(t, 10*time.Minute, func() {
		smgEnv.install(t)
		build(t, "mockworker")
	}) {
		return
	}
	tokenizer := writeTokenizer(t)
	for i, test := range []struct{ kind, front string }{
		{engine.VLLM, "grpc"}, {engine.SGLang, "grpc"}, {engine.VLLM, "http"}, {engine.SGLang, "http"},
	} {
		name := test.kind + " by " + test.front
		m := startMock(t, fmt.Sprintf("mocks%d", i), test.kind, "--fleet", "4", "--block", "16", "--blocks", "2000", "--ranks", "1",
			"--vocabulary", fmt.Sprint(mockVocab), "--model-path", tokenizer)
		var urls []string
		for _, w := range m.Workers {
			if test.front == "grpc" {
				urls = append(urls, "grpc://"+w.GRPC)
			} else {
				urls = append(urls, "http://"+w.HTTP)
			}
		}
		g := startSMG(t, fmt.Sprintf("gateway%d", i), 28400+10*i, tokenizer, urls)
		g.many(t, name, mockRequests)
		got := map[string]int{}
		cached := 0
		var page engine.RequestsPage
		m.admin.must(t, 200, "GET", "/admin/requests?limit=10000", nil, &page)
		for _, r := range page.Requests {
			got[r.Worker]++
			cached += r.Cached
			if r.Finish != "length" {
				t.Errorf("%s: request %s ended with %q: %s", name, r.ID, r.Finish, r.Error)
			}
		}
		if len(page.Requests) != mockRequests || len(got) != 4 {
			t.Errorf("%s: %d requests came, by worker %v; want %d, some to each", name, len(page.Requests), got, mockRequests)
		}
		counters := g.counters(t)
		batches := total(counters, "smg_kv_event_batches_total", `disposition="applied"`)
		if test.front == "grpc" && batches == 0 {
			t.Errorf("%s: the gateway applied no batch of events", name)
		}
		t.Logf("%s: by worker %v, %d tokens cached, %v batches of events", name, got, cached, batches)
		g.several(t, name)
		g.kill()
		m.kill()
	}
}

// several asks for three answers to one prompt: all of them come.
func (g *smgGateway) several(t *testing.T, name string) {
	t.Helper()
	data, err := json.Marshal(map[string]any{"model": "mock", "prompt": words([]uint32{5, 6, 7, 8, 9}), "max_tokens": 4, "n": 3})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := g.api.http.Post(g.api.base+"/v1/completions", "application/json", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var said struct {
		Choices []struct {
			Index  int    `json:"index"`
			Text   string `json:"text"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || resp.StatusCode != http.StatusOK || len(said.Choices) != 3 {
		t.Errorf("%s: three answers: %s, %v, %+v", name, resp.Status, err, said)
	}
	for i, c := range said.Choices {
		if c.Text == "" || c.Finish != "length" || c.Index < 0 || c.Index > 2 {
			t.Errorf("%s: choice %d: %+v", name, i, c)
		}
	}
}

// many puts n requests, eight at a time, a third of them with a beginning in common.
func (g *smgGateway) many(t *testing.T, name string, n int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	tokens := func(n int) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = 3 + rng.Uint32N(mockVocab-3)
		}
		return out
	}
	head := tokens(300)
	prompts := make(chan []uint32)
	var all sync.WaitGroup
	for k := range 8 {
		all.Go(func() {
			for i := 0; ; i++ {
				prompt, more := <-prompts
				if !more {
					return
				}
				if _, err := g.ask(prompt, 1+(i+k)%12, (i+k)%2 == 0); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	for i := range n {
		prompt := tokens(20 + rng.IntN(300))
		if i%3 == 0 {
			prompt = append(slices.Clip(head), prompt...)
		}
		prompts <- prompt
	}
	close(prompts)
	all.Wait()
}
