// SPDX-License-Identifier: Apache-2.0

// Before: State.Cut, under the rank's lock. After: chunks.go, for subscribers.

package live

import (
	"slices"
	"sync"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
)

// Cut is the content of a State at one moment: its chunks of records, which the
// State copies before it changes them, and its blobs, whose cells the State leaves
// alone until the cut is closed.
//
// Concurrency: any goroutine, without the rank's lock; several at once.
type Cut struct {
	of     *cuts
	number uint64
	pinned uint64 // bytes that the State keeps for it; of.mu's
	once   sync.Once

	recs   slab[record]
	nodes  slab[node]
	blobs  []*[blobChunk]byte
	attrs  []*shared
	blocks uint64
	copies uint64
	ghosts uint64
	salt   uint64
	hashed bool

	order func() []uint32
}

// Cut returns the content as it is now, or ErrCuts. It must be closed.
//
// Cost: microseconds: it copies references, a thousandth of the content.
func (s *State) Cut() (*Cut, error) {
	c := &Cut{of: &s.cuts}
	if !s.cuts.begin(c, s.opts.MaxCuts) {
		return nil, ErrCuts
	}
	c.recs = slab[record]{chunks: slices.Clone(s.recs.chunks), next: s.recs.next}
	c.nodes = slab[node]{chunks: slices.Clone(s.nodes.chunks), next: s.nodes.next}
	c.blobs, c.attrs = slices.Clip(s.blobs.chunks), slices.Clone(s.attrs.list)
	c.blocks, c.copies, c.ghosts = s.stats.Blocks, s.stats.Copies, s.stats.Ghosts
	c.salt, c.hashed = s.salt, s.opts.HashTokens
	c.order = sync.OnceValue(c.parentsFirst)
	return c, nil
}

// Close ends the cut: what it kept is free for use again. Chunks made of it must
// not be used any more. Further calls do nothing.
func (c *Cut) Close() { c.once.Do(func() { c.of.end(c) }) }

// Blocks returns the physical copies in the cut.
func (c *Cut) Blocks() uint64 { return c.copies }

// Digest returns the sum that internal/livedigest computes of the same content.
//
// Cost: about 10 ns a block.
func (c *Cut) Digest() uint64 {
	var sum uint64
	var counts []placeCount
	for i := uint32(1); i < c.recs.next; i++ {
		r := c.recs.at(i)
		if r.size&held == 0 {
			continue
		}
		counts = append(counts[:0], placeCount{c.attrs[r.attr].place, 1})
		for n := r.more; n != 0; {
			nd := c.nodes.at(n)
			counts = count(counts, c.attrs[nd.attr].place, nd.count)
			n = nd.next
		}
		for _, p := range counts {
			sum += livedigest.Copies(kv.EngineHash(r.engine), r.position, p.place.tier(), p.place.group(), p.n)
		}
	}
	return sum
}

// placeCount is how many copies lie at one place.
type placeCount struct {
	place place
	n     uint32
}

func count(counts []placeCount, at place, n uint32) []placeCount {
	for i := range counts {
		if counts[i].place == at {
			counts[i].n += n
			return counts
		}
	}
	return append(counts, placeCount{at, n})
}

// engineOf returns the engine hash of record i: a ghost's is one that nobody uses.
func (c *Cut) engineOf(i uint32) uint64 {
	r := c.recs.at(i)
	if r.size&ghost == 0 {
		return r.engine
	}
	return livedigest.Child(c.salt^uint64(i), kv.ContentHash(r.position))
}

// parentsFirst returns the records in use so that each comes after its parent, and
// right after it where that has no other child.
func (c *Cut) parentsFirst() []uint32 {
	n := c.recs.next
	if n == 0 {
		return nil
	}
	// Lists of children: below record i from first[i], on by next.
	lists := make([]uint32, 2*n)
	first, next := lists[:n], lists[n:]
	for i := n - 1; i > 0; i-- {
		if r := c.recs.at(i); r.size&(held|ghost) != 0 {
			next[i] = first[r.parent]
			first[r.parent] = i
		}
	}
	order := make([]uint32, 0, c.blocks+c.ghosts)
	aside := []uint32{first[0]}
	for len(aside) > 0 {
		i := aside[len(aside)-1]
		aside = aside[:len(aside)-1]
		for ; i != 0; i = first[i] {
			order = append(order, i)
			if next[i] != 0 {
				aside = append(aside, next[i])
			}
		}
	}
	return order
}
