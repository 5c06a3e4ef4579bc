// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"context"
	"math/rand/v2"

	"kindex/harness/corpus"
	"kindex/internal/kv"
	"kindex/shard"
)

// The random part.
const (
	randomWorkers = 32
	randomPrompts = 300
	randomBlocks  = 64 // of a prompt at most
	questions     = 5  // after each event
)

// random goes on until n questions more were asked.
func (w *world) random(ctx context.Context, o *Options, c *corpus.Corpus, n int64, progress func(done, of int)) error {
	rng := rand.New(rand.NewPCG(o.Seed, 0x72616e64)) //nolint:gosec // seeded on purpose
	prompts := samples(rng, c)
	own := make([][]prompt, len(w.ref.holders)) // by worker: with its own names, or the fleet's
	for i := range own {
		own[i] = prompts
		if i%4 == 3 {
			own[i] = renamed(prompts, i)
		}
	}
	caches := newCaches(len(own))
	var chain []kv.ContentHash
	for asked := int64(0); asked < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		worker := rng.IntN(len(own))
		if err := w.event(rng, worker, &caches[worker], own[worker]); err != nil {
			return err
		}
		for range questions {
			p := &prompts[rng.IntN(len(prompts))]
			chain = question(rng, chain[:0], p.contents, prompts)
			w.ask(chain)
			asked++
		}
		progress(int(asked), int(n))
	}
	return nil
}

// samples draws prompts from the corpus, so that they share beginnings as its own do.
func samples(rng *rand.Rand, c *corpus.Corpus) []prompt {
	var asked []int
	for i := range c.Ops {
		if op := &c.Ops[i]; op.N > 0 && (op.Kind == corpus.Lookup || op.Kind == corpus.Store) {
			asked = append(asked, i)
		}
	}
	var out []prompt
	for len(out) < randomPrompts && len(asked) > 0 {
		// Neighbours more often than strangers.
		at := rng.IntN(len(asked))
		for k := 0; k < 4 && len(out) < randomPrompts; k++ {
			op := &c.Ops[asked[(at+k)%len(asked)]]
			out = append(out, promptOf(pathTo(c, op.At)))
		}
	}
	return out
}

// pathTo returns the contents from the first block to node, cut to randomBlocks.
func pathTo(c *corpus.Corpus, node uint32) []kv.ContentHash {
	var up []kv.ContentHash
	for ; node != corpus.NoNode; node = c.Parents[node] {
		up = append(up, corpus.LocalHash(uint64(c.Contents[node])))
	}
	n := min(len(up), randomBlocks)
	out := make([]kv.ContentHash, n)
	for i := range out {
		out[i] = up[len(up)-1-i]
	}
	return out
}

// renamed gives prompts names that worker alone uses.
func renamed(prompts []prompt, worker int) []prompt {
	out := make([]prompt, len(prompts))
	for i, p := range prompts {
		out[i].contents = p.contents
		for _, e := range p.names {
			out[i].names = append(out[i].names, kv.EngineHash(corpus.LocalHash(uint64(e)+uint64(worker))))
		}
	}
	return out
}

// event has one worker do something.
func (w *world) event(rng *rand.Rand, worker int, held *cache, prompts []prompt) error {
	p := &prompts[rng.IntN(len(prompts))]
	tier := kv.TierDevice
	if worker%5 == 1 {
		tier = kv.Tier(rng.IntN(int(kv.LocalTiers)))
	}
	switch draw := rng.IntN(1_000); {
	case draw < 450:
		return w.use(worker, held, p, draw%2 == 0, tier)
	case draw < 470: // a stretch from the middle: its parent may be missing
		from := rng.IntN(len(p.names))
		to := from + 1 + rng.IntN(len(p.names)-from)
		st := shard.Store{Tier: tier, Engines: p.names[from:to], Contents: p.contents[from:to]}
		if from > 0 {
			st.HasParent, st.Parent = true, p.names[from-1]
		}
		return w.store(worker, &st)
	case draw < 490: // a beginning, in another tier than it may be in already
		n := 1 + rng.IntN(len(p.names))
		return w.store(worker, &shard.Store{Tier: kv.Tier(rng.IntN(int(kv.LocalTiers))), Engines: p.names[:n], Contents: p.contents[:n]})
	case draw < 495: // blocks go from a lower tier, whether they are there or not
		n := 1 + rng.IntN(len(p.names))
		return w.remove(worker, &shard.Remove{Tier: kv.TierHost, Engines: p.names[n/2 : n]})
	case draw < 496:
		*held = newCaches(1)[0]
		return w.clear(worker)
	default:
		return w.lose(rng, worker, held)
	}
}

// question makes a chain to ask for out of a prompt.
func question(rng *rand.Rand, chain, contents []kv.ContentHash, prompts []prompt) []kv.ContentHash {
	chain = append(chain, contents...)
	switch rng.IntN(6) {
	case 0:
		return chain[:rng.IntN(len(chain)+1)]
	case 1:
		chain[rng.IntN(len(chain))] = kv.ContentHash(rng.Uint64())
	case 2: // goes on as another does
		other := prompts[rng.IntN(len(prompts))].contents
		chain = append(chain[:rng.IntN(len(chain)+1)], other[rng.IntN(len(other)):]...)
	case 3:
		for range 1 + rng.IntN(40) {
			chain = append(chain, kv.ContentHash(rng.Uint64()))
		}
	}
	return chain
}
