// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kindex/harness/mockworker/engine"
	"kindex/internal/kv"
	"kindex/internal/longtest"
)

//go:embed vllm_scheduler.py
var schedulerScript string

// TestRealScheduler drives vLLM's own scheduler, without a model, and the mock
// engine's side by side: requests that run at once, prompts in shares, preemption,
// aborts, clears, admission by the whole prompt and by its first share. After each
// pass the tokens given, what was found cached, the lists' lengths and the events
// must be equal.
func TestRealScheduler(t *testing.T) {
	longtest.Skip(t)
	vllmEnv.install(t)
	s := startScheduler(t)
	var sum comparison
	for seed := range uint64(60) {
		compareScheduler(t, s, rand.New(rand.NewPCG(seed, 17)), &sum)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d requests in %d passes: %d with a hit, %d preemptions, %d aborts, %d clears, %d batches of %d events, all equal",
		sum.requests, sum.passes, sum.hits, sum.preempted, sum.aborts, sum.clears, sum.batches, sum.events)
	if sum.requests < 1_000 || sum.hits < 200 || sum.preempted < 50 || sum.aborts < 20 || sum.clears < 5 || sum.events < 2_000 {
		t.Error("the run shows little")
	}
}

type comparison struct {
	requests, passes, hits, aborts, clears, batches, events int
	preempted                                               uint64
}

// realScheduler is a process that runs vLLM's scheduler.
type realScheduler struct {
	in  io.Writer
	out *json.Decoder
}

func startScheduler(t *testing.T) *realScheduler {
	t.Helper()
	script := filepath.Join(t.TempDir(), "vllm_scheduler.py")
	if err := os.WriteFile(script, []byte(schedulerScript), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(vllmEnv.python(t), script)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_LOGGING_LEVEL=ERROR", "OMP_NUM_THREADS=1")
	cmd.Stderr = io.Discard
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &realScheduler{in, json.NewDecoder(bufio.NewReader(out))}
}

// do has the process do one operation.
func (s *realScheduler) do(t *testing.T, op map[string]any, into any) {
	t.Helper()
	b, err := json.Marshal(op)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.in.Write(append(b, '\n')); err == nil {
		err = s.out.Decode(into)
	}
	if err != nil {
		t.Fatalf("vLLM's scheduler, %s: %v", op["op"], err)
	}
}

// schedulerPass is what a pass of vLLM's scheduler did.
type schedulerPass struct {
	Outputs [][3]any           `json:"outputs"` // id, token, whether it is the last
	Running []string           `json:"running"`
	Waiting []string           `json:"waiting"`
	Batches [][]schedulerEvent `json:"batches"`
	Cached  map[string]int     `json:"cached"` // of requests that got their first token
}

type schedulerEvent struct {
	Kind   string          `json:"k"`
	Hashes []kv.EngineHash `json:"hashes"`
	Parent *kv.EngineHash  `json:"parent"`
	Tokens []uint32        `json:"tokens"`
	Extra  [][]string      `json:"extra"`
}

// twins are the two schedulers with one workload.
type twins struct {
	t     *testing.T
	rng   *rand.Rand
	real  *realScheduler
	model *engine.Model
	sum   *comparison

	outs  map[string]<-chan engine.Output
	order []string // of requests that have not ended, as they came
	past  [][]uint32
	room  int // tokens of the cache
	block int
}

func compareScheduler(t *testing.T, s *realScheduler, rng *rand.Rand, sum *comparison) {
	t.Helper()
	model, err := filepath.Abs("../testdata/fixtures/models/tinyllama")
	if err != nil {
		t.Fatal(err)
	}
	c := engine.Config{
		Engine: engine.VLLM, Hash: "sha256_cbor", BlockSize: 16, Blocks: 8 + rng.IntN(40), Budget: 16 + rng.IntN(200),
		MaxRunning: 1 + rng.IntN(10), AdmitByChunk: rng.IntN(3) == 0,
	}
	c.Budget = max(c.Budget, c.MaxRunning)
	w := &twins{t: t, rng: rng, real: s, sum: sum, outs: map[string]<-chan engine.Output{}, room: min(c.Blocks*c.BlockSize, 900), block: c.BlockSize}
	if w.model, err = engine.NewModel(c); err != nil {
		t.Fatal(err)
	}
	s.do(t, map[string]any{
		"op": "new", "model": model, "blocks": c.Blocks + 1, "block_size": c.BlockSize, "budget": c.Budget,
		"running": c.MaxRunning, "whole": !c.AdmitByChunk,
	}, &struct{}{})
	for n := 0; n < 20 && !t.Failed(); {
		switch k := rng.IntN(12); {
		case k < 4 && len(w.order) < 12:
			for range 1 + rng.IntN(3) {
				w.add(fmt.Sprint(sum.requests))
				n++
			}
		case k == 4 && len(w.order) > 0:
			w.abort(w.order[rng.IntN(len(w.order))])
		case k == 5 && len(w.order) == 0:
			w.reset()
		}
		w.step()
	}
	for len(w.order) > 0 && !t.Failed() {
		w.step()
	}
	sum.preempted += w.model.Load().Preemptions
}

func (w *twins) add(id string) {
	w.t.Helper()
	var tokens []uint32
	if n := len(w.past); n > 0 && w.rng.IntN(3) > 0 {
		p := w.past[n-1-w.rng.IntN(min(n, 6))]
		tokens = slices.Clone(p[:w.rng.IntN(len(p)+1)])
	}
	tail := 1 + w.rng.IntN(w.room/3)
	if w.rng.IntN(4) == 0 {
		tail = (w.block - len(tokens)%w.block) % w.block
	}
	for range tail {
		tokens = append(tokens, 3+w.rng.Uint32N(2))
	}
	if len(tokens) == 0 {
		tokens = []uint32{3}
	}
	tokens = tokens[:min(len(tokens), w.room-50)]
	answer := make([]uint32, 1+w.rng.IntN(50))
	for i := range answer {
		answer[i] = 3 + w.rng.Uint32N(2)
	}
	salt := ""
	if w.rng.IntN(8) == 0 {
		salt = "tenant"
	}
	out, err := w.model.Submit(engine.Request{ID: id, Tokens: tokens, Salt: salt, MaxTokens: len(answer), Answer: answer})
	if err != nil {
		w.t.Fatal(err)
	}
	w.real.do(w.t, map[string]any{"op": "add", "id": id, "tokens": tokens, "salt": salt, "answer": answer}, &struct{}{})
	w.outs[id], w.order = out, append(w.order, id)
	w.past = append(w.past, slices.Concat(tokens, answer))
	w.sum.requests++
}

func (w *twins) abort(id string) {
	w.t.Helper()
	if !w.model.Abort(id) {
		w.t.Fatalf("request %s is not in the model", id)
	}
	w.real.do(w.t, map[string]any{"op": "abort", "id": id}, &struct{}{})
	w.left(id)
	w.sum.aborts++
}

func (w *twins) left(id string) {
	w.order = slices.DeleteFunc(w.order, func(x string) bool { return x == id })
	delete(w.outs, id)
}

func (w *twins) reset() {
	w.t.Helper()
	var said struct{ OK bool }
	w.real.do(w.t, map[string]any{"op": "reset"}, &said)
	if ok := w.model.Reset(); ok != said.OK {
		w.t.Errorf("a reset: %v, vLLM %v", ok, said.OK)
	}
	w.sum.clears++
}

// step makes a pass of both where there is something to do, as the engine's loop.
func (w *twins) step() {
	w.t.Helper()
	if len(w.order) == 0 {
		return
	}
	var pass schedulerPass
	w.real.do(w.t, map[string]any{"op": "step"}, &pass)
	w.sum.passes++
	events, _ := w.model.Step()
	w.compareEvents(&pass, events)
	load := w.model.Load()
	if load.Running != len(pass.Running) || load.Waiting != len(pass.Waiting) {
		w.t.Errorf("%d requests run and %d wait, at vLLM %v and %v", load.Running, load.Waiting, pass.Running, pass.Waiting)
	}
	got := map[string]engine.Output{}
	for id, out := range w.outs {
		select {
		case o := <-out:
			got[id] = o
		default:
		}
	}
	if len(got) != len(pass.Outputs) {
		w.t.Errorf("%d requests got a token, at vLLM %d", len(got), len(pass.Outputs))
	}
	for _, o := range pass.Outputs {
		id, _ := o[0].(string)
		token, _ := o[1].(float64)
		mine, ok := got[id]
		if !ok || mine.Token != uint32(token) || (mine.Finish != "") != (o[2] == true) {
			w.t.Errorf("request %s: vLLM gave %v, the model %+v", id, o, mine)
		}
		if cached, first := pass.Cached[id]; first {
			if mine.Cached != cached || mine.Generated != 1 {
				w.t.Errorf("request %s: token %d, %d tokens cached, at vLLM %d", id, mine.Generated, mine.Cached, cached)
			}
			if cached > 0 {
				w.sum.hits++
			}
		}
		if mine.Finish != "" {
			w.left(id)
		}
	}
}

func (w *twins) compareEvents(pass *schedulerPass, events []kv.Event) {
	w.t.Helper()
	var got [][]schedulerEvent
	if len(events) > 0 {
		got = [][]schedulerEvent{{}}
	}
	for i := range events {
		e := &events[i]
		s := schedulerEvent{Kind: "cleared"}
		switch e.Kind {
		case kv.KindStored:
			s = schedulerEvent{Kind: "stored", Hashes: e.Hashes, Tokens: e.Tokens}
			if e.HasParent {
				s.Parent = &e.Parent
			}
			for _, keys := range e.Extra {
				var all []string
				for _, k := range keys {
					all = append(all, k.ID)
				}
				s.Extra = append(s.Extra, all)
			}
		case kv.KindRemoved:
			s = schedulerEvent{Kind: "removed", Hashes: e.Hashes}
		default:
		}
		got[0] = append(got[0], s)
	}
	want := pass.Batches
	if len(want) == 0 {
		want = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("events (-vLLM +model):\n%.3000s", diff)
	}
	w.sum.batches += len(want)
	w.sum.events += len(events)
}
