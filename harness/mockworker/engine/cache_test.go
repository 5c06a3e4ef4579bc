// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kindex/harness/record"
	"kindex/internal/enginehash"
	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/relay/wire"
)

const fixtures = "../../testdata/fixtures/given/"

// told is what one event says, comparable.
type told struct {
	Kind      kv.Kind
	Hashes    []kv.EngineHash
	Parent    kv.EngineHash
	HasParent bool
	Tokens    []uint32
	BlockSize int
	Medium    string
	Extra     [][]kv.ExtraKey
	Group     int
	Spec      string
}

func tellOf(e *kv.Event) told {
	t := told{
		Kind: e.Kind, Hashes: slices.Clone(e.Hashes), Parent: e.Parent, HasParent: e.HasParent, Tokens: slices.Clone(e.Tokens),
		BlockSize: e.BlockSize, Medium: e.Medium, Group: e.Group, Spec: e.SpecName,
	}
	for _, keys := range e.Extra {
		t.Extra = append(t.Extra, slices.Clone(keys))
	}
	return t
}

// TestRecordedEngine puts a real engine's requests to the cache, one at a time as
// they were recorded, with the answers that it gave: what was found cached must be
// its number, and the events its events, in its order. It ends where a recording
// does what the cache does not: requests side by side, adapters.
func TestRecordedEngine(t *testing.T) {
	for _, test := range []struct {
		name    string
		blocks  int // of the pool: the engine keeps one of its own for itself
		atLeast int // requests compared
	}{
		{"vllm032_algo_sha256_cbor_seed0_int", 255, 10},
		{"vllm032_algo_sha256_cbor_seed42_int", 255, 10},
		{"vllm032_algo_xxhash_seed0_int", 255, 10},
		{"vllm032_algo_xxhash_cbor_seedunset_int", 255, 10},
		{"vllm032_replay", 63, 23},
		{"vllm032_eviction", 39, 80},
		{"vllm032_cache_salt", 199, 30},
		{"vllm032_block64_emptytopic", 63, 20},
		{"vllm032_bytes_eviction", 39, 31},
		{"vllm032_reset", 95, 20},
		{"vllm032_block16_eviction", 59, 80},
		{"vllm033_block16_eviction", 59, 80},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := record.Read(fixtures + test.name + ".jsonl.gz")
			if err != nil {
				t.Fatal(err)
			}
			compareRecorded(t, f, test.blocks, test.atLeast)
		})
	}
}

// compareRecorded goes through a recording as far as the cache can follow.
func compareRecorded(t *testing.T, f *record.File, blocks, atLeast int) {
	t.Helper()
	a, err := enginehash.Parse(f.Header.HashAlgo)
	if err != nil {
		t.Fatal(err)
	}
	root, err := hex.DecodeString(f.Header.NoneHash)
	if err != nil || len(root) != a.Size() {
		t.Fatalf("none_hash %q", f.Header.NoneHash)
	}
	m, err := NewModel(Config{Engine: VLLM, Hash: f.Header.HashAlgo, Blocks: blocks, BlockSize: f.Header.MainBlockSize()})
	if err != nil {
		t.Fatal(err)
	}
	copy(m.rank.sched.cache.hash.root[:], root)
	var got, want []told
	var dec wire.Decoder
	requests := 0
	var open *record.Req
lines:
	for i := range f.Lines {
		l := &f.Lines[i]
		switch {
		case l.Req != nil:
			if open != nil || l.Req.LoRA != nil || len(l.Req.MM) > 0 || len(l.Req.Extra) > 0 {
				break lines
			}
			open = l.Req
		case l.Resp != nil:
			cached, events := askModel(t, m, Request{ID: open.ID, Tokens: open.Prompt, Salt: open.Salt, MaxTokens: len(l.Resp.Output), Answer: l.Resp.Output})
			if l.Resp.Cached != nil && cached != *l.Resp.Cached {
				t.Errorf("request %s: %d tokens cached, the engine says %d", open.ID, cached, *l.Resp.Cached)
			}
			for i := range events {
				got = append(got, tellOf(&events[i]))
			}
			requests++
			open = nil
		case l.Ctl != nil && l.Ctl.Op == "reset_prefix_cache" && l.Ctl.OK != nil && *l.Ctl.OK:
			if !m.Reset() {
				t.Fatal("the engine's cache could be reset, ours is in use")
			}
		case l.Msg != nil:
			var b kv.Batch
			_, payload, _, err := wire.ParseMessage(l.Msg.Frames)
			if err == nil {
				err = dec.Decode(payload, &b)
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Events {
				want = append(want, tellOf(&b.Events[i]))
			}
		}
	}
	if requests < atLeast {
		t.Errorf("%d requests compared, want %d", requests, atLeast)
	}
	n := min(len(got), len(want))
	if len(want) < len(got) {
		t.Errorf("%d events, the engine published %d", len(got), len(want))
	}
	if diff := cmp.Diff(want[:n], got[:n]); diff != "" {
		t.Errorf("events (-engine +ours):\n%s", diff)
	}
	t.Logf("%d requests, %d events", requests, n)
}

// askModel puts one request to a model that has no other, and returns what was
// found cached and what was published.
func askModel(t *testing.T, m *Model, q Request) (cached int, events []kv.Event) {
	t.Helper()
	out, err := m.Submit(q)
	if err != nil {
		t.Fatal(err)
	}
	for {
		told, ok := m.Step()
		if !ok {
			break
		}
		events = append(events, told...)
	}
	last := Output{}
	for o := range out {
		last = o
	}
	if last.Finish != filled {
		t.Fatalf("request %s ended with %+v", q.ID, last)
	}
	return last.Cached, events
}

// mirror is what a reader of the events knows: copies by hash.
type mirror map[kv.EngineHash]int

func (m mirror) apply(t *testing.T, events []kv.Event) {
	t.Helper()
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case kv.KindStored:
			if len(e.Tokens) != e.BlockSize*len(e.Hashes) {
				t.Fatalf("%d tokens in %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
			}
			for _, h := range e.Hashes {
				m[h]++
			}
		case kv.KindRemoved:
			for _, h := range e.Hashes {
				if m[h]--; m[h] < 0 {
					t.Fatalf("block %d was removed more often than stored", h)
				}
				if m[h] == 0 {
					delete(m, h)
				}
			}
		case kv.KindCleared:
			clear(m)
		}
	}
}

// equal holds the mirror against the truth.
func (m mirror) equal(t *testing.T, blocks []Block, what string) {
	t.Helper()
	want := mirror{}
	at := map[kv.EngineHash]Position{}
	for _, b := range blocks {
		want[b.Engine], at[b.Engine] = b.Copies, b.Position
	}
	for _, b := range blocks {
		above := Root(kv.HashSeed)
		if b.Parent != nil {
			if above = at[*b.Parent]; above == 0 {
				t.Fatalf("%s: block %d is cached and the one before it is not", what, b.Engine)
			}
		}
		if b.Position != above.Below(b.Content) {
			t.Fatalf("%s: block %d is not below the one before it", what, b.Engine)
		}
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Fatalf("%s (-truth +events):\n%.2000s", what, diff)
	}
}

// TestEventsTellAll runs random requests side by side in a small pool, both
// engines' rules: after each pass the events must have told exactly the content,
// counts of copies included, no block may be lost, and what a prompt is said to
// reuse is what it then reuses.
func TestEventsTellAll(t *testing.T) {
	for _, engine := range []string{VLLM, SGLang} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", engine, seed), func(t *testing.T) { tellAll(t, engine, seed) })
		}
	}
}

func tellAll(t *testing.T, engine string, seed uint64) {
	t.Helper()
	const blocks = 40
	m, err := NewModel(Config{Engine: engine, Blocks: blocks, BlockSize: 4, Budget: 30, MaxRunning: 8, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	held := mirror{}
	rng := rand.New(rand.NewPCG(seed, 7))
	cache := m.rank.sched.cache
	var evicted, copies, resets int
	for step := range longtest.N(400, 8_000) {
		var events []kv.Event
		load := m.Load()
		switch k := rng.IntN(20); {
		case k < 6 && load.Waiting < 5:
			prompt := tokensOf(rng, 1+rng.IntN(40))
			want := m.Reuse(m.Prompt(prompt, "", "")).Used * 4
			out, err := m.Submit(Request{ID: fmt.Sprint(step), Tokens: prompt, MaxTokens: 1 + rng.IntN(20)})
			if err != nil {
				t.Fatal(err)
			}
			if load.Running+load.Waiting > 0 {
				break
			}
			events, _ = m.Step()
			select {
			case o := <-out:
				if o.Cached != want {
					t.Fatalf("step %d: %d tokens reused, %d were foretold", step, o.Cached, want)
				}
			default: // the prompt takes more passes than one
			}
		case k == 6:
			m.Abort(fmt.Sprint(rng.IntN(step + 1)))
		case k == 7 && rng.IntN(4) == 0: // everybody leaves
			for _, j := range slices.Concat(m.rank.sched.running, m.rank.sched.waiting) {
				m.Abort(j.ID)
			}
			if !m.Reset() {
				t.Fatalf("step %d: nothing runs and the cache cannot be reset", step)
			}
			resets++
		default:
			events, _ = m.Step()
		}
		for i := range events {
			if events[i].Kind == kv.KindRemoved {
				evicted++
			}
		}
		held.apply(t, events)
		if err := m.rank.sched.check(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if len(cache.events) > 0 {
			continue // more to tell: of an end by force, or a clear
		}
		content := cache.content()
		held.equal(t, content, fmt.Sprintf("step %d", step))
		for _, b := range content {
			if b.Copies > 1 {
				copies++
			}
		}
	}
	for ok := true; ok; {
		_, ok = m.Step()
	}
	load := m.Load()
	if cache.pool.free != blocks || load.Running != 0 || load.Waiting != 0 {
		t.Errorf("at the end %d of %d blocks are free, %+v", cache.pool.free, blocks, load)
	}
	if evicted == 0 || load.Preemptions == 0 || resets == 0 || (copies > 0) != (engine == VLLM) {
		t.Errorf("%d evicted, %d preempted, %d resets, %d copies: the run shows little", evicted, load.Preemptions, resets, copies)
	}
}

// tokensOf draws few different tokens, so that prompts share prefixes.
func tokensOf(rng *rand.Rand, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		if i%4 == 0 {
			out[i] = rng.Uint32N(2)
		}
	}
	return out
}
