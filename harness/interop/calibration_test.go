// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kindex/harness/mockworker/engine"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

const (
	calibrationRequests = 300
	calibrationBudget   = 256 // tokens of a pass: long prompts take several
)

// TestCalibration puts the same 300 requests, one at a time, to a real engine and to
// the mock engine's model of the same cache: shared prefixes, exact repeats, salts,
// more than the cache holds, prompts longer than a pass. What is found cached must
// be equal on each, and so must the events, batch by batch: hashes, order, every
// field. The model is given the real one's tokens; a batch's time is its own.
func TestCalibration(t *testing.T) {
	if !inNamespace(t, 15*time.Minute, func() { vllmEnv.install(t) }) {
		return
	}
	began := time.Now()
	server := startVLLM(t, []string{"VLLM_ENABLE_V1_MULTIPROCESSING=0"}, "--distributed-executor-backend", "uni", "--skip-tokenizer-init",
		"--prefix-caching-hash-algo", "sha256_cbor", "--max-num-batched-tokens", strconv.Itoa(calibrationBudget))
	api := newClient(vllmPort)
	api.http.Timeout = time.Minute
	api.awaitUp(t, server, 8*time.Minute)
	t.Logf("engine up after %.0f s", time.Since(began).Seconds())

	// The engine keeps one block of its own for itself.
	model, err := engine.NewModel(engine.Config{
		Engine: engine.VLLM, Version: "0.32.0", Hash: "sha256_cbor", BlockSize: vllmBlock, Blocks: vllmBlocks - 1,
		Budget: calibrationBudget, MaxRunning: 8, ContextLength: vllmContext, Vocabulary: vllmVocab,
	})
	if err != nil {
		t.Fatal(err)
	}
	work := newConversation(3)
	var ours [][]kv.Event
	var equal, prompt, reused, hits int
	began = time.Now()
	for i := range calibrationRequests {
		req := work.next()
		output, cached := complete(t, api, req)
		work.answered(req, output)
		got, batches := askModel(t, model, fmt.Sprint(i), req, output)
		ours = append(ours, batches...)
		prompt, reused = prompt+len(req.Prompt), reused+cached
		if cached > 0 {
			hits++
		}
		if got == cached {
			equal++
		} else {
			t.Errorf("request %d of %d tokens: %d cached, the engine says %d", i, len(req.Prompt), got, cached)
		}
	}
	t.Logf("%d requests in %.0f s: cached tokens equal on %d; %d of %d prompt tokens cached, %d requests with a hit",
		calibrationRequests, time.Since(began).Seconds(), equal, reused, prompt, hits)
	if hits < 90 || hits == calibrationRequests {
		t.Errorf("%d of %d requests hit: the workload shows little", hits, calibrationRequests)
	}
	newest := newEngineCursor(t, "tcp://127.0.0.1:15657")
	newest.last(t) // once all is published
	compareBatches(t, replayAll(t, "tcp://127.0.0.1:15657"), ours)
}

// askModel puts one request to a model, and returns what it found cached and the
// events of each pass that had any.
func askModel(t *testing.T, m *engine.Model, id string, req *completion, answer []uint32) (cached int, batches [][]kv.Event) {
	t.Helper()
	out, err := m.Submit(engine.Request{ID: id, Tokens: req.Prompt, Salt: req.Salt, MaxTokens: len(answer), Answer: answer})
	if err != nil {
		t.Fatal(err)
	}
	for {
		events, ok := m.Step()
		if !ok {
			break
		}
		if len(events) > 0 {
			batches = append(batches, events)
		}
	}
	var tokens []uint32
	for o := range out {
		cached = o.Cached
		tokens = append(tokens, o.Token)
	}
	if !slices.Equal(tokens, answer) {
		t.Fatalf("request %s: the model answered %v, it was given %v", id, tokens, answer)
	}
	return cached, batches
}

// compareBatches holds what the model published against the engine's whole history.
// Ours goes through the engine's wire, so that a field that the engine leaves out is
// none of ours.
func compareBatches(t *testing.T, engineBatches [][]byte, ours [][]kv.Event) {
	t.Helper()
	layout, err := wire.LayoutFor(engine.VLLM, "0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	var stores, removals, blocks, longer int
	var dec wire.Decoder
	for i := range max(len(engineBatches), len(ours)) {
		var want, got kv.Batch
		if i < len(engineBatches) {
			if err := dec.Decode(engineBatches[i], &want); err != nil {
				t.Fatalf("batch %d: %v", i, err)
			}
		}
		if i < len(ours) {
			mine := kv.Batch{Timestamp: want.Timestamp, Rank: want.Rank, HasRank: want.HasRank, Events: ours[i]}
			if err := dec.Decode(wire.AppendBatch(nil, &mine, layout), &got); err != nil {
				t.Fatalf("our batch %d: %v", i, err)
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(kv.Batch{}, "Storage")); diff != "" {
			t.Fatalf("batch %d of %d and %d (-engine +model):\n%.4000s", i, len(engineBatches), len(ours), diff)
		}
		for k := range want.Events {
			switch e := &want.Events[k]; e.Kind {
			case kv.KindStored:
				stores++
				blocks += len(e.Hashes)
				if k > 0 && want.Events[k-1].Kind == kv.KindRemoved {
					longer++
				}
			case kv.KindRemoved:
				removals++
			default:
			}
		}
	}
	t.Logf("%d batches equal: %d stores of %d blocks, %d removals, %d stores right behind a removal",
		len(engineBatches), stores, blocks, removals, longer)
	if len(engineBatches) < calibrationRequests || removals < 500 || longer < 50 {
		t.Error("the events show little")
	}
}
