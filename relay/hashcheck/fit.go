// SPDX-License-Identifier: Apache-2.0

package hashcheck

// Before this file: one block of an event, and the digest above it. After it: the
// digest that the block should have, in whichever form fits its hash.

import (
	"bytes"

	"kindex/internal/enginehash"
	"kindex/internal/kv"
)

// fit returns the digest of block i of ev below above, and whether the event's
// hash is that digest's.
func (c *Checker) fit(ev *kv.Event, i int, above *enginehash.Digest) (d enginehash.Digest, ok bool) {
	size := ev.BlockSize
	c.block = enginehash.Block{Tokens: ev.Tokens[i*size : (i+1)*size]}
	if ev.Second != nil {
		c.block.Second = ev.Second[i*size : (i+1)*size]
	}
	if c.scheme.alg == enginehash.SGLang {
		return c.fitPage(ev, i, above)
	}
	if i < len(ev.Lookahead) && len(ev.Lookahead[i]) > 0 {
		c.block.Lookahead = ev.Lookahead[i]
	}
	for _, bare := range [...]bool{c.bare, !c.bare} {
		for form := 0; c.form(ev, i, bare, form); form++ {
			c.block.Keys = c.keys
			if d, ok = c.fitShared(ev, i, above); ok {
				if len(c.keys) > 0 {
					c.bare = bare
				}
				return d, true
			}
		}
	}
	return c.fitUnits(ev, i, above)
}

// fitShared tries both ways in which equal identifiers can be pickled.
func (c *Checker) fitShared(ev *kv.Event, i int, above *enginehash.Digest) (d enginehash.Digest, ok bool) {
	c.block.Shared = false
	if d = c.hasher.Sum(above, &c.block); c.is(ev, i, &d) || !c.scheme.alg.Pickles() || !repeats(c.keys) {
		return d, c.is(ev, i, &d)
	}
	c.block.Shared = true
	d = c.hasher.Sum(above, &c.block)
	return d, c.is(ev, i, &d)
}

func repeats(keys []enginehash.Key) bool {
	for i := range keys {
		for j := range keys[:i] {
			if keys[i].Name == keys[j].Name && keys[i].Kind == keys[j].Kind {
				return true
			}
		}
	}
	return false
}

// is compares with as much of the digest as the wire shows.
func (c *Checker) is(ev *kv.Event, i int, d *enginehash.Digest) bool {
	if full := digestOf(ev, i); full != nil {
		return bytes.Equal(full, d[:c.scheme.alg.Size()])
	}
	return c.scheme.alg.Fold(d) == ev.Hashes[i]
}

// form sets c.keys to a form in which the block's extra keys may have been hashed,
// the given one of those that are bare or of those that are not, and reports
// whether there is such a form.
func (c *Checker) form(ev *kv.Event, i int, bare bool, form int) bool {
	c.keys = c.keys[:0]
	var wire []kv.ExtraKey
	if i < len(ev.Extra) {
		wire = ev.Extra[i]
	}
	if !bare {
		// An adapter's path is not on the wire.
		return form == 0 && !adapter(ev) && c.tagged(wire, i == 0 && !ev.HasParent)
	}
	if len(wire) == 0 && adapter(ev) {
		return c.unshown(ev, form)
	}
	for _, k := range wire {
		switch k.Kind {
		case kv.ExtraString:
			c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeyBareText, Name: k.ID})
		case kv.ExtraItem:
			c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeyBareItem, Name: k.ID, Offset: k.Offset})
		case kv.ExtraBytes:
			c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeyBareBytes, Blob: []byte(k.ID)})
		}
	}
	return form == 0 && len(wire) > 0
}

// unshown sets c.keys to the adapter alone, as releases hashed it that do not show
// extra keys: its name, or before 0.12 its number.
func (c *Checker) unshown(ev *kv.Event, form int) bool {
	if ev.LoRAName == "" {
		form++
	}
	switch {
	case form == 0:
		c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeyBareText, Name: ev.LoRAName})
	case form == 1 && ev.HasLoRAID:
		c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeyBareNumber, Offset: ev.LoRAID})
	default:
		return false
	}
	return true
}

// tagged sets c.keys to the form of vLLM 0.31 and later. On the wire the words are
// missing: a string is a salt, which stands on first blocks alone.
func (c *Checker) tagged(wire []kv.ExtraKey, first bool) bool {
	for _, k := range wire {
		switch k.Kind {
		case kv.ExtraString:
			if !first {
				return false
			}
			c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeySalt, Name: k.ID})
		case kv.ExtraItem:
			c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeyItem, Name: k.ID, Offset: k.Offset})
		case kv.ExtraBytes:
			c.keys = append(c.keys, enginehash.Key{Kind: enginehash.KeyEmbeds, Blob: []byte(k.ID)})
		}
	}
	return true
}

// unitTries bounds how often the size of the unit is looked for.
const unitTries = 16

// fitUnits tries hashes over units smaller than a block: models whose groups have
// blocks of several sizes hash at the smallest, and a larger block has the hash of
// its last unit. Keys are not told by unit, so that only plain blocks can be tried.
func (c *Checker) fitUnits(ev *kv.Event, i int, above *enginehash.Digest) (d enginehash.Digest, ok bool) {
	size := ev.BlockSize
	if i < len(ev.Extra) && len(ev.Extra[i]) > 0 || c.block.Lookahead != nil {
		return d, false
	}
	if unit := c.units[size]; unit > 0 {
		return c.chain(ev, i, above, unit)
	}
	if c.unitTry >= unitTries {
		return d, false
	}
	c.unitTry++
	for unit := size / 2; unit > 0 && size%unit == 0; unit /= 2 {
		if d, ok = c.chain(ev, i, above, unit); ok {
			c.units[size] = unit
			return d, true
		}
	}
	return d, false
}

// chain is the digest of the last unit of block i.
func (c *Checker) chain(ev *kv.Event, i int, above *enginehash.Digest, unit int) (d enginehash.Digest, ok bool) {
	d = *above
	tokens := ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize]
	for from := 0; from < len(tokens); from += unit {
		d = c.hasher.Sum(&d, &enginehash.Block{Tokens: tokens[from : from+unit]})
	}
	return d, c.is(ev, i, &d)
}

// fitPage tries SGLang's page as it is, and as it is published where namespaces
// are hidden.
func (c *Checker) fitPage(ev *kv.Event, i int, above *enginehash.Digest) (d enginehash.Digest, ok bool) {
	d = c.hasher.Sum(above, &c.block)
	if c.is(ev, i, &d) {
		return d, true
	}
	if ev.Salt == "" {
		return d, false
	}
	ns := enginehash.MakeNamespace(nil, &ev.Salt)
	if ns.Hide(c.scheme.alg.Fold(&d)) == ev.Hashes[i] {
		c.dynamo = true
		return d, true
	}
	return d, false
}
