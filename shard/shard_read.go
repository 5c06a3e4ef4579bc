// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"runtime"

	"kindex/internal/kv"
)

// Lookup implements [Index].
func (s *Shard) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	sc, ok := s.scratch.Get().(*lookupScratch)
	if !ok {
		panic("BUG: shard: foreign lookup scratch")
	}
	defer s.scratch.Put(sc)
	base := len(dst)
	for {
		v := s.slotVersion.Load()
		if v&1 == 0 {
			sc.depths = s.core.lookup(ns, chain, sc.depths[:0])
			dst = s.matches(sc, dst[:base])
			if s.slotVersion.Load() == v {
				return dst
			}
		}
		runtime.Gosched()
	}
}

// matches appends one match per holder that the slots of sc speak for.
func (s *Shard) matches(sc *lookupScratch, dst []kv.Match) []kv.Match {
	clear(sc.at)
	for _, d := range sc.depths {
		info := s.slotInfo[d.slot].Load()
		if info == 0 {
			continue
		}
		id, classes := Holder(info>>8), info>>1&(1<<numClasses-1)
		if classes == 1<<numClasses-1 {
			dst = append(dst, kv.Match{Holder: uint32(id), Device: d.depth, Host: d.depth, Any: d.depth})
			continue
		}
		i, seen := sc.at[id]
		if !seen {
			i = len(dst)
			sc.at[id] = i
			dst = append(dst, kv.Match{Holder: uint32(id)})
		}
		m := &dst[i]
		if classes&(1<<classDevice) != 0 {
			m.Device = max(m.Device, d.depth)
		}
		if classes&(1<<classHost) != 0 {
			m.Host = max(m.Host, d.depth)
		}
		m.Any = max(m.Any, d.depth) // a wider class never holds less, whatever a writer is doing
		m.Host = max(m.Host, m.Device)
	}
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
		for _, e := range c.engines {
			for i := range h.raws {
				r := &h.raws[i]
				if len(h.raws) > 1 && s.core.find(r.slot, e) != c.id {
					continue
				}
				n.Copies = append(n.Copies, Copy{Engine: e, Tier: r.tier, Group: r.group, Count: 1 + r.extra[e]})
			}
		}
		return fn(&n)
	})
	return nil
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
	st.Bytes[PurposeHolders] += uint64(len(s.slotInfo)) * 8
	for _, h := range s.holders {
		if h.any() != 0 {
			st.Memberships += s.core.held(h.any())
		}
		st.Bytes[PurposeStreams] += holderBytes + h.extras*extraBytes + h.room.bytes
	}
	return st
}
