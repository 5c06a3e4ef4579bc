// SPDX-License-Identifier: Apache-2.0

// Before: a front, or whoever asks several engines of one prompt. After: engine.go.

package engine

import (
	"sync"

	"kindex/internal/enginehash"
)

// Prompt is a prompt whose blocks were hashed: once, for however many engines that
// hash alike.
//
// Concurrency: it never changes.
type Prompt struct {
	kind   hashKind
	tokens int
	names  []digest
}

// hashKind is what makes two engines hash alike.
type hashKind struct {
	engine, hash, seed string
	block, ahead       int
	keys               keyForm
}

func (c *Config) hashKind() hashKind {
	if c.radix() {
		return hashKind{engine: c.Engine, block: c.BlockSize, ahead: c.ahead()}
	}
	return hashKind{c.Engine, c.Hash, c.HashSeed, c.BlockSize, c.ahead(), c.keyForm()}
}

// fits reports whether p, which may be nil, is of a prompt of n tokens, hashed as
// c's engine does.
func (p *Prompt) fits(c *Config, n int) bool {
	return p != nil && p.kind == c.hashKind() && p.tokens == n
}

// hashers makes prompts.
//
// Concurrency: any goroutine.
type hashers struct {
	cfg  *Config
	pool sync.Pool // of *chain
}

// prompt hashes a prompt's whole blocks.
//
// Cost: about half a microsecond for a block of 16 tokens.
func (h *hashers) prompt(tokens []uint32, of *space) *Prompt {
	c, ok := h.pool.Get().(*chain)
	if !ok {
		c = h.cfg.chain()
	}
	defer h.pool.Put(c)
	return &Prompt{h.cfg.hashKind(), len(tokens), c.extend(nil, tokens, c.whole(len(tokens), h.cfg.BlockSize), h.cfg.BlockSize, of)}
}

// chain returns the engine's hashes. The config is validated.
func (c *Config) chain() *chain {
	if c.radix() {
		out := newChain(enginehash.SGLang, "")
		out.ahead, out.pairs = c.ahead(), c.Bigram
		return out
	}
	a, err := enginehash.Parse(c.Hash)
	if err != nil {
		panic("hashes of a config that was not validated: " + err.Error())
	}
	out := newChain(a, c.HashSeed)
	out.keys, out.ahead, out.described, out.digests = c.keyForm(), c.ahead(), c.Offload != OffloadPlaceholder, c.Digests
	for i, name := range c.LoRA {
		out.adapters[name] = int64(i) + 1
	}
	return out
}

// keyForm returns how the release hashes what keys a block.
func (c *Config) keyForm() keyForm {
	switch {
	case c.since(31):
		return keysTagged
	case c.since(20):
		return keysBare
	case c.since(12):
		return keysText
	}
	return keysNumber
}

// ahead returns how many tokens after a block its name covers too.
func (c *Config) ahead() int {
	if c.Bigram {
		return 1
	}
	return c.Lookahead
}
