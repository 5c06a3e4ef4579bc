// SPDX-License-Identifier: Apache-2.0

// Before: lookups, every so many of them. After: the page of ui.go.

package indexsrv

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
)

// Bounds of what is kept of lookups. Chosen: a page shows twenty, the table is wide
// enough that those are the right ones for some minutes of traffic. To note a lookup
// costs as much as to answer it: few enough are that the slowest in a hundred are others.
const (
	sampleEvery  = 128
	prefixBlocks = 8 // a prefix is so many leading blocks, or fewer
	maxPrefixes  = 512
)

// traffic is what a sample of the lookups asked for and found: one in sampleEvery
// of each stripe. Content hashes are all that it keeps of a prompt.
//
// Concurrency: any goroutine. A sample that meets another one is left out, so that
// no lookup waits.
type traffic struct {
	stripes [histogramStripes]trafficStripe

	mu       sync.Mutex
	lookups  uint64 // sampled
	found    uint64 // of them, those that any worker held something of
	blocks   uint64 // asked for
	deepest  uint64 // blocks of the deepest holder of each, in all
	prefixes map[uint64]*prefix
	rare     []*prefix // the same, a heap: the first is asked for least
}

type trafficStripe struct {
	n atomic.Uint64
	_ [56]byte // a line for each
}

// prefix counts the lookups that began with the same blocks.
type prefix struct {
	model  *model
	seed   uint64
	chain  []kv.ContentHash
	count  uint64 // at most: what it took over from the one it replaced is in it
	excess uint64 // how much of count that is
	key    uint64 // in prefixes
	at     int    // in rare
}

// rankTraffic is one rank's part in sampled lookups. The traffic's lock guards it.
type rankTraffic struct {
	lookups uint64 // that it held something of
	blocks  uint64 // that it held of those
}

// due reports whether the next lookup of the stripe is to be noted.
func (t *traffic) due(stripe int) bool {
	return t.stripes[uint(stripe)%histogramStripes].n.Add(1)%sampleEvery == 1
}

// note counts a lookup of chain, not empty, in one of m's namespaces, that found
// hits: of a lookup that asks for the deepest so many, those. whole says that these are
// the hits of all shards, or of the first.
func (t *traffic) note(m *model, seed uint64, chain []kv.ContentHash, hits []hit, whole bool) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	deepest := uint32(0)
	for _, h := range hits {
		deepest = max(deepest, h.any)
		h.traffic.lookups++
		h.traffic.blocks += uint64(h.any)
	}
	t.deepest += uint64(deepest)
	if !whole {
		return
	}
	t.lookups++
	t.blocks += uint64(len(chain))
	if deepest > 0 {
		t.found++
	}
	t.count(m, seed, chain[:min(len(chain), prefixBlocks)])
}

// count counts a prefix by the space-saving rule (Metwally, Agrawal and El Abbadi,
// 2005): a full table gives the place, and the count, of the rarest to the new one.
func (t *traffic) count(m *model, seed uint64, chain []kv.ContentHash) {
	key := seed ^ uint64(m.key)
	var b [8]byte
	for _, c := range chain {
		for i := range b {
			b[i] = byte(c >> (8 * i))
		}
		key = xxh3.HashSeed(b[:], key)
	}
	if p := t.prefixes[key]; p != nil {
		p.count++
		t.sink(p)
		return
	}
	if t.prefixes == nil {
		t.prefixes = make(map[uint64]*prefix, maxPrefixes)
	}
	p := &prefix{model: m, seed: seed, chain: slices.Clone(chain), key: key}
	if len(t.rare) == maxPrefixes {
		p.excess = t.rare[0].count
		delete(t.prefixes, t.rare[0].key)
		t.rare[0] = p
	} else {
		t.rare = append(t.rare, p)
		p.at = len(t.rare) - 1
	}
	p.count = p.excess + 1
	t.prefixes[key] = p
	for p.at > 0 && t.rare[(p.at-1)/2].count > p.count {
		t.swap(p, t.rare[(p.at-1)/2])
	}
	t.sink(p)
}

// swap exchanges the places of two in t.rare.
func (t *traffic) swap(p, q *prefix) {
	p.at, q.at = q.at, p.at
	t.rare[p.at], t.rare[q.at] = p, q
}

// sink moves p down to its place in t.rare, where its count has grown.
func (t *traffic) sink(p *prefix) {
	for {
		below := 2*p.at + 1
		if below >= len(t.rare) {
			return
		}
		if below+1 < len(t.rare) && t.rare[below+1].count < t.rare[below].count {
			below++
		}
		q := t.rare[below]
		if p.count <= q.count {
			return
		}
		t.swap(p, q)
	}
}

// top returns copies of the n prefixes asked for most.
func (t *traffic) top(n int) []prefix {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]prefix, 0, len(t.prefixes))
	for _, p := range t.prefixes {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b prefix) int {
		return cmp.Or(cmp.Compare(b.count-b.excess, a.count-a.excess), slices.Compare(a.chain, b.chain))
	})
	return all[:min(n, len(all))]
}
