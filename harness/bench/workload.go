// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// blockSize of all workloads, in tokens.
const blockSize = 16

// workload is one stream as an engine publishes it: prompts that share prefixes,
// each stored beyond what it shares, the oldest ends evicted block by block to
// keep the cache at its size.
type workload struct {
	frames  [][]byte
	batches []kv.Batch // what the frames hold
	stored  int        // blocks
	removed int
	bytes   int
}

// shape says how a workload looks.
type shape struct {
	prompts int
	blocks  int // of a prompt
	shared  int // of them shared with prompts before it
	cache   int // blocks that the engine holds; 0: never evicts
	family  int // prompts that share one prefix
}

// typical is a busy engine's stream: 64-block prompts of which half is shared.
var typical = shape{prompts: 2_000, blocks: 64, shared: 32, cache: 20_000, family: 16}

// generate makes the stream of s.
func generate(s shape, seed uint64) *workload {
	rng := rand.New(rand.NewPCG(seed, 0x6b69)) //nolint:gosec // seeded on purpose
	layout, err := wire.LayoutFor("vllm", "0.33.0")
	if err != nil {
		panic("BUG: bench: no layout: " + err.Error())
	}
	w := &workload{}
	var prefix, held []kv.EngineHash
	for p := range s.prompts {
		b := kv.Batch{Timestamp: 1_796_010_953 + float64(p)/10, HasRank: true}
		have := s.shared
		if p%s.family == 0 {
			have = 0
			prefix = prefix[:0:0]
		}
		ev := kv.Event{
			Kind: kv.KindStored, BlockSize: blockSize, Medium: "GPU", HasGroup: true, Spec: kv.SpecFull,
			SpecName: "full_attention", HasExtra: true, Extra: make([][]kv.ExtraKey, s.blocks-have),
		}
		if have > 0 {
			ev.HasParent, ev.Parent = true, prefix[have-1]
		}
		for range s.blocks - have {
			ev.Hashes = append(ev.Hashes, kv.EngineHash(rng.Uint64()))
			for range blockSize {
				ev.Tokens = append(ev.Tokens, rng.Uint32N(128_000))
			}
		}
		if have == 0 {
			prefix = ev.Hashes[:s.shared]
		}
		for len(held)+len(ev.Hashes) > s.cache && s.cache > 0 {
			b.Events = append(b.Events, kv.Event{Kind: kv.KindRemoved, Medium: "GPU", HasGroup: true, Hashes: held[:1]})
			held = held[1:]
			w.removed++
		}
		// Eviction takes the end of the oldest chain first.
		for i := range ev.Hashes {
			held = append(held, ev.Hashes[len(ev.Hashes)-1-i])
		}
		b.Events = append(b.Events, ev)
		w.stored += len(ev.Hashes)
		w.batches = append(w.batches, b)
		w.frames = append(w.frames, wire.AppendBatch(nil, &b, layout))
		w.bytes += len(w.frames[len(w.frames)-1])
	}
	return w
}
