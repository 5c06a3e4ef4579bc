// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"context"
	"math/rand/v2"

	"kindex/harness/corpus"
	"kindex/internal/kv"
	"kindex/shard"
)

// The workloads with holes, as the published indexes' tool has them.
const (
	holeWorkers = 64
	holePrompts = 200
	holeBlocks  = 64 // of a prompt
	holeShared  = 16 // of them, by ten prompts each
	holeLost    = 12 // blocks at most in one event
	holeUse     = 40 // percent of steps that use a prompt
)

// restores are what is stored when a prompt is used that has holes.
var restores = []string{"absent blocks stored again", "whole suffix stored again", "nothing stored again"}

// prompt is a chain and what the fleet calls its blocks.
type prompt struct {
	contents []kv.ContentHash
	names    []kv.EngineHash
}

// promptOf names the blocks of a chain as the corpus's engines do.
func promptOf(contents []kv.ContentHash) prompt {
	p := prompt{contents: contents}
	for i, c := range contents {
		if i == 0 {
			p.names = append(p.names, corpus.FirstHash(c))
		} else {
			p.names = append(p.names, corpus.ChainHash(p.names[i-1], c))
		}
	}
	return p
}

// cache is what one worker holds: a set to draw from.
type cache struct {
	at    map[kv.EngineHash]int
	names []kv.EngineHash
}

func newCaches(n int) []cache {
	out := make([]cache, n)
	for i := range out {
		out[i].at = map[kv.EngineHash]int{}
	}
	return out
}

func (c *cache) has(e kv.EngineHash) bool { _, ok := c.at[e]; return ok }

func (c *cache) add(e kv.EngineHash) {
	if !c.has(e) {
		c.at[e] = len(c.names)
		c.names = append(c.names, e)
	}
}

// lose takes a random block out.
func (c *cache) lose(rng *rand.Rand) kv.EngineHash {
	i := rng.IntN(len(c.names))
	e, last := c.names[i], len(c.names)-1
	c.names[i] = c.names[last]
	c.at[c.names[i]] = i
	c.names = c.names[:last]
	delete(c.at, e)
	return e
}

// holes runs one workload.
func (w *world) holes(ctx context.Context, o *Options, restore int, progress func(done, of int)) error {
	rng := rand.New(rand.NewPCG(o.Seed, uint64(restore))) //nolint:gosec // seeded on purpose
	prompts := make([]prompt, holePrompts)
	for p := range uint64(holePrompts) {
		var contents []kv.ContentHash
		for i := range uint64(holeBlocks) {
			block := 1_000_000 + p*holeBlocks + i
			if i < holeShared {
				block = p/10*holeShared + i
			}
			contents = append(contents, corpus.LocalHash(block))
		}
		prompts[p] = promptOf(contents)
	}
	caches := newCaches(holeWorkers)
	for step := range o.Steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		worker := rng.IntN(holeWorkers)
		held := &caches[worker]
		var err error
		if rng.IntN(100) < holeUse && (restore != 2 || step < o.Steps/2) {
			err = w.use(worker, held, &prompts[rng.IntN(holePrompts)], restore == 1, kv.TierDevice)
		} else {
			err = w.lose(rng, worker, held)
		}
		if err != nil {
			return err
		}
		w.ask(prompts[rng.IntN(holePrompts)].contents)
		progress(step, o.Steps)
	}
	return nil
}

// use stores what worker lacks of p: each stretch of absent blocks in an event of its
// own, or everything from the first absent one on.
func (w *world) use(worker int, held *cache, p *prompt, suffix bool, tier kv.Tier) error {
	n := len(p.names)
	for i := 0; i < n; i++ {
		from := i
		for i < n && (!held.has(p.names[i]) || suffix && i > from) {
			held.add(p.names[i])
			i++
		}
		if i == from {
			continue
		}
		st := shard.Store{Tier: tier, Engines: p.names[from:i], Contents: p.contents[from:i]}
		if from > 0 {
			st.HasParent, st.Parent = true, p.names[from-1]
		}
		if err := w.store(worker, &st); err != nil {
			return err
		}
	}
	return nil
}

// lose takes random blocks from worker.
func (w *world) lose(rng *rand.Rand, worker int, held *cache) error {
	var gone []kv.EngineHash
	for range min(1+rng.IntN(holeLost), len(held.names)) {
		gone = append(gone, held.lose(rng))
	}
	return w.remove(worker, &shard.Remove{Engines: gone})
}
