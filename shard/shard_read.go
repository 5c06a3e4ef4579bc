// SPDX-License-Identifier: Apache-2.0

// Hop before: indexsrv's queries.
// Hop after: the core, with slots; shard_answer.go makes holders of them.

package shard

import (
	"sync"

	"kindex/internal/kv"
)

var (
	_ Index   = (*Shard)(nil)
	_ Batcher = (*Shard)(nil)
	_ Grouper = (*Shard)(nil)
	_ Sized   = (*Shard)(nil)
)

// lookupScratch is what one lookup needs besides the caller's memory. It grows to
// what the largest lookup wanted and is used again.
type lookupScratch struct {
	walk walk
	flat flatAnswer
}

var scratchPool = sync.Pool{New: func() any { return new(lookupScratch) }}

func takeScratch() *lookupScratch {
	sc, ok := scratchPool.Get().(*lookupScratch)
	if !ok {
		panic("BUG: shard: foreign lookup scratch")
	}
	return sc
}

// giveScratch takes sc back, without what belongs to the caller or the index.
func giveScratch(sc *lookupScratch) {
	sc.release()
	scratchPool.Put(sc)
}

func (sc *lookupScratch) release() {
	sc.walk.c, sc.walk.chain, sc.walk.flat = nil, nil, nil
	sc.flat.t, sc.flat.dst = nil, nil
}

// walk looks chain up in s's core. What it finds stays in sc; flat may be nil.
func (s *Shard) walk(sc *lookupScratch, ns kv.Namespace, chain []kv.ContentHash, flat *flatAnswer) {
	w := &sc.walk
	if s.chain != nil {
		w.start(s.chain, ns, chain, flat)
		w.run()
		return
	}
	w.empty()
	w.few = s.core.lookup(ns, chain, w.few)
}

// Lookup implements [Index].
func (s *Shard) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	sc := takeScratch()
	base := len(dst)
	for {
		t := s.seats.Load()
		sc.flat.start(t, dst[:base])
		s.walk(sc, ns, chain, &sc.flat)
		dst = sc.flat.finish(&sc.walk)
		if s.seats.Load() == t {
			break
		}
	}
	giveScratch(sc)
	return dst
}

// Walk implements [Index].
func (s *Shard) Walk(id Holder, fn func(*Node) bool) error {
	h := s.holders[id]
	if h == nil {
		return ErrUnknownHolder
	}
	if h.any() == 0 {
		return nil
	}
	var n Node
	s.core.walk(h.any(), func(c *coreNode) bool {
		n = Node{ID: uint64(c.id), Parent: uint64(c.parent), Namespace: c.ns, Content: c.content, Copies: n.Copies[:0]}
		n.Copies = s.appendCopies(n.Copies, h, c)
		return fn(&n)
	})
	return nil
}

// appendCopies appends the copies of one position that h holds.
func (s *Shard) appendCopies(dst []Copy, h *holder, c *coreNode) []Copy {
	for _, e := range c.engines {
		for i := range h.raws {
			r := &h.raws[i]
			if len(h.raws) > 1 && s.core.find(r.slot, e) != c.id {
				continue
			}
			dst = append(dst, Copy{Engine: e, Tier: r.tier, Group: r.group, Count: 1 + r.extra[e]})
		}
	}
	return dst
}

// HolderStats implements [Index].
func (s *Shard) HolderStats(id Holder) (HolderStats, error) {
	h := s.holders[id]
	if h == nil {
		return HolderStats{}, ErrUnknownHolder
	}
	st := h.stats
	if h.any() != 0 {
		st.Memberships = s.core.held(h.any())
	}
	st.Orphans, st.OrphanBytes = h.room.blocks, h.room.bytes
	st.SecondCopies = h.extras
	return st, nil
}

// Rough sizes in bytes of one holder and one entry of a copies map; chosen, not
// measured.
const (
	holderBytes = 512
	extraBytes  = 40
)

// Stats implements [Index].
func (s *Shard) Stats() Stats {
	st := Stats{Holders: uint64(len(s.holders))}
	s.core.stats(&st)
	st.Bytes[PurposeHolders] += s.seats.Load().bytes()
	for _, h := range s.holders {
		if h.any() != 0 {
			st.Memberships += s.core.held(h.any())
		}
		st.Bytes[PurposeStreams] += holderBytes + h.extras*extraBytes + h.room.bytes
	}
	return st
}
