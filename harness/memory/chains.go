// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"math"
	"math/rand/v2"
	"slices"

	"kindex/harness/corpus"
	"kindex/internal/kv"
)

// chain is one chain, made anew from its number whenever it is needed.
type chain struct {
	contents []kv.ContentHash
	names    []kv.EngineHash // the fleet's, where names are not private
	own      []kv.EngineHash // one worker's
	holders  []int
}

// longest is how many times the mean a chain may be long.
const longest = 8

// make fills c with chain number i of o's workload.
func (c *chain) make(o *Options, i uint64) {
	rng := rand.New(rand.NewPCG(o.Seed, i)) //nolint:gosec // seeded on purpose
	n := int(math.Ceil(rng.ExpFloat64() * float64(o.Mean)))
	n = min(max(n, 1), longest*o.Mean)
	c.contents, c.names, c.own, c.holders = c.contents[:0], c.names[:0], c.own[:0], c.holders[:0]
	first := rng.Uint64()
	for j := range uint64(n) {
		c.contents = append(c.contents, corpus.LocalHash(first+j))
		c.names = append(c.names, kv.EngineHash(corpus.LocalHash(^(first + j))))
	}
	if o.Holders == o.Workers {
		for w := range o.Workers {
			c.holders = append(c.holders, w)
		}
		return
	}
	// Floyd's draw of distinct workers.
	for top := o.Workers - o.Holders; top < o.Workers; top++ {
		w := rng.IntN(top + 1)
		if slices.Contains(c.holders, w) {
			w = top
		}
		c.holders = append(c.holders, w)
	}
}

// namesOf returns what worker w calls the chain's blocks, valid until the next call.
func (c *chain) namesOf(o *Options, w int) []kv.EngineHash {
	if !o.Private {
		return c.names
	}
	c.own = c.own[:0]
	for _, e := range c.names {
		c.own = append(c.own, private(e, w))
	}
	return c.own
}

// private returns worker w's own name for a block.
func private(e kv.EngineHash, w int) kv.EngineHash {
	return kv.EngineHash(corpus.LocalHash(uint64(e) + uint64(w)<<1))
}
