// SPDX-License-Identifier: Apache-2.0

package hashcheck

// Before this file: a decoded batch. After it: counters, and a warning.

import (
	"sync"
	"time"

	"kindex/internal/enginehash"
	"kindex/internal/kv"
)

// Reason is why a block could not be checked.
type Reason uint8

// The reasons.
const (
	UnknownParent    Reason = iota // the parent's digest was not computed here
	UnknownSeed                    // a first block, and the seed is not known
	UnknownAlgorithm               // auto has not found it (yet)
	LoRA                           // an adapter's block: what is hashed is not on the wire
	Unaligned                      // hashes and tokens that are not block for block
	KeysUnsaid                     // a release that does not announce extra keys
	Hidden                         // a namespace that the event does not name
	numReasons
)

// String returns the metric label of r.
func (r Reason) String() string {
	return [numReasons]string{"unknown_parent", "unknown_seed", "unknown_algorithm", "lora", "unaligned", "keys_unsaid", "hidden_namespace"}[r]
}

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{UnknownParent, UnknownSeed, UnknownAlgorithm, LoRA, Unaligned, KeysUnsaid, Hidden}
}

// Limits, chosen, not measured.
const (
	keepDigests     = 1 << 17 // in each of two generations
	blocksPerSecond = 100_000
	enoughUnsaid    = 4 // first blocks
)

// Stats are a checker's counters.
type Stats struct {
	Checked      uint64 // blocks whose hash was computed and compared
	Mismatched   uint64 // of those, blocks whose hash was another one
	Unverifiable [numReasons]uint64
	Skipped      uint64 // beyond what is checked in a second
	Digests      int    // kept
	Algorithm    string // "" until found out
	Warning      string // the last one
}

// Rate returns the share of the checked blocks that mismatched.
func (s *Stats) Rate() float64 {
	if s.Checked == 0 {
		return 0
	}
	return float64(s.Mismatched) / float64(s.Checked)
}

// Checker checks one stream. A nil checker checks nothing.
//
// Concurrency: one goroutine calls Check and Restart; any may call Stats.
type Checker struct {
	cfg Config

	mu     sync.Mutex
	stats  Stats
	hasher *enginehash.Hasher
	scheme scheme
	found  bool // scheme is one to check by

	young, old map[kv.EngineHash]enginehash.Digest

	second  time.Time // when the budget was filled
	budget  int       // blocks left of it
	bare    bool      // keys fit in the bare form last
	dynamo  bool      // hashes of salted chains are hidden
	units   map[int]int
	unitTry int

	evidence evidence
	warned   map[string]bool

	last  enginehash.Digest // above the block in work
	keys  []enginehash.Key  // of the block in work
	block enginehash.Block
}

// New returns a checker; nil for a nil cfg, which is off.
func New(cfg *Config) *Checker {
	if cfg == nil {
		return nil
	}
	c := &Checker{cfg: *cfg, warned: map[string]bool{}, units: map[int]int{}}
	c.Restart()
	return c
}

// Restart forgets what belongs to one life of the engine. What was counted stays
// counted.
func (c *Checker) Restart() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.young, c.old = map[kv.EngineHash]enginehash.Digest{}, nil
	c.evidence = evidence{}
	clear(c.units)
	c.unitTry, c.bare, c.dynamo = 0, false, false
	c.found = !c.cfg.Auto
	switch {
	case c.cfg.Auto && c.cfg.Engine == "sglang":
		c.adopt(scheme{alg: enginehash.SGLang})
	case !c.cfg.Auto:
		c.adopt(c.cfg.scheme())
	}
}

func (c *Checker) adopt(s scheme) {
	c.scheme, c.found, c.hasher = s, true, enginehash.New(s.alg)
	c.stats.Algorithm = s.alg.String()
}

// Stats returns the counters.
func (c *Checker) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Digests = len(c.young) + len(c.old)
	return s
}

// Check checks the blocks that b stores. It returns a warning for the operator,
// or "": each explanation of what differs is returned once.
func (c *Checker) Check(b *kv.Batch, now time.Time) (warning string) {
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := now.Sub(c.second); d >= time.Second || d < 0 {
		c.second, c.budget = now, blocksPerSecond
	}
	for i := range b.Events {
		if ev := &b.Events[i]; ev.Kind == kv.KindStored && ev.Tier == kv.TierDevice && len(ev.Hashes) > 0 && len(ev.Tokens) > 0 {
			c.event(ev)
		}
	}
	w := c.explain()
	if w == "" || c.warned[w] {
		return ""
	}
	c.warned[w] = true
	c.stats.Warning = w
	return w
}

// event checks one stored event.
func (c *Checker) event(ev *kv.Event) {
	n := len(ev.Hashes)
	if ev.BlockSize <= 0 || len(ev.Tokens)%ev.BlockSize != 0 || len(ev.Tokens)/ev.BlockSize != n {
		c.stats.Unverifiable[Unaligned] += uint64(n)
		return
	}
	if c.budget < n {
		c.budget = 0
		c.stats.Skipped += uint64(n)
		return
	}
	c.budget -= n
	if !c.found && !c.find(ev) {
		c.stats.Unverifiable[UnknownAlgorithm] += uint64(n)
		return
	}
	above, reason, ok := c.above(ev)
	for i := range n {
		if !ok {
			if reason == UnknownParent && adapter(ev) {
				reason = LoRA // nor could its parent be checked
			}
			c.stats.Unverifiable[reason] += uint64(n - i)
			return
		}
		d, fits := c.fit(ev, i, above)
		c.count(ev, i, fits)
		switch {
		case fits:
			c.keep(ev.Hashes[i], d)
			above, c.last = &c.last, d
		case c.fullDigest(digestOf(ev, i)):
			above, c.last = &c.last, wide(ev.Digests[i])
		default:
			ok, reason = false, UnknownParent
		}
	}
}

// above returns the digest above ev's first block: nil, with ok, where there is
// none to hash.
func (c *Checker) above(ev *kv.Event) (d *enginehash.Digest, reason Reason, ok bool) {
	switch {
	case ev.HasParent && c.fullDigest(ev.ParentDigest):
		c.last = wide(ev.ParentDigest)
		return &c.last, 0, true
	case ev.HasParent:
		c.last, ok = c.lookup(ev.Parent)
		return &c.last, UnknownParent, ok
	case c.scheme.alg == enginehash.SGLang:
		return enginehash.SaltRoot(ev.Salt), 0, true
	}
	c.last = c.scheme.none
	return &c.last, UnknownSeed, c.scheme.hasNone
}

// fullDigest reports whether b is a digest of the scheme's, as some wires show
// them. SGLang's show none.
func (c *Checker) fullDigest(b []byte) bool {
	return len(b) == c.scheme.alg.Size() && c.scheme.alg != enginehash.SGLang
}

func digestOf(ev *kv.Event, i int) []byte {
	if i < len(ev.Digests) {
		return ev.Digests[i]
	}
	return nil
}

func wide(b []byte) (d enginehash.Digest) {
	copy(d[:], b)
	return d
}

// lookup returns the digest of a block that was checked.
func (c *Checker) lookup(h kv.EngineHash) (enginehash.Digest, bool) {
	if d, ok := c.young[h]; ok {
		return d, true
	}
	d, ok := c.old[h]
	if ok {
		c.keep(h, d)
	}
	return d, ok
}

// keep remembers a digest: content, so removals do not make it wrong.
func (c *Checker) keep(h kv.EngineHash, d enginehash.Digest) {
	if _, ok := c.young[h]; !ok && len(c.young) >= keepDigests {
		c.old, c.young = c.young, map[kv.EngineHash]enginehash.Digest{}
	}
	c.young[h] = d
}

// count counts the outcome of one block.
func (c *Checker) count(ev *kv.Event, i int, fits bool) {
	e := &c.evidence
	if fits {
		c.stats.Checked++
		if i == 0 && !ev.HasParent {
			e.rootsFit++
		} else {
			e.chainedFit++
		}
		return
	}
	if r, ok := c.excused(ev, i); ok {
		c.stats.Unverifiable[r]++
		if r == LoRA {
			e.adapters++
		}
		return
	}
	c.stats.Checked++
	c.stats.Mismatched++
	e.mismatch(ev, i)
}

// excused returns why a block that does not fit may not be held against the
// engine.
func (c *Checker) excused(ev *kv.Event, i int) (Reason, bool) {
	switch {
	case adapter(ev):
		return LoRA, true
	case c.unannounced(ev, i):
		e := &c.evidence
		if !ev.HasParent && i == 0 {
			e.unsaid++
			e.sample(ev)
		}
		// While nothing has fitted, a few first blocks may all have had such keys.
		return KeysUnsaid, e.rootsFit+e.chainedFit > 0 || e.unsaid <= enoughUnsaid
	case c.dynamo && !ev.HasParent && i == 0:
		return Hidden, true
	}
	return 0, false
}

// unannounced reports whether block i may have keys that its release does not
// announce in full: arrays have no salt (SGLang), no extra keys (vLLM up to eight
// elements), or items without their offsets (nine).
func (c *Checker) unannounced(ev *kv.Event, i int) bool {
	switch {
	case ev.ArrayItems == 0:
		return false
	case c.scheme.alg == enginehash.SGLang, ev.ArrayItems <= 8:
		return true
	}
	return ev.ArrayItems == 9 && i < len(ev.Extra) && len(ev.Extra[i]) > 0
}

// adapter reports whether ev's blocks are of a LoRA adapter.
func adapter(ev *kv.Event) bool { return ev.LoRAName != "" || ev.HasLoRAID && ev.LoRAID != 0 }
