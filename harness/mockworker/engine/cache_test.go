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
	Second    []uint32
	Ahead     [][]uint32
	Salt      string
	Session   string
}

func tellOf(e *kv.Event) told {
	t := told{
		Kind: e.Kind, Hashes: append([]kv.EngineHash(nil), e.Hashes...), Parent: e.Parent, HasParent: e.HasParent, Tokens: append([]uint32(nil), e.Tokens...),
		BlockSize: e.BlockSize, Medium: e.Medium, Group: e.Group, Spec: e.SpecName, Second: append([]uint32(nil), e.Second...),
		Salt: e.Salt, Session: e.SessionID,
	}
	for _, tokens := range e.Lookahead {
		t.Ahead = append(t.Ahead, slices.Clone(tokens))
	}
	for _, keys := range e.Extra {
		t.Extra = append(t.Extra, slices.Clone(keys))
	}
	return t
}

// TestRecordedEngine puts a real engine's requests to the cache, one at a time as
// they were recorded, with the answers that it gave: what was found cached must be
// its number, and the events its events, in its order. It ends where a recording
// does what the cache does not: requests side by side, adapters; where the second
// tier is full, which was never told there that a request had ended; and where SGLang
// loses something, which are nodes of its tree there.
func TestRecordedEngine(t *testing.T) {
	for _, test := range []struct {
		name    string
		config  Config // blocks of the pool: the engine keeps one of its own for itself
		atLeast int    // requests compared
	}{
		{"vllm032_algo_sha256_cbor_seed0_int", Config{Blocks: 255}, 10},
		{"vllm032_algo_sha256_cbor_seed42_int", Config{Blocks: 255}, 10},
		{"vllm032_algo_xxhash_seed0_int", Config{Blocks: 255}, 10},
		{"vllm032_algo_xxhash_cbor_seedunset_int", Config{Blocks: 255}, 10},
		{"vllm032_replay", Config{Blocks: 63}, 23},
		{"vllm032_eviction", Config{Blocks: 39}, 80},
		{"vllm032_cache_salt", Config{Blocks: 199}, 30},
		{"vllm032_block64_emptytopic", Config{Blocks: 63}, 20},
		{"vllm032_bytes_eviction", Config{Blocks: 39}, 31},
		{"vllm032_reset", Config{Blocks: 95}, 20},
		{"vllm032_block16_eviction", Config{Blocks: 59}, 80},
		{"vllm033_block16_eviction", Config{Blocks: 59}, 80},
		{"vllm032_hybrid_gemma3", Config{Blocks: 159}, 20},
		{"vllm032_hybrid_gemma3_dense", Config{Blocks: 159, Retention: -1}, 20},
		{"vllm032_hybrid_gemma3_retention96", Config{Blocks: 159, Retention: 96}, 20},
		{"vllm032_cpu_offload_placeholder", Config{Blocks: 59, HostBlocks: 40}, 10},
		{"vllm032_cpu_offload_selfdescribing", Config{Blocks: 59, HostBlocks: 40, Offload: OffloadDescribed}, 10},
		{"vllm032_cpu_offload_selfdescribing_chunk4", Config{Blocks: 59, HostBlocks: 40, Offload: OffloadDescribed, Chunk: 4}, 25},
		{"vllm032_sliding_only", Config{Blocks: 59, WindowOnly: true}, 20},
		{"vllm032_multimodal", Config{Blocks: 119}, 40},
		{"vllm033_multimodal", Config{Blocks: 119}, 40},
		{"vllm033_lookahead1", Config{Blocks: 59}, 40},
		{"vllm033_lookahead3", Config{Blocks: 59}, 40},
		{"vllm032_shared_prefix", Config{Blocks: 119}, 5},
		{"sglang0523_eagle_bigram_page16", Config{Blocks: 1000}, 20},
		{"sglang0523_eagle_bigram_page1", Config{Blocks: 20000}, 15},
		{"sglang0523_unified_page16", Config{Blocks: 1000}, 20},
		{"sglang0523_unified_salt_session_page16", Config{Blocks: 1000}, 20},
		{"sglang0523_hicache_write_through_page16", Config{Blocks: 1000, HostBlocks: 1000}, 8},
		{"sglang0523_hicache_write_through_selective_page16", Config{Blocks: 1000, HostBlocks: 1000, HostPolicy: WriteSelected}, 8},
		{"sglang0523_hicache_write_back_page16", Config{Blocks: 1000, HostBlocks: 1000, HostPolicy: WriteBack}, 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := record.Read(fixtures + test.name + ".jsonl.gz")
			if err != nil {
				t.Fatal(err)
			}
			compareRecorded(t, f, test.config, test.atLeast)
		})
	}
}

// compareRecorded goes through a recording as far as the cache can follow.
func compareRecorded(t *testing.T, f *record.File, c Config, atLeast int) {
	t.Helper()
	c.Engine, c.Hash, c.BlockSize = f.Header.Engine, f.Header.HashAlgo, f.Header.MainBlockSize()
	c.Lookahead, c.Bigram = f.Header.Lookahead, f.Header.IsEagle
	for _, g := range f.Header.Groups {
		if g.Window > 0 {
			c.Windows = append(c.Windows, g.Window)
		}
	}
	m, err := NewModel(c)
	if err != nil {
		t.Fatal(err)
	}
	if c.Engine == VLLM {
		root, err := hex.DecodeString(f.Header.NoneHash)
		if err != nil || len(root) != m.rank.sched.cache.hash.hash.Algorithm().Size() {
			t.Fatalf("none_hash %q", f.Header.NoneHash)
		}
		copy(m.rank.sched.cache.hash.root[:], root)
		m.rank.sched.cache.hash.shared = true // the recorder's requests have their items from one list
	}
	var got, want []told
	var dec wire.Decoder
	requests := 0
	var open *record.Req
lines:
	for i := range f.Lines {
		l := &f.Lines[i]
		switch {
		case l.Req != nil:
			if open != nil || len(l.Req.Extra) > 0 {
				break lines
			}
			open = l.Req
		case l.Resp != nil:
			q := Request{ID: open.ID, Tokens: open.Prompt, Salt: open.Salt, Session: open.Session, MaxTokens: len(l.Resp.Output), Answer: l.Resp.Output}
			if a := open.LoRA; a != nil {
				h := m.rank.sched.cache.hash
				id, _ := a.ID.(float64)
				h.paths, h.adapters[a.Name] = map[string]string{"adapter-one": "/adapters/one", "adapter-two": "/adapters/two"}, int64(id)
				q.LoRA = a.Name
			}
			for _, it := range open.MM {
				q.Items = append(q.Items, Item{it.ID, it.Offset, it.Length})
			}
			cached, events := askModel(t, m, q)
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
				if b.Events[i].Kind == kv.KindRemoved && (b.Events[i].Medium == "CPU" || c.Engine == SGLang) || c.HostPolicy == WriteBack && b.Events[i].Medium == "CPU_PINNED" {
					got = got[:len(want)]
					break lines
				}
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

// mirror is what a reader of the events knows: copies by place.
type mirror map[place]int

type place struct {
	hash  kv.EngineHash
	tier  string
	group int
}

func placeOf(e *kv.Event, h kv.EngineHash) place {
	tier := map[string]string{"": TierDevice, "GPU": TierDevice, "CPU": TierHost, "CPU_PINNED": TierHost, "STORAGE": TierDisk}[e.Medium]
	if e.Locality == kv.LocalityRemote {
		tier = TierRemote
	}
	return place{h, tier, e.Group}
}

func (m mirror) apply(t *testing.T, events []kv.Event) {
	t.Helper()
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case kv.KindStored:
			if len(e.Tokens) != e.BlockSize*len(e.Hashes) && e.Spec != kv.SpecWindow {
				t.Fatalf("%d tokens in %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
			}
			for _, h := range e.Hashes {
				m[placeOf(e, h)]++
			}
		case kv.KindRemoved:
			for _, h := range e.Hashes {
				at := placeOf(e, h)
				if m[at]--; m[at] < 0 {
					t.Fatalf("block %v was removed more often than stored", at)
				}
				if m[at] == 0 {
					delete(m, at)
				}
			}
		case kv.KindCleared:
			clear(m)
		}
	}
}

// equal holds the mirror against the truth. chained says that the device has what is
// before each block of the main group.
func (m mirror) equal(t *testing.T, blocks []Block, what string, chained bool) {
	t.Helper()
	want := mirror{}
	at := map[kv.EngineHash]Position{}
	main := 0
	for _, b := range blocks {
		main = max(main, b.Group)
	}
	for _, b := range blocks {
		want[place{b.Engine, b.Tier, b.Group}], at[b.Engine] = b.Copies, b.Position
	}
	for _, b := range blocks {
		above := Root(kv.HashSeed)
		if b.Parent != nil {
			if above = at[*b.Parent]; above == 0 {
				if b.Tier == TierDevice && b.Group == main && chained {
					t.Fatalf("%s: block %d is cached and the one before it is not", what, b.Engine)
				}
				continue
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
	for name, c := range map[string]Config{
		"vllm":       {Engine: VLLM, Blocks: 40},
		"sglang":     {Engine: SGLang, Blocks: 40},
		"window":     {Engine: VLLM, Blocks: 60, Windows: []int{9}},
		"windows":    {Engine: VLLM, Blocks: 100, Windows: []int{8, 8, 21}},
		"dense":      {Engine: VLLM, Blocks: 60, Windows: []int{13}, Retention: -1},
		"segments":   {Engine: VLLM, Blocks: 60, Windows: []int{6}, Retention: 12},
		"host":       {Engine: VLLM, Blocks: 40, HostBlocks: 60},
		"small host": {Engine: VLLM, Blocks: 40, HostBlocks: 9, Offload: OffloadDescribed},
		"disk":       {Engine: VLLM, Blocks: 40, HostBlocks: 30, DiskBlocks: 50, Offload: OffloadSimple, DiskOwner: "shelf"},
		"remote":     {Engine: VLLM, Blocks: 40, DiskBlocks: 50, DiskRemote: true},
		"chunks":     {Engine: VLLM, Blocks: 40, HostBlocks: 30, Chunk: 3, Offload: OffloadDescribed},
		"both":       {Engine: VLLM, Blocks: 100, Windows: []int{8, 21}, HostBlocks: 80, Offload: OffloadDescribed},
		"alone":      {Engine: VLLM, Blocks: 20, Windows: []int{21}, WindowOnly: true, HostBlocks: 20},
		"lookahead":  {Engine: VLLM, Blocks: 40, Lookahead: 3, HostBlocks: 30, Offload: OffloadDescribed},
		"hicache":    {Engine: SGLang, Blocks: 40, HostBlocks: 60},
		"selective":  {Engine: SGLang, Blocks: 40, HostBlocks: 60, HostPolicy: WriteSelected},
		"write back": {Engine: SGLang, Blocks: 40, HostBlocks: 60, HostPolicy: WriteBack},
		"pairs":      {Engine: SGLang, Blocks: 40, Bigram: true},
	} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) { tellAll(t, c, seed) })
		}
	}
}

func tellAll(t *testing.T, c Config, seed uint64) {
	t.Helper()
	c.BlockSize, c.Budget, c.MaxRunning, c.Seed = 4, 30, 8, seed
	m, err := NewModel(c)
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
		held.equal(t, content, fmt.Sprintf("step %d", step), !c.WindowOnly)
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
	if cache.pool.free != c.Blocks || load.Running != 0 || load.Waiting != 0 {
		t.Errorf("at the end %d of %d blocks are free, %+v", cache.pool.free, c.Blocks, load)
	}
	if evicted == 0 || load.Preemptions == 0 || resets == 0 || copies > 0 && c.Engine == SGLang || copies == 0 && c.Engine == VLLM && c.Lookahead == 0 && !c.WindowOnly {
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
