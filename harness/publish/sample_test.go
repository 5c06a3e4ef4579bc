// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/kv"
)

// TestSample holds what a sample says of each rank against a set of all that the rank's
// events have made, block by block.
func TestSample(t *testing.T) {
	p := &Publisher{o: DefaultOptions()}
	p.o.Capacity = 300
	present := make([]map[kv.EngineHash]int, p.o.Ranks)
	for r := range p.o.Ranks {
		k := &rankState{cache: newCache(3, r, p.o.Block, p.o.PerBatch, p.o.Capacity), lives: make([][]Record, 1)}
		p.ranks, present[r] = append(p.ranks, k), map[kv.EngineHash]int{}
	}
	rng := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // seeded on purpose
	if _, ok := p.Sample(rng); ok {
		t.Fatal("a prompt of nothing")
	}
	whole, part, none := 0, 0, 0
	for range 400 {
		for r, k := range p.ranks {
			for _, e := range k.cache.pass() {
				s := step(&e)
				k.truth.Apply(&s)
				for _, h := range e.Hashes {
					switch {
					case s.Tier != kv.TierDevice:
					case e.Kind == kv.KindStored:
						present[r][h]++
					default:
						present[r][h]--
					}
				}
			}
		}
		s, ok := p.Sample(rng)
		if !ok {
			t.Fatal("no prompt")
		}
		want := make([]int, p.o.Ranks)
		for r := range want {
			at := kv.ContentSeed(s.LoRA, "")
			for n := p.o.Block; n <= len(s.Tokens); n += p.o.Block {
				at = below(at, kv.HashBlock(kv.ContentSeed(s.LoRA, ""), s.Tokens[n-p.o.Block:n], nil))
				if present[r][kv.EngineHash(at)] == 0 {
					break
				}
				want[r] = n
			}
		}
		if !slices.Equal(s.Depth, want) {
			t.Fatalf("%d tokens are held to %v, want %v", len(s.Tokens), s.Depth, want)
		}
		switch most := slices.Max(want); {
		case most == 0:
			none++
		case most+p.o.Block > len(s.Tokens):
			whole++
		default:
			part++
		}
	}
	if whole == 0 || part == 0 || none == 0 {
		t.Errorf("%d whole, %d in part, %d not at all: too narrow", whole, part, none)
	}
}
