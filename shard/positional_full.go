// SPDX-License-Identifier: Apache-2.0

// Hop before: positionalCore's stores, when there may be no room.
// Hop after: its maps.

package shard

import "kindex/internal/kv"

func (c *positionalCore) tighten(on bool) { c.tight = on }

// taken is reckoned from counts alone: entries, edges, and what the slots that
// hold them keep, as of a fleet whose holders share little.
func (c *positionalCore) taken() (used, bound uint64) {
	perEntry := entryBytes + mapBytes(1024, edgeBytes+4)/1024 + mapBytes(1024, 12)/1024
	return uint64(len(c.entries)-len(c.free)) * perEntry, c.bound
}

func (c *positionalCore) pressed() uint64 {
	used, _ := c.taken()
	return used
}

// refuses reports whether nothing new is taken: what is full stays as it is.
func (c *positionalCore) refuses() bool {
	used, bound := c.taken()
	return c.tight || bound > 0 && used >= bound
}

// follow returns the entries that are there of the chain of contents below at, or
// at ns's root.
func (c *positionalCore) follow(ns kv.Namespace, at pos, contents []kv.ContentHash) []uint32 {
	cur := uint32(at)
	if at == 0 {
		cur = c.roots[ns]
	}
	var there []uint32
	for _, content := range contents {
		if cur = c.edges[posEdge{cur, content}]; cur == 0 {
			break
		}
		there = append(there, cur)
	}
	return there
}

// refuse ends what s holds by engines elsewhere than at the entries there, where
// their store, which is refused, would have put them.
func (c *positionalCore) refuse(s slot, engines []kv.EngineHash, there []uint32, moved []kv.EngineHash) []kv.EngineHash {
	var gone []kv.EngineHash
	for i, e := range engines {
		if was := uint32(c.find(s, e)); was != 0 && (i >= len(there) || there[i] != was) {
			gone = append(gone, e)
		}
	}
	c.remove(s, gone, nil)
	return append(moved, gone...)
}
