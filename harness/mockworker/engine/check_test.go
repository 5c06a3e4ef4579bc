// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
)

// check returns the first invariant that does not hold between two passes.
func (s *scheduler) check() error {
	if err := s.cache.pool.check(); err != nil {
		return err
	}
	refs := make(map[int32]int32)
	for _, j := range slices.Concat(s.running, s.waiting) {
		running := slices.Contains(s.running, j)
		switch {
		case j.over:
			return fmt.Errorf("request %s has ended and is still in a list", j.ID)
		case !running && (len(j.blocks) > 0 || len(j.windows) > 0 || j.computed > 0):
			return fmt.Errorf("request %s waits and has %d blocks", j.ID, len(j.blocks))
		case s.cache.windowOnly && len(j.blocks) > 0:
			return fmt.Errorf("request %s has %d blocks of a group that is not there", j.ID, len(j.blocks))
		case !s.cache.windowOnly && j.computed+j.share > len(j.blocks)*s.cache.size:
			return fmt.Errorf("request %s has %d+%d tokens in %d blocks", j.ID, j.computed, j.share, len(j.blocks))
		case len(j.blocks) > s.cache.span(len(j.tokens)):
			return fmt.Errorf("request %s has %d blocks for %d tokens", j.ID, len(j.blocks), len(j.tokens))
		}
		for i, b := range j.blocks {
			refs[b]++
			block := &s.cache.pool.blocks[b]
			if named := i < j.named; named != block.named || named && block.name != j.names[i] {
				return fmt.Errorf("request %s: block %d of %d named: %v, the pool says %v", j.ID, i, j.named, named, block.named)
			}
		}
	}
	for _, j := range s.running {
		for g, w := range j.windows {
			if j.computed+j.share > len(w.blocks)*s.cache.size {
				return fmt.Errorf("request %s has %d+%d tokens in %d blocks of group %d", j.ID, j.computed, j.share, len(w.blocks), g)
			}
			for i, b := range w.blocks {
				if b == none {
					continue
				}
				refs[b]++
				if block := &s.cache.pool.blocks[b]; block.named && (i >= w.named || block.name != inGroup(j.names[i], g, s.cache.main()) || block.group != g) {
					return fmt.Errorf("request %s: block %d of group %d has another's name", j.ID, i, g)
				}
			}
		}
	}
	if len(s.running) > s.limits.running {
		return fmt.Errorf("%d requests run, at most %d may", len(s.running), s.limits.running)
	}
	for i := range s.cache.pool.blocks {
		if got, want := s.cache.pool.blocks[i].refs, refs[int32(i)]; got != want {
			return fmt.Errorf("block %d: %d references, %d requests have it", i, got, want)
		}
	}
	return s.cache.checkTold()
}

// check walks the free queue both ways and counts what is named.
func (p *pool) check() error {
	seen := make(map[int32]bool)
	before := int32(none)
	cached := false // a named block was passed
	for i := p.first; i != none; i = p.blocks[i].after {
		b := &p.blocks[i]
		switch {
		case seen[i]:
			return fmt.Errorf("block %d stands twice in the free queue", i)
		case b.refs != 0:
			return fmt.Errorf("block %d is free and has %d references", i, b.refs)
		case b.before != before:
			return fmt.Errorf("block %d: %d stands before it, it says %d", i, before, b.before)
		case cached && !b.named:
			return fmt.Errorf("block %d has no name and stands behind one that has", i)
		}
		seen[i], before, cached = true, i, cached || b.named
	}
	if p.last != before || len(seen) != p.free {
		return fmt.Errorf("the free queue has %d blocks and ends in %d, the pool says %d and %d", len(seen), before, p.free, p.last)
	}
	named := 0
	for i := range p.blocks {
		b := &p.blocks[i]
		switch {
		case b.refs < 0:
			return fmt.Errorf("block %d has %d references", i, b.refs)
		case b.refs == 0 && !seen[int32(i)]:
			return fmt.Errorf("block %d is neither free nor used", i)
		case b.named && !p.has(b.name, int32(i)):
			return fmt.Errorf("block %d is named and cannot be found", i)
		case !b.named && b.next != none:
			return fmt.Errorf("block %d has no name and a copy of it", i)
		case b.named:
			named++
		}
	}
	for d, i := range p.named {
		if !p.blocks[i].named || p.blocks[i].name != d {
			return fmt.Errorf("a name of no block")
		}
		named -= p.copies(d)
	}
	if named != 0 {
		return fmt.Errorf("%d more blocks are named than can be found", named)
	}
	return nil
}

// has reports whether block i is among the copies of d.
func (p *pool) has(d digest, i int32) bool {
	at, ok := p.find(d)
	for ; ok && at != none; at = p.blocks[at].next {
		if at == i {
			return true
		}
	}
	return false
}

// checkTold holds what was told of blocks against those that are cached anywhere.
func (c *Cache) checkTold() error {
	cached := make(map[digest]bool)
	for key, i := range c.pool.named {
		cached[inGroup(key, c.pool.blocks[i].group, c.main())] = true
	}
	for _, t := range c.lower {
		copies := make(map[digest]int)
		for e := t.order.Front(); e != nil; e = e.Next() {
			u, ok := e.Value.(*unit)
			if !ok || len(u.names) != t.chunk || t.units[u.key(c.main())] != e {
				return fmt.Errorf("the %s has a chunk in its order that cannot be found", t.tier)
			}
			for _, d := range u.names {
				copies[inGroup(d, u.group, c.main())]++
				cached[d] = true
			}
		}
		if n := t.order.Len(); n != len(t.units) || n > t.most || !maps.Equal(copies, t.copies) {
			return fmt.Errorf("%d chunks on the %s, %d in order, %d may be; copies of %d blocks are counted, of %d there are", len(t.units), t.tier, n, t.most, len(t.copies), len(copies))
		}
	}
	if len(c.leaving) > 0 {
		return fmt.Errorf("%d blocks are still leaving", len(c.leaving))
	}
	for d := range cached {
		if c.told[d] == nil {
			return fmt.Errorf("a block is cached that was never told")
		}
	}
	if len(c.told) != len(cached) {
		return fmt.Errorf("%d blocks told, %d cached", len(c.told), len(cached))
	}
	return nil
}
