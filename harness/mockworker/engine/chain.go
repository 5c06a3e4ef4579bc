// SPDX-License-Identifier: Apache-2.0

// Before: cache.go. After: internal/enginehash.

package engine

import (
	"crypto/sha256"
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

	adapters map[string]int64  // numbers of the adapters told so far
	paths    map[string]string // of adapters that an engine would not have in its own folder

	keys      keyForm
	ahead     int  // tokens after a block that its name covers too
	pairs     bool // SGLang's pages are of pairs of tokens; ahead is 1
	shared    bool // equal identifiers of two items in a block are one object, of which Python's pickle writes the first alone
	described bool // vLLM tells a block on a lower tier with its tokens, not by its hash alone
	digests   bool // vLLM writes whole digests, not integers
}

// keyForm is how a release of vLLM puts into its hashes what keys a block.
type keyForm uint8

const (
	keysTagged keyForm = iota // since 0.31
	keysBare                  // without the word that says what each is
	keysText                  // before 0.20: an item without its offset, too
	keysNumber                // before 0.12: an adapter by its number, too
)

// Item is an image, or another thing that is no text, within a prompt: its tokens
// there hold its place and say nothing of it.
type Item struct {
	ID     string `json:"id"`     // of its content
	Offset int    `json:"offset"` // of its first token
	Length int    `json:"length"` // tokens
}

// space names what separates equal prompts. Empty strings name nothing.
type space struct {
	LoRA   string // an adapter's name
	Salt   string
	Items  []Item   // by offset
	Embeds [][]byte // embeddings in the place of the prompt's tokens, one for each; nil: none
}

// seed returns the seed of the space's content hashes.
func (s *space) seed() uint64 { return kv.ContentSeed(s.LoRA, s.Salt) }

// newChain returns the hashes of an algorithm; seed roots vLLM's.
func newChain(a enginehash.Algorithm, seed string) *chain {
	c := &chain{hash: enginehash.New(a), adapters: make(map[string]int64)}
	if !c.sglang() {
		c.root = a.None(seed)
	}
	return c
}

func (c *chain) sglang() bool { return c.hash.Algorithm() == enginehash.SGLang }

// whole returns how many of a sequence's leading blocks have a name once it has n
// tokens.
func (c *chain) whole(n, size int) int { return max(n-c.ahead, 0) / size }

// extend returns names up to the n-th of the blocks of tokens, which begin with the
// blocks that names are of.
func (c *chain) extend(names []digest, tokens []uint32, n, size int, of *space) []digest {
	names = slices.Grow(names, max(n-len(names), 0))
	for i := len(names); i < n; i++ {
		names = append(names, c.next(above(names, i), tokens, i, size, of))
	}
	return names
}

// next returns the name of block i of tokens below above, nil for the first.
func (c *chain) next(above *digest, tokens []uint32, i, size int, of *space) digest {
	start, end := i*size, (i+1)*size
	b := enginehash.Block{Tokens: tokens[start:end], Shared: c.shared}
	if c.sglang() {
		if c.pairs {
			b.Second = tokens[start+1 : end+1]
		}
		if above == nil {
			above = enginehash.SaltRoot(of.Salt)
		} else {
			plain := c.masked(*above, of.LoRA)
			above = &plain
		}
		return c.masked(c.hash.Sum(above, &b), of.LoRA)
	}
	if c.ahead > 0 {
		b.Lookahead = tokens[end : end+c.ahead]
	}
	if of.LoRA != "" {
		b.Keys = append(b.Keys, c.adapterKey(of))
	}
	embeds := []kv.ExtraKey(nil)
	for _, k := range c.own(of, start, end) {
		if k.Kind == kv.ExtraBytes {
			embeds = append(embeds, k)
			continue
		}
		b.Keys = append(b.Keys, c.itemKey(&k))
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
	for _, k := range embeds {
		kind := enginehash.KeyEmbeds
		if c.keys != keysTagged {
			kind = enginehash.KeyBareBytes
		}
		b.Keys = append(b.Keys, enginehash.Key{Kind: kind, Blob: []byte(k.ID)})
	}
	return c.hash.Sum(above, &b)
}

// own returns what keys the block of the tokens from start to end beyond them and its
// namespace, as the wire shows it: the items that lie in it, or in what its name
// covers after it, and the digest of its embeddings.
func (c *chain) own(of *space, start, end int) (keys []kv.ExtraKey) {
	if c.sglang() {
		return nil // an item there has tokens of its own
	}
	for _, it := range of.Items {
		if it.Offset >= end+c.ahead || it.Offset+it.Length <= start {
			continue
		}
		k := kv.ExtraKey{Kind: kv.ExtraItem, ID: it.ID, Offset: int64(it.Offset - start)}
		if c.keys >= keysText {
			k = kv.ExtraKey{Kind: kv.ExtraString, ID: it.ID}
		}
		keys = append(keys, k)
	}
	if start < len(of.Embeds) {
		h := sha256.New()
		for _, row := range of.Embeds[start:min(end, len(of.Embeds))] {
			_, _ = h.Write(row)
		}
		keys = append(keys, kv.ExtraKey{Kind: kv.ExtraBytes, ID: string(h.Sum(nil))})
	}
	return keys
}

// itemKey returns what vLLM hashes of an item.
func (c *chain) itemKey(k *kv.ExtraKey) enginehash.Key {
	switch {
	case c.keys >= keysText:
		return enginehash.Key{Kind: enginehash.KeyBareText, Name: k.ID}
	case c.keys == keysBare:
		return enginehash.Key{Kind: enginehash.KeyBareItem, Name: k.ID, Offset: k.Offset}
	}
	return enginehash.Key{Kind: enginehash.KeyItem, Name: k.ID, Offset: k.Offset}
}

// adapterKey returns what vLLM hashes of an adapter.
func (c *chain) adapterKey(of *space) enginehash.Key {
	switch c.keys {
	case keysBare, keysText:
		return enginehash.Key{Kind: enginehash.KeyBareText, Name: of.LoRA}
	case keysNumber:
		return enginehash.Key{Kind: enginehash.KeyBareNumber, Offset: c.adapter(of.LoRA)}
	case keysTagged:
	}
	return enginehash.Key{Kind: enginehash.KeyLoRA, Name: of.LoRA, Path: c.path(of.LoRA)}
}

// path returns the folder that an engine would have an adapter from. It goes into
// vLLM's hashes and is not on the wire.
func (c *chain) path(adapter string) string {
	if at, ok := c.paths[adapter]; ok {
		return at
	}
	return "/adapters/" + adapter
}

// masked separates the names of SGLang's adapters, whose digests are those of the
// base model, and takes a name apart again.
func (c *chain) masked(d digest, lora string) digest {
	if lora == "" {
		return d
	}
	h := xxh3.HashString128(lora)
	for i, b := range h.Bytes() {
		d[len(d)-1-i] ^= b
	}
	return d
}

// fold returns the wire's integer for a name, as a bit pattern. SGLang hides an
// adapter's under its id, of which an engine has a new one each time it loads it.
func (c *chain) fold(d digest, lora string) kv.EngineHash {
	if !c.sglang() || lora == "" {
		return c.hash.Algorithm().Fold(&d)
	}
	d = c.masked(d, lora)
	id := fmt.Sprintf("%x", xxh3.HashString128(lora).Bytes())
	n := enginehash.MakeNamespace(&id, nil)
	return n.Hide(c.hash.Algorithm().Fold(&d))
}

func (c *chain) form() kv.HashForm {
	if c.sglang() {
		return kv.FormSigned
	}
	return kv.FormUnsigned
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
