// SPDX-License-Identifier: Apache-2.0

// Before: cache.go. After: internal/enginehash.

package engine

import (
	"kindex/internal/enginehash"
	"kindex/internal/kv"
)

// digest names one cached block: the engine's whole hash of the chain up to it.
type digest = enginehash.Digest

// chain makes an engine's own hashes of the blocks of a prompt, and says on events
// what that engine says beyond hashes and tokens.
//
// Concurrency: one goroutine at a time.
type chain struct {
	hash *enginehash.Hasher
	root digest // above vLLM's first blocks
}

// newChain returns the hashes of an algorithm; seed roots vLLM's.
func newChain(a enginehash.Algorithm, seed string) *chain {
	c := &chain{hash: enginehash.New(a)}
	if !c.sglang() {
		c.root = a.None(seed)
	}
	return c
}

func (c *chain) sglang() bool { return c.hash.Algorithm() == enginehash.SGLang }

// next returns the name of a block below above, nil for the first of a prompt.
func (c *chain) next(above *digest, tokens []uint32, salt string) digest {
	b := enginehash.Block{Tokens: tokens}
	switch {
	case above != nil:
	case c.sglang():
		above = enginehash.SaltRoot(salt)
	default:
		above = &c.root
		if salt != "" {
			b.Keys = []enginehash.Key{{Kind: enginehash.KeySalt, Name: salt}}
		}
	}
	return c.hash.Sum(above, &b)
}

// fold returns the wire's integer for a name, as a bit pattern.
func (c *chain) fold(d digest) kv.EngineHash { return c.hash.Algorithm().Fold(&d) }

func (c *chain) form() kv.HashForm {
	if c.sglang() {
		return kv.FormSigned
	}
	return kv.FormUnsigned
}

// annotate adds to an event what its engine says beyond hashes and tokens: SGLang
// the salt of a store, vLLM the one cache group, the kind of its attention, and
// the salt as an extra key of a prompt's first block.
func (c *chain) annotate(e *kv.Event, first bool, salt string) {
	stored := e.Kind == kv.KindStored
	if c.sglang() {
		if stored {
			e.Salt, e.HasSalt = salt, salt != ""
		}
		return
	}
	e.HasGroup = true
	if !stored {
		return
	}
	e.Spec, e.SpecName = kv.SpecFull, "full_attention"
	e.Extra, e.HasExtra = make([][]kv.ExtraKey, len(e.Hashes)), true
	if first && salt != "" {
		e.Extra[0] = []kv.ExtraKey{{Kind: kv.ExtraString, ID: salt}}
	}
}
