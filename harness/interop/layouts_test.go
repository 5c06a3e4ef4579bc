// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
	"kindex/relay/wire"
)

const layoutBlock = 8 // tokens

// TestMockLayouts has mock engines publish in every layout of every engine that we
// know, and with all that a cache can have beside its one group. Our index host must
// hold exactly what each holds, block for block, through evictions, adapters, salts
// and resets; Dynamo's indexer must answer with the truth as far as it keeps to what
// it can know: one prompt at a time, no block twice, one namespace.
func TestMockLayouts(t *testing.T) {
	if !inNamespace(t, 15*time.Minute, func() {
		dynamoEnv.install(t)
		buildIndexsrv(t)
	}) {
		return
	}
	host := startIndexsrv(t)
	peer := start(t, "dynamo", nil, dynamoEnv.python(t), "-m", "dynamo.indexer", "--port", strconv.Itoa(dynamoPort))
	theirs := newClient(dynamoPort)
	theirs.awaitUp(t, peer, time.Minute)
	cases := map[string]engine.Config{
		"windows":     {Engine: engine.VLLM, Windows: []int{20, 20}, Blocks: 300},
		"dense":       {Engine: engine.VLLM, Windows: []int{30}, Retention: -1, Blocks: 300},
		"placeholder": {Engine: engine.VLLM, HostBlocks: 300},
		"described":   {Engine: engine.VLLM, HostBlocks: 300, Offload: engine.OffloadDescribed},
		"hicache":     {Engine: engine.SGLang, HostBlocks: 300},
		"digests":     {Engine: engine.VLLM, Digests: true},
		"window-only": {Engine: engine.VLLM, Windows: []int{20}, WindowOnly: true, Blocks: 300},
		"lookahead":   {Engine: engine.VLLM, Lookahead: 3},
		"chunks":      {Engine: engine.VLLM, HostBlocks: 90, Offload: engine.OffloadDescribed, Chunk: 3},
		"simple":      {Engine: engine.VLLM, HostBlocks: 90, Offload: engine.OffloadSimple},
		"disk":        {Engine: engine.VLLM, HostBlocks: 60, DiskBlocks: 200, DiskOwner: "shelf", Offload: engine.OffloadDescribed},
		"remote":      {Engine: engine.VLLM, DiskBlocks: 200, DiskRemote: true, Offload: engine.OffloadSimple},
		"both":        {Engine: engine.VLLM, Windows: []int{20, 50}, HostBlocks: 200, Offload: engine.OffloadDescribed, Blocks: 300},
		"pairs":       {Engine: engine.SGLang, Bigram: true},
		"selective":   {Engine: engine.SGLang, HostBlocks: 300, HostPolicy: engine.WriteSelected},
		"write-back":  {Engine: engine.SGLang, HostBlocks: 100, HostPolicy: engine.WriteBack},
	}
	for _, l := range wire.Layouts() {
		cases[l.Engine+"-"+l.Since] = engine.Config{Engine: l.Engine, Version: l.Since}
	}
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		c, with := cases[name], theirs
		if len(c.Windows) > 0 || c.HostBlocks > 0 || c.DiskBlocks > 0 || c.Digests || c.Lookahead > 0 || c.Bigram {
			with = nil // it reads no digests, and its answers know no windows and no names that cover more
		}
		t.Run(name, func(t *testing.T) { playLayout(t, host, with, c, name, i+1) })
	}
}

// mockStream is a mock engine and what separates its prompts.
type mockStream struct {
	engine *engine.Engine
	rng    *rand.Rand
	lora   []string // "" among them
	salts  []string
	n      int
}

// playLayout plays one; theirs is nil where the peer is not asked.
func playLayout(t *testing.T, host *indexHost, theirs *client, c engine.Config, model string, id int) {
	c.Pub, c.Replay, c.Topic, c.Ranks, c.BlockSize, c.Budget = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "kv", 2, layoutBlock, 256
	if c.Blocks == 0 {
		c.Blocks = 150
	}
	s := &mockStream{rng: rand.New(rand.NewPCG(uint64(id), 11)), lora: []string{""}, salts: []string{""}}
	if l, err := wire.LayoutFor(c.Engine, newestOf(c)); err != nil {
		t.Fatal(err)
	} else if tells(l, wire.FieldLoRAName) && (c.Engine == engine.SGLang || tells(l, wire.FieldExtraKeys)) {
		s.lora, c.LoRA = []string{"", "one", "two"}, []string{"one", "two"}
		s.salts = []string{"", "salt", "pepper"}
	} else if tells(l, wire.FieldSalt) {
		s.salts = []string{"", "salt", "pepper"}
	}
	var err error
	if s.engine, err = engine.New(c); err != nil {
		t.Fatal(err)
	}
	defer s.engine.Close()
	clients := []*client{host.client}
	if theirs != nil {
		clients = append(clients, theirs)
	}
	for _, client := range clients {
		for rank, p := range s.engine.Publishers() {
			client.must(t, http.StatusCreated, http.MethodPost, "/register", registration{id, p.Live, p.Replay, model, layoutBlock, rank}, nil)
		}
	}
	truth := func() content { return truthContent(s.engine.Truth(), len(c.Windows)) }
	if theirs != nil {
		s.awaitDynamo(t, theirs, model, id)
	}

	// One at a time, each prompt with an end of its own that fills no block.
	var asked [][]uint32
	for range 60 {
		prompt := s.prompt(asked)
		asked = append(asked, prompt)
		s.serve(t, [][]uint32{prompt}, true)
	}
	host.awaitContent(t, 30*time.Second, model, "one at a time", truth)
	if theirs != nil {
		holdDynamo(t, theirs, s.engine, asked, model, id)
	}

	// Side by side, in all namespaces, with resets.
	for round := range 12 {
		var prompts [][]uint32
		for range 6 {
			prompts = append(prompts, s.prompt(asked))
		}
		s.serve(t, prompts, false)
		if round%5 == 4 && s.engine.Reset() {
			s.serve(t, prompts[:1], false) // the clear is told with the next pass
			s.serve(t, prompts[1:2], false)
		}
	}
	host.awaitContent(t, 30*time.Second, model, "side by side", truth)
}

// awaitDynamo asks for answers until the peer hears of both ranks: what a
// subscription missed is not told again. Then the caches are emptied.
func (s *mockStream) awaitDynamo(t *testing.T, theirs *client, model string, id int) {
	t.Helper()
	eventually(t, 30*time.Second, "Dynamo's indexer to hear of the engine", func() (bool, string) {
		prompt := s.prompt(nil)
		s.serve(t, [][]uint32{prompt, prompt}, true)
		time.Sleep(20 * time.Millisecond)
		r := theirs.ask(t, &question{Model: model, Tokens: prompt})
		return len(r.Scores[strconv.Itoa(id)]) == 2, fmt.Sprint(r.Scores)
	})
	if !s.engine.Reset() {
		t.Fatal("nothing runs and the caches cannot be emptied")
	}
}

func newestOf(c engine.Config) string {
	if c.Version != "" {
		return c.Version
	}
	version := ""
	for _, l := range wire.Layouts() {
		if l.Engine == c.Engine {
			version = l.Since
		}
	}
	return version
}

func tells(l *wire.Layout, field wire.Field) bool {
	return slices.ContainsFunc(l.Stored, func(f wire.LayoutField) bool { return f.Field == field })
}

// prompt returns a new prompt, which goes on from an earlier one's beginning.
func (s *mockStream) prompt(asked [][]uint32) []uint32 {
	var out []uint32
	if len(asked) > 0 && s.rng.IntN(4) > 0 {
		from := asked[s.rng.IntN(len(asked))]
		out = append(out, from[:s.rng.IntN(len(from))]...)
	}
	for range 10 + s.rng.IntN(80) {
		out = append(out, 3+s.rng.Uint32N(2_000))
	}
	if len(out)%layoutBlock == 0 {
		out = append(out, 3)
	}
	return out[:min(len(out), 400/layoutBlock*layoutBlock+1)]
}

// serve has prompts answered side by side, and waits for them. plain ones are of no
// namespace and have an answer that is no block.
func (s *mockStream) serve(t *testing.T, prompts [][]uint32, plain bool) {
	t.Helper()
	var open []<-chan engine.Output
	for _, p := range prompts {
		q := engine.Request{ID: fmt.Sprint(s.n), Tokens: p, MaxTokens: 1, Rank: s.n % 2}
		if !plain {
			q.MaxTokens = 1 + s.rng.IntN(40)
			q.LoRA, q.Salt, q.Session = s.lora[s.rng.IntN(len(s.lora))], s.salts[s.rng.IntN(len(s.salts))], "session"
		}
		out, err := s.engine.Submit(q)
		if err != nil {
			t.Fatal(err)
		}
		s.n++
		open = append(open, out)
	}
	for _, out := range open {
		for range out { // to its end
		}
	}
}

// holdDynamo waits until the peer's indexer answers every prompt with the truth.
func holdDynamo(t *testing.T, theirs *client, e *engine.Engine, asked [][]uint32, model string, id int) {
	t.Helper()
	questions, hits := 0, 0
	eventually(t, 30*time.Second, "Dynamo's indexer to be exact", func() (bool, string) {
		questions, hits = 0, 0
		wrong := ""
		for _, prompt := range asked {
			r := theirs.ask(t, &question{Model: model, Tokens: prompt})
			for _, want := range e.Reuse(prompt, "") {
				questions++
				got := r.Scores[strconv.Itoa(id)][strconv.Itoa(want.Rank)]
				if want.Held > 0 {
					hits++
				}
				if got != want.Held*layoutBlock && wrong == "" {
					wrong = fmt.Sprintf("rank %d holds %d tokens of a prompt of %d, it says %d", want.Rank, want.Held*layoutBlock, len(prompt), got)
				}
			}
		}
		return wrong == "", wrong
	})
	if hits == 0 || hits == questions {
		t.Errorf("%d of %d questions had a hit: they show little", hits, questions)
	}
}
