// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"math/rand/v2"

	"kindex/internal/kv"
	"kindex/shard"
)

// An engine of the corpus proof: it serves prompts, caches their blocks under
// hashes of its own, and says so in events, with all the habits of real engines
// and some mishaps. It remembers what it said only to say sensible things next;
// what is true the reference decides.

// blockTokens is how many tokens a block of the corpus has.
const blockTokens = 2

// engine is one holder's engine.
type engine struct {
	m        *member
	model    kv.ModelKey
	seed     uint64 // of its hashes: shared by most engines
	capacity int    // device blocks
	host     int    // host blocks; 0: it has no host tier
	disk     int    // disk blocks
	bare     bool   // its lower tiers announce hashes without tokens
	groups   int    // main cache groups

	blocks  map[kv.EngineHash]*cached
	tiers   [kv.LocalTiers][]*cached // what lies in each tier
	pending []func() error           // what it will say next, in order
}

// cached is one block by one engine hash.
type cached struct {
	engine kv.EngineHash
	p      *prompt
	i      int                     // which block of p
	at     [kv.LocalTiers]int      // index in the tier's list plus 1; 0: not there
	copies [kv.LocalTiers][2]uint8 // by group
}

// prompt is one chain as one engine names it.
type prompt struct {
	ns       kv.Namespace
	seed     uint64 // content seed of ns
	tokens   []uint32
	extra    [][]byte // nil: none
	contents []kv.ContentHash
	engines  []kv.EngineHash
}

func (p *prompt) len() int { return len(p.contents) }

// chainHash is how corpus engines name a block: by all blocks up to it.
func chainHash(seed uint64, above kv.EngineHash, content kv.ContentHash) kv.EngineHash {
	x := seed ^ uint64(above)*0x9e37_79b9_7f4a_7c15 ^ uint64(content)*0xff51_afd7_ed55_8ccd
	x ^= x >> 32
	x *= 0xd6e8_feb8_6659_fd93
	return kv.EngineHash(x ^ x>>32)
}

// newPrompt hashes tokens in the namespace of one (LoRA, salt).
func (e *engine) newPrompt(lora, salt string, tokens []uint32, extra [][]byte) *prompt {
	seed := kv.ContentSeed(lora, salt)
	p := &prompt{ns: e.model.Namespace(seed), seed: seed, tokens: tokens, extra: extra}
	b := kv.Blocks{Tokens: tokens, BlockSize: blockTokens, Extra: extra}
	p.contents = b.AppendHashes(make([]kv.ContentHash, 0, b.Len()), seed)
	p.engines = make([]kv.EngineHash, len(p.contents))
	var above kv.EngineHash
	for i, c := range p.contents {
		above = chainHash(e.seed+seed, above, c)
		p.engines[i] = above
	}
	return p
}

// note remembers a copy of p's block i in tier t.
func (e *engine) note(p *prompt, i int, t kv.Tier, group uint8) {
	h := p.engines[i]
	c := e.blocks[h]
	if c == nil || c.p.contents[c.i] != p.contents[i] || c.i != i {
		if c != nil { // moved: all its copies are gone
			e.forget(c)
		}
		c = &cached{engine: h, p: p, i: i}
		e.blocks[h] = c
	}
	c.copies[t][group]++
	if c.at[t] == 0 {
		e.tiers[t] = append(e.tiers[t], c)
		c.at[t] = len(e.tiers[t])
	}
}

// unnote forgets a copy, which the engine has just taken back.
func (e *engine) unnote(c *cached, t kv.Tier, group uint8) {
	if c.copies[t][group] > 0 {
		c.copies[t][group]--
	}
	if c.copies[t][0]+c.copies[t][1] == 0 {
		e.leaveTier(c, t)
		if c.at == [kv.LocalTiers]int{} {
			delete(e.blocks, c.engine)
		}
	}
}

func (e *engine) leaveTier(c *cached, t kv.Tier) {
	i := c.at[t]
	if i == 0 {
		return
	}
	list := e.tiers[t]
	last := list[len(list)-1]
	list[i-1] = last
	last.at[t] = i
	c.at[t] = 0
	list[len(list)-1] = nil
	e.tiers[t] = list[:len(list)-1]
}

func (e *engine) forget(c *cached) {
	for t := range kv.Tier(kv.LocalTiers) {
		e.leaveTier(c, t)
	}
	delete(e.blocks, c.engine)
}

// reset empties the engine's memory.
func (e *engine) reset() {
	e.blocks = make(map[kv.EngineHash]*cached)
	e.tiers = [kv.LocalTiers][]*cached{}
	e.pending = nil
}

// some returns a block of tier t, or nil.
func (e *engine) some(r *rand.Rand, t kv.Tier) *cached {
	if len(e.tiers[t]) == 0 {
		return nil
	}
	return e.tiers[t][r.IntN(len(e.tiers[t]))]
}

// storeOf returns the event for blocks [from, to) of p.
func storeOf(p *prompt, from, to int, t kv.Tier, group uint8) *shard.Store {
	st := &shard.Store{
		Tier: t, Group: group, Namespace: p.ns,
		Engines: p.engines[from:to], Contents: p.contents[from:to],
		Blocks: kv.Blocks{Tokens: p.tokens[from*blockTokens : to*blockTokens], BlockSize: blockTokens},
	}
	if p.extra != nil {
		st.Blocks.Extra = p.extra[from:to]
	}
	if from > 0 {
		st.HasParent, st.Parent = true, p.engines[from-1]
	}
	return st
}

// misplace makes st say what most wires say of a chain's later blocks: nothing
// of its salt or adapter. Its contents are then hashed under the wrong seed
// until the index takes the parent's namespace.
func misplace(st *shard.Store, model kv.ModelKey, stated bool) {
	st.Namespace, st.Stated = model.Namespace(kv.HashSeed), stated
	st.Contents = st.Blocks.AppendHashes(nil, kv.HashSeed)
}
