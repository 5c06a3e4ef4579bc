// SPDX-License-Identifier: Apache-2.0

package hashcheck

// Before this file: what fitted and what did not. After it: one line that says why.

import (
	"fmt"
	"slices"
	"strings"

	"kindex/internal/enginehash"
	"kindex/internal/kv"
)

// What it takes to explain what no known scheme explains, chosen, not measured: a
// stream that mismatches does so all the time.
const (
	sampleRoots   = 8
	sampleTokens  = 4096
	enoughRoots   = 2  // that mismatch, none fitting
	enoughBatches = 16 // since the first mismatch
	enoughAdapter = 8  // blocks of adapters, nothing else having been seen
)

// evidence is what one life of an engine has shown.
type evidence struct {
	rootsFit, chainedFit   uint64
	rootsMiss, chainedMiss uint64
	keyedMiss              uint64      // of both, blocks with extra keys
	adapters               uint64      // blocks of adapters that could not be checked
	batches                int         // since the first mismatch
	unsaid                 uint64      // first blocks of releases that do not announce keys, that did not fit
	samples                []*kv.Event // of one first block each
	tried                  int         // samples that all schemes were tried on
	finds                  int         // first blocks that all schemes were tried on to find one
	told                   bool        // why blocks differ was told: once a life is enough
}

func (e *evidence) mismatch(ev *kv.Event, i int) {
	keyed := i < len(ev.Extra) && len(ev.Extra[i]) > 0
	if keyed {
		e.keyedMiss++
	}
	if i > 0 || ev.HasParent {
		e.chainedMiss++
		return
	}
	e.rootsMiss++
	e.sample(ev)
}

// sample keeps a copy of ev's first block, a first block that did not fit.
func (e *evidence) sample(ev *kv.Event) {
	if len(e.samples) == sampleRoots || ev.BlockSize > sampleTokens {
		return
	}
	s := &kv.Event{
		Hashes: slices.Clone(ev.Hashes[:1]), BlockSize: ev.BlockSize, Tokens: slices.Clone(ev.Tokens[:ev.BlockSize]),
		Salt: strings.Clone(ev.Salt), ArrayItems: ev.ArrayItems, HasExtra: ev.HasExtra,
	}
	if ev.Second != nil {
		s.Second = slices.Clone(ev.Second[:ev.BlockSize])
	}
	if d := digestOf(ev, 0); d != nil {
		s.Digests = [][]byte{slices.Clone(d)}
	}
	if len(ev.Lookahead) > 0 {
		s.Lookahead = [][]uint32{slices.Clone(ev.Lookahead[0])}
	}
	if len(ev.Extra) > 0 {
		keys := slices.Clone(ev.Extra[0])
		for i := range keys {
			keys[i].ID = strings.Clone(keys[i].ID)
		}
		s.Extra = [][]kv.ExtraKey{keys}
	}
	e.samples = append(e.samples, s)
}

// explains reports whether sch makes the hash of ev's first block, which is a
// chain's first.
func (c *Checker) explains(sch *scheme, ev *kv.Event) bool {
	if d := digestOf(ev, 0); d != nil && (len(d) != sch.alg.Size() || sch.alg == enginehash.SGLang) {
		return false
	}
	scheme, hasher, try, bare, dynamo := c.scheme, c.hasher, c.unitTry, c.bare, c.dynamo
	c.scheme, c.hasher, c.unitTry = *sch, enginehash.New(sch.alg), 0
	above := &sch.none
	if sch.alg == enginehash.SGLang {
		above = enginehash.SaltRoot(ev.Salt)
	}
	_, ok := c.fit(ev, 0, above)
	c.scheme, c.hasher, c.unitTry, c.bare, c.dynamo = scheme, hasher, try, bare, dynamo
	return ok
}

// find looks for the scheme that makes ev's first hash, and adopts it.
func (c *Checker) find(ev *kv.Event) bool {
	e := &c.evidence
	if e.finds >= sampleRoots || adapter(ev) || ev.BlockSize > sampleTokens {
		return false
	}
	if ev.HasParent {
		return c.findBelow(ev)
	}
	e.finds++
	for _, sch := range schemes(c.cfg.Seed) {
		if c.explains(&sch, ev) {
			e.rootsMiss = 0
			c.adopt(sch)
			return true
		}
	}
	e.rootsMiss++
	return false
}

// findBelow finds the algorithm without the seed, where the wire shows the full
// digest above.
func (c *Checker) findBelow(ev *kv.Event) bool {
	for _, a := range enginehash.VLLM() {
		if len(ev.ParentDigest) == a.Size() && c.explains(&scheme{alg: a, none: wide(ev.ParentDigest)}, ev) {
			c.evidence.rootsMiss = 0
			c.adopt(scheme{alg: a})
			return true
		}
	}
	return false
}

// explain returns what is known to be wrong, or "". What it returns of blocks that
// differ it returns once a life; of what cannot be checked, while it is so.
func (c *Checker) explain() string {
	e := &c.evidence
	fit := e.rootsFit + e.chainedFit
	switch {
	case e.told:
		return ""
	case !c.found:
		if e.rootsMiss < enoughRoots {
			return ""
		}
		return "the engine's hashes fit no known algorithm with a known seed: set its PYTHONHASHSEED and give --hash-check ALGORITHM:SEED"
	case e.rootsMiss+e.chainedMiss > 0:
		e.batches++
		w := c.explainMisses()
		e.told = w != ""
		return w
	case e.adapters > 0 && (fit > 0 || e.adapters >= enoughAdapter):
		return fmt.Sprintf("blocks of LoRA adapters cannot be checked: what the engine (%v) hashes of an adapter is not in its events; no other block differs", c.scheme.alg)
	case c.stats.Unverifiable[UnknownSeed] >= enoughRoots && e.rootsFit == 0 && !c.scheme.hasNone && c.scheme.alg != enginehash.SGLang:
		return fmt.Sprintf("first blocks cannot be checked: without PYTHONHASHSEED the engine draws the seed of %v at random; set it and give --hash-check %v:SEED", c.scheme.alg, c.scheme.alg)
	}
	return ""
}

func (c *Checker) explainMisses() string {
	e := &c.evidence
	if e.rootsFit == 0 {
		if w := c.tryAll(); w != "" {
			return w
		}
	}
	if (e.rootsFit > 0 || e.rootsMiss < enoughRoots) && e.batches < enoughBatches {
		return ""
	}
	misses := e.rootsMiss + e.chainedMiss
	switch {
	case e.rootsFit == 0 && e.rootsMiss > 0 && e.chainedFit > 0:
		return fmt.Sprintf("another seed: the engine hashes by %v, but no first block fits %s; give --hash-check %v:SEED with its PYTHONHASHSEED", c.scheme.alg, c.seedText(), c.scheme.alg)
	case e.rootsFit == 0 && e.rootsMiss > 0 && c.scheme.alg == enginehash.SGLang:
		return "another algorithm: no first page has the hash that SGLang 0.5.6 or later gives it"
	case e.rootsFit == 0 && e.rootsMiss > 0:
		return fmt.Sprintf("another seed, most likely: no first block fits %v with %s, nor any other known algorithm with a common seed; give --hash-check %v:SEED with the engine's PYTHONHASHSEED", c.scheme.alg, c.seedText(), c.scheme.alg)
	case e.keyedMiss == misses:
		return "blocks with extra keys (salts, images, embeddings) do not fit, all others do: this release hashes such keys in a form that is not known"
	case c.scheme.alg == enginehash.SGLang && e.rootsMiss > 0:
		return "some first pages do not fit, others do: their requests had an extra key that the events do not name, and the engine publishes in the format dynamo"
	}
	return fmt.Sprintf("some blocks do not fit %v, others do: their events or tokens are damaged, or they have keys that this release does not announce", c.scheme.alg)
}

func (c *Checker) seedText() string {
	switch c.scheme.seed {
	case enginehash.DefaultSeed:
		return "the default seed"
	case "":
		return "the given digest"
	}
	return fmt.Sprintf("the seed %q", c.scheme.seed)
}

// tryAll looks for a scheme that explains every sample not tried yet.
func (c *Checker) tryAll() string {
	e := &c.evidence
	if e.tried == len(e.samples) {
		return ""
	}
	e.tried = len(e.samples)
	for _, sch := range schemes(c.scheme.seed) {
		all := true
		for i := range e.samples {
			all = all && c.explains(&sch, e.samples[i])
		}
		if !all {
			continue
		}
		with := ""
		if sch.hasNone && sch.seed == enginehash.DefaultSeed {
			with = " with the default seed"
		} else if sch.hasNone {
			with = fmt.Sprintf(" with the seed %q", sch.seed)
		}
		if sch.alg == c.scheme.alg {
			return fmt.Sprintf("another seed: the engine hashes by %v%s, not with %s", sch.alg, with, c.seedText())
		}
		return fmt.Sprintf("another algorithm: the engine hashes by %v%s, not by %v", sch.alg, with, c.scheme.alg)
	}
	if d := digestOf(e.samples[0], 0); d != nil && len(d) != c.scheme.alg.Size() {
		return fmt.Sprintf("another algorithm: the engine's digests have %d bytes, those of %v have %d", len(d), c.scheme.alg, c.scheme.alg.Size())
	}
	return ""
}
