// SPDX-License-Identifier: Apache-2.0

// Before: a publisher's caches. After: whoever asks an index for a prompt.

package publish

import (
	"math/rand/v2"

	"kindex/internal/kv"
)

// Prompt is one to ask an index for, and the right answer at the moment it was drawn.
type Prompt struct {
	Tokens []uint32
	LoRA   string
	Life   int
	Newest []uint64 // batches of the life by rank, then
	Depth  []int    // tokens on the device, in a row from the first, by rank
}

// maxSample bounds how many tokens go on behind a chain that is held: none knows those.
const maxSample = 40

// Sample draws a prompt that begins as one of the publisher's chains does. It reports
// false while there is none.
//
// Concurrency: any goroutine, each with an rng of its own.
func (p *Publisher) Sample(rng *rand.Rand) (Prompt, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	chains := p.ranks[rng.IntN(len(p.ranks))].cache.chains
	if len(chains) == 0 {
		return Prompt{}, false
	}
	ch := chains[rng.IntN(len(chains))]
	out := Prompt{LoRA: ch.lora, Life: p.life}
	for _, b := range ch.blocks[:1+rng.IntN(len(ch.blocks))] {
		out.Tokens = append(out.Tokens, b.tokens...)
	}
	for range rng.IntN(maxSample) {
		out.Tokens = append(out.Tokens, uint32(rng.IntN(vocabulary)))
	}
	seed := kv.ContentSeed(ch.lora, "")
	blocks := kv.Blocks{Tokens: out.Tokens[:len(out.Tokens)/p.o.Block*p.o.Block], BlockSize: p.o.Block}
	contents := blocks.AppendHashes(nil, seed)
	for _, r := range p.ranks {
		out.Depth = append(out.Depth, r.truth.run(seed, contents)*p.o.Block)
		out.Newest = append(out.Newest, uint64(len(r.lives[p.life])))
	}
	return out, true
}

// run returns how many of a path's blocks are on the device, in a row from the first.
// Engine hashes are those of this package's caches: the hash of the path.
func (c *Content) run(seed uint64, contents []kv.ContentHash) int {
	at := seed
	for i, content := range contents {
		at = below(at, content)
		b := c.blocks[kv.EngineHash(at)]
		if b == nil || b.position != at {
			return i
		}
		device := false
		for _, held := range b.copies {
			device = device || held.tier == kv.TierDevice
		}
		if !device {
			return i
		}
	}
	return len(contents)
}
