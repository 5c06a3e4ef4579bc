// SPDX-License-Identifier: Apache-2.0

// Before: cache.go. After: pool.go.

package engine

import "slices"

// windowGroup is a group of layers that attend to a window of tokens only. Its blocks
// come from the same pool as the main group's, have the same hashes, and are given
// back as they slide out of the window. Those that no later request could begin with
// are never cached.
//
// Source: vLLM 0.32's v1/core/single_type_kv_cache_manager.py, SlidingWindowManager,
// and v1/core/kv_cache_coordinator.py, HybridKVCacheCoordinator.
type windowGroup struct{ window int } // tokens

// part is a sequence's share of one window group.
type part struct {
	blocks []int32 // physical, in order; none: slid out of the window
	named  int     // blocks that were looked at for being cached, from the first
}

// inGroup returns the key of a block's name in a group, or the name of such a key: a
// pool knows no groups.
func inGroup(d digest, group, main int) digest {
	if group != main {
		d[len(d)-1] ^= byte(group + 1)
	}
	return d
}

// need returns how many blocks before a place a request must find to begin there.
func (c *Cache) need(g int) int { return (c.windows[g].window - 1 + c.size - 1) / c.size }

// skipped returns how many of the leading blocks are out of a group's window once n
// tokens are computed.
func (c *Cache) skipped(g, n int) int { return max(n-c.windows[g].window+1, 0) / c.size }

// within returns how many of the blocks that the main group holds a request can begin
// with: the most that every window group allows.
func (c *Cache) within(names []digest, most int) int {
	for {
		before := most
		for g := range c.windows {
			most = c.reach(g, names[:most])
		}
		if most == before {
			return most
		}
	}
}

// reach returns how many of names a group lets a request begin with: those up to the
// last full window that is cached, else as many as are cached from the first on.
func (c *Cache) reach(g int, names []digest) int {
	need, run := c.need(g), 0
	for i, d := range slices.Backward(names) {
		if !c.cachedAlike(g, d) {
			run = 0
			continue
		}
		if run++; run >= need {
			return i + run
		}
	}
	return run
}

// cachedAlike reports whether every group of g's window has a block: alike groups are
// looked up as one.
func (c *Cache) cachedAlike(g int, d digest) bool {
	for o := range c.windows {
		if c.windows[o] != c.windows[g] {
			continue
		}
		if _, ok := c.pool.find(inGroup(d, o, c.main())); !ok {
			return false
		}
	}
	return true
}

// windowPrice is what [Cache.price] adds for the window groups.
func (c *Cache) windowPrice(s *sequence, hits, found, n int, capped bool) int {
	p := 0
	for g := range c.windows {
		must := c.span(n)
		if capped {
			must = min(must, c.span(c.windows[g].window-1+c.inFlight)+1)
		}
		skipped := c.skipped(g, found*c.size)
		p += max(must-max(skipped, hits), 0)
		for _, d := range s.names[min(skipped, hits):hits] {
			if i, ok := c.pool.find(inGroup(d, g, c.main())); ok && c.pool.blocks[i].refs == 0 {
				p++
			}
		}
	}
	return p
}

// adoptWindows is [Cache.adopt] of the window groups. What the main group has and a
// window group had lost is noted, so that it is kept this time.
func (c *Cache) adoptWindows(s *sequence, hits, found int) {
	if len(c.windows) == 0 {
		return
	}
	s.shared = 0
	if !c.windowOnly {
		if held := c.held(s.names[:c.usable(len(s.names), len(s.tokens))]); held > found {
			s.shared = held * c.size
		}
	}
	s.windows = make([]part, len(c.windows))
	for g := range c.windows {
		w := &s.windows[g]
		w.named = hits
		for b, d := range s.names[:hits] {
			i := int32(none)
			if b >= c.skipped(g, found*c.size) {
				i, _ = c.pool.find(inGroup(d, g, c.main()))
				c.pool.use(i)
			}
			w.blocks = append(w.blocks, i)
		}
	}
}

// slide gives back what is out of the windows of the next token.
func (c *Cache) slide(s *sequence) {
	for g := range s.windows {
		w := &s.windows[g]
		var gone []int32
		for i := min(c.skipped(g, s.computed), len(w.blocks)) - 1; i >= 0 && w.blocks[i] != none; i-- {
			gone = append(gone, w.blocks[i])
			w.blocks[i] = none
		}
		c.pool.release(gone...)
	}
}

// coverWindows is [Cache.cover] of the window groups. The event names all tokens and
// only those blocks that are kept, if any.
func (c *Cache) coverWindows(s *sequence, full int) {
	for g := range s.windows {
		w := &s.windows[g]
		if w.named >= full {
			continue
		}
		var kept []int
		for i := w.named; i < full; i++ {
			if w.blocks[i] != none && c.keeps(s, g, i) {
				c.pool.give(w.blocks[i], inGroup(s.names[i], g, c.main()), g)
				kept = append(kept, i)
			}
		}
		e := c.storing(s, g, w.named, full, kept)
		c.emit(&e)
		c.due(s, g, kept, &e)
		w.named = full
	}
}

// keeps reports whether a group caches block i of s: where all are kept, or in the
// last window before a place that a later request may begin at. These are each
// segment's end, the prompt's but for its last token, and where the main group has
// more in common with other prompts than this group.
func (c *Cache) keeps(s *sequence, g, i int) bool {
	need := c.need(g)
	if c.retain < 0 {
		return true
	}
	if c.retain > 0 {
		segment := c.retain / c.size
		if need >= segment || i%segment >= segment-need {
			return true
		}
	}
	for _, at := range [...]int{s.prompt - 1, s.shared} {
		if end := at / c.size; at > 0 && i >= end-need && i < end {
			return true
		}
	}
	return false
}

// endWindows is [Cache.end] of the window groups.
func (c *Cache) endWindows(s *sequence) {
	for g := range s.windows {
		var back []int32
		for _, b := range slices.Backward(s.windows[g].blocks) {
			if b != none {
				back = append(back, b)
			}
		}
		c.pool.release(back...)
	}
	s.windows = nil
}
