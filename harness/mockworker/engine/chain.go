// SPDX-License-Identifier: Apache-2.0

// Before: cache.go. After: internal/enginehash.

package engine

import (
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

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

	adapters map[string]int64 // numbers of the adapters told so far

	keys      keyForm
	described bool // vLLM tells a block on the host with its tokens, not by its hash alone
	digests   bool // vLLM writes whole digests, not integers
}

// keyForm is how a release of vLLM puts an adapter and a salt into its hashes.
type keyForm uint8

const (
	keysTagged keyForm = iota // since 0.31
	keysBare                  // texts alone
	keysNumber                // before 0.12: an adapter by its number
)

// space names what separates equal prompts. Empty strings name nothing.
type space struct {
	LoRA string // an adapter's name
	Salt string
}

// seed returns the seed of the space's content hashes.
func (s space) seed() uint64 { return kv.ContentSeed(s.LoRA, s.Salt) }

// path returns the folder that an engine would have the adapter from. It goes into
// vLLM's hashes and is not on the wire.
func (s space) path() string { return "/adapters/" + s.LoRA }

// newChain returns the hashes of an algorithm; seed roots vLLM's.
func newChain(a enginehash.Algorithm, seed string) *chain {
	c := &chain{hash: enginehash.New(a), adapters: make(map[string]int64)}
	if !c.sglang() {
		c.root = a.None(seed)
	}
	return c
}

func (c *chain) sglang() bool { return c.hash.Algorithm() == enginehash.SGLang }

// next returns the name of a block below above, nil for the first of a prompt.
func (c *chain) next(above *digest, tokens []uint32, of space) digest {
	b := enginehash.Block{Tokens: tokens}
	if c.sglang() {
		if above == nil {
			above = enginehash.SaltRoot(of.Salt)
		} else {
			plain := c.masked(*above, of)
			above = &plain
		}
		return c.masked(c.hash.Sum(above, &b), of)
	}
	if of.LoRA != "" {
		b.Keys = append(b.Keys, c.adapterKey(of))
	}
	if above == nil {
		above = &c.root
		if of.Salt != "" {
			kind := enginehash.KeySalt
			if c.keys != keysTagged {
				kind = enginehash.KeyBareText
			}
			b.Keys = append(b.Keys, enginehash.Key{Kind: kind, Name: of.Salt})
		}
	}
	return c.hash.Sum(above, &b)
}

// adapterKey returns what vLLM hashes of an adapter.
func (c *chain) adapterKey(of space) enginehash.Key {
	switch c.keys {
	case keysBare:
		return enginehash.Key{Kind: enginehash.KeyBareText, Name: of.LoRA}
	case keysNumber:
		return enginehash.Key{Kind: enginehash.KeyBareNumber, Offset: c.adapter(of.LoRA)}
	case keysTagged:
	}
	return enginehash.Key{Kind: enginehash.KeyLoRA, Name: of.LoRA, Path: of.path()}
}

// masked separates the names of SGLang's adapters, whose digests are those of the
// base model, and takes a name apart again.
func (c *chain) masked(d digest, of space) digest {
	if of.LoRA == "" {
		return d
	}
	h := xxh3.HashString128(of.LoRA)
	for i, b := range h.Bytes() {
		d[len(d)-1-i] ^= b
	}
	return d
}

// extend returns names with those of the further whole blocks of tokens, which
// begin with the blocks that names are of.
func (c *chain) extend(names []digest, tokens []uint32, size int, of space) []digest {
	n := len(tokens) / size
	names = slices.Grow(names, max(n-len(names), 0))
	for i := len(names); i < n; i++ {
		var above *digest
		if i > 0 {
			above = &names[i-1]
		}
		names = append(names, c.next(above, tokens[i*size:(i+1)*size], of))
	}
	return names
}

// fold returns the wire's integer for a name, as a bit pattern. SGLang hides an
// adapter's under its id, of which an engine has a new one each time it loads it.
func (c *chain) fold(d digest, of space) kv.EngineHash {
	if !c.sglang() || of.LoRA == "" {
		return c.hash.Algorithm().Fold(&d)
	}
	d = c.masked(d, of)
	id := fmt.Sprintf("%x", xxh3.HashString128(of.LoRA).Bytes())
	n := enginehash.MakeNamespace(&id, nil)
	return n.Hide(c.hash.Algorithm().Fold(&d))
}

// spell adds whole digests to an event of the named blocks, where the engine writes
// those. parent is the name above the first; nil: none.
func (c *chain) spell(e *kv.Event, names []digest, parent *digest) {
	if !c.digests {
		return
	}
	size := c.hash.Algorithm().Size()
	e.Form, e.Digests = kv.FormBytes, [][]byte{}
	for i := range names {
		e.Digests = append(e.Digests, append([]byte(nil), names[i][:size]...))
	}
	if parent != nil {
		e.ParentDigest = append([]byte(nil), parent[:size]...)
	}
}

func (c *chain) form() kv.HashForm {
	if c.sglang() {
		return kv.FormSigned
	}
	return kv.FormUnsigned
}

// annotate adds to an event what its engine says beyond hashes and tokens: SGLang
// the salt and the adapter of a store; vLLM the one cache group, the kind of its
// attention, and what keys a block beyond its tokens: the adapter on each, the salt
// on a prompt's first.
func (c *chain) annotate(e *kv.Event, first bool, of space) {
	stored := e.Kind == kv.KindStored
	if c.sglang() {
		if stored {
			e.Salt, e.HasSalt, e.LoRAName = of.Salt, of.Salt != "", of.LoRA
		}
		return
	}
	e.HasGroup = true
	if !stored {
		return
	}
	e.Spec, e.SpecName = kv.SpecFull, "full_attention"
	e.Extra, e.HasExtra = make([][]kv.ExtraKey, len(e.Hashes)), true
	if of.LoRA != "" {
		e.LoRAName, e.LoRAID, e.HasLoRAID = of.LoRA, c.adapter(of.LoRA), true
		for i := range e.Extra {
			e.Extra[i] = append(e.Extra[i], kv.ExtraKey{Kind: kv.ExtraString, ID: of.LoRA})
		}
	}
	if first && of.Salt != "" {
		e.Extra[0] = append(e.Extra[0], kv.ExtraKey{Kind: kv.ExtraString, ID: of.Salt})
	}
}

// adapter returns an engine's own number of an adapter: from 1, in the order in
// which they were first told.
func (c *chain) adapter(name string) int64 {
	n, ok := c.adapters[name]
	if !ok {
		n = int64(len(c.adapters)) + 1
		c.adapters[name] = n
	}
	return n
}

// hostMedium returns the engine's word for the host.
func (c *chain) hostMedium() string {
	if c.sglang() {
		return "CPU_PINNED"
	}
	return "CPU"
}

// onHost tells of block i of a run that was told on the device. vLLM's connector tells
// its hash alone unless it describes itself, and never what keys it.
func (c *chain) onHost(run *kv.Event, i int) kv.Event {
	e := *run
	e.Hashes = run.Hashes[i : i+1 : i+1]
	e.Extra, e.HasExtra = nil, false
	if run.Digests != nil {
		e.Digests = run.Digests[i : i+1 : i+1]
	}
	if !c.sglang() && !c.described {
		return kv.Event{Kind: e.Kind, Form: e.Form, Hashes: e.Hashes, Digests: e.Digests, Medium: e.Medium, HasGroup: true, Group: e.Group}
	}
	e.Tokens = run.Tokens[i*e.BlockSize : (i+1)*e.BlockSize : (i+1)*e.BlockSize]
	if i > 0 {
		e.Parent, e.HasParent = run.Hashes[i-1], true
		if run.Digests != nil {
			e.ParentDigest = run.Digests[i-1]
		}
	}
	return e
}
