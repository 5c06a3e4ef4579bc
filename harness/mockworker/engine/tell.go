// SPDX-License-Identifier: Apache-2.0

// Before: cache.go, windows.go and tier.go, which have what became of blocks. After:
// nothing; who takes the events has them.

package engine

import (
	"slices"

	"kindex/internal/kv"
)

// entry is what a cached block is, beyond its name.
type entry struct {
	engine   kv.EngineHash
	above    *digest        // name of the block before; nil: the block begins a chain
	parent   *kv.EngineHash // of that block
	content  kv.ContentHash
	position Position
	tokens   []uint32
	second   []uint32 // of SGLang's pairs; nil: none
	ahead    []uint32 // tokens after it that its name covers too; nil: none

	salt, lora string // of SGLang's namespace
	asked      int    // times that SGLang's tree was asked for it, or had it put in
}

// tell returns what is told of s's block i, which may be told of for the first time.
func (c *Cache) tell(s *sequence, i int) *entry {
	if r := c.told[s.names[i]]; r != nil {
		return r
	}
	seed := s.of.seed()
	place, first := Root(seed), 0
	for k := i - 1; k >= 0; k-- {
		if r := c.told[s.names[k]]; r != nil {
			first, place = k+1, r.position
			break
		}
	}
	var content kv.ContentHash
	for k := first; k <= i; k++ {
		var extra []byte
		for _, key := range c.hash.own(&s.of, k*c.size, (k+1)*c.size) {
			extra = kv.AppendExtraKey(extra, key)
		}
		content = kv.HashBlock(seed, s.tokens[k*c.size:(k+1)*c.size], extra)
		place = place.Below(content)
	}
	r := &entry{engine: c.hash.fold(s.names[i], s.of.LoRA), content: content, position: place, tokens: slices.Clone(s.tokens[i*c.size : (i+1)*c.size])}
	if c.hash.sglang() {
		r.salt, r.lora = s.of.Salt, s.of.LoRA
	}
	if i > 0 {
		name := s.names[i-1]
		parent := c.hash.fold(name, s.of.LoRA)
		r.above, r.parent = &name, &parent
	}
	switch {
	case c.hash.pairs:
		r.second = slices.Clone(s.tokens[i*c.size+1 : (i+1)*c.size+1])
	case c.hash.ahead > 0:
		r.ahead = slices.Clone(s.tokens[(i+1)*c.size : (i+1)*c.size+c.hash.ahead])
	}
	c.told[s.names[i]] = r
	return r
}

// storing returns the event of a group's storing of s's blocks from first to past, of
// which it names kept.
func (c *Cache) storing(s *sequence, group, first, past int, kept []int) kv.Event {
	e := kv.Event{
		Kind: kv.KindStored, Form: c.hash.form(), BlockSize: c.size, Medium: "GPU", SessionID: s.session,
		Tokens: slices.Clone(s.tokens[first*c.size : past*c.size]), Hashes: make([]kv.EngineHash, len(kept)),
	}
	if c.hash.pairs {
		e.Second = slices.Clone(s.tokens[first*c.size+1 : past*c.size+1])
	}
	if first > 0 {
		e.Parent, e.HasParent = c.hash.fold(s.names[first-1], s.of.LoRA), true
	}
	names := make([]digest, len(kept))
	for k, i := range kept {
		r := c.tell(s, i)
		e.Hashes[k], names[k] = r.engine, s.names[i]
		if r.ahead != nil {
			e.Lookahead = append(e.Lookahead, r.ahead)
		}
	}
	c.spell(&e, names, above(s.names, first))
	if c.hash.sglang() {
		e.Salt, e.HasSalt, e.LoRAName = s.of.Salt, s.of.Salt != "", s.of.LoRA
		return e
	}
	e.Group, e.HasGroup = group, true
	e.Spec, e.SpecName = kv.SpecFull, "full_attention"
	if group != c.main() {
		e.Spec, e.SpecName, e.Window, e.HasWindow = kv.SpecWindow, "sliding_window", c.windows[group].window, true
	}
	if s.of.LoRA != "" {
		e.LoRAName, e.LoRAID, e.HasLoRAID = s.of.LoRA, c.hash.adapter(s.of.LoRA), true
	}
	e.Extra, e.HasExtra = make([][]kv.ExtraKey, len(kept)), len(kept) > 0
	for k, i := range kept {
		e.Extra[k] = c.extra(s, i)
	}
	return e
}

// extra returns all that keys s's block i, as vLLM's wire shows it: the adapter on
// each, then items, the salt on a prompt's first, embeddings.
func (c *Cache) extra(s *sequence, i int) (keys []kv.ExtraKey) {
	if s.of.LoRA != "" {
		keys = append(keys, kv.ExtraKey{Kind: kv.ExtraString, ID: s.of.LoRA})
	}
	own := c.hash.own(&s.of, i*c.size, (i+1)*c.size)
	n := len(own)
	if n > 0 && own[n-1].Kind == kv.ExtraBytes {
		n--
	}
	keys = append(keys, own[:n]...)
	if i == 0 && s.of.Salt != "" {
		keys = append(keys, kv.ExtraKey{Kind: kv.ExtraString, ID: s.of.Salt})
	}
	return append(keys, own[n:]...)
}

// above returns the name before the i-th; nil for the first.
func above(names []digest, i int) *digest {
	if i == 0 {
		return nil
	}
	return &names[i-1]
}

// spell adds whole digests to an event of the named blocks, where the engine writes
// those. parent is the name above the first; nil: none.
func (c *Cache) spell(e *kv.Event, names []digest, parent *digest) {
	if !c.hash.digests {
		return
	}
	size := c.hash.hash.Algorithm().Size()
	e.Form, e.Digests = kv.FormBytes, [][]byte{}
	for i := range names {
		e.Digests = append(e.Digests, slices.Clone(names[i][:size]))
	}
	if parent != nil {
		e.ParentDigest = slices.Clone(parent[:size])
	}
}

// emit tells of a store or a clear. SGLang makes one event of neighbours where the
// chain goes on in the same place.
func (c *Cache) emit(e *kv.Event) {
	if n := len(c.events); n > 0 && c.hash.sglang() && e.Kind == kv.KindStored && e.HasParent {
		last := &c.events[n-1]
		if last.Kind == kv.KindStored && last.Medium == e.Medium && e.Parent == last.Hashes[len(last.Hashes)-1] &&
			e.Salt == last.Salt && e.LoRAName == last.LoRAName && e.SessionID == last.SessionID {
			last.Hashes, last.Tokens, last.Second = append(last.Hashes, e.Hashes...), append(last.Tokens, e.Tokens...), append(last.Second, e.Second...)
			return
		}
	}
	c.events = append(c.events, *e)
}

// lose tells of a group's losing blocks somewhere. SGLang makes one event of
// neighbours, and tells a chain that is lost from its end in its own order.
func (c *Cache) lose(where *site, group int, names ...digest) {
	e := kv.Event{
		Kind: kv.KindRemoved, Form: c.hash.form(), Medium: where.medium, Locality: where.locality, Ownership: where.owner,
		HasGroup: !c.hash.sglang(), Group: group,
	}
	for _, d := range names {
		e.Hashes = append(e.Hashes, c.told[d].engine)
	}
	if !c.hash.sglang() {
		c.spell(&e, names, nil)
		c.events = append(c.events, e)
		return
	}
	if n := len(c.events); n == 0 || c.events[n-1].Kind != kv.KindRemoved || c.events[n-1].Medium != e.Medium {
		e.Hashes = nil
		c.events = append(c.events, e)
		c.upward = nil
	}
	last := &c.events[len(c.events)-1]
	for _, d := range names {
		r := c.told[d]
		if c.upward == nil || *c.upward != r.engine {
			c.chained = len(last.Hashes)
		}
		last.Hashes = slices.Insert(last.Hashes, c.chained, r.engine)
		c.upward = r.parent
	}
}
