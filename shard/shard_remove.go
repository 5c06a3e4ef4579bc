// SPDX-License-Identifier: Apache-2.0

package shard

import "kindex/internal/kv"

// Remove implements [Index].
func (s *Shard) Remove(id Holder, rm *Remove) error {
	h := s.holders[id]
	if h == nil {
		return ErrUnknownHolder
	}
	if err := rm.valid(); err != nil {
		return err
	}
	s.core.expect(rm.Engines)
	ri := -1
	for i := range h.raws {
		if h.raws[i].tier == rm.Tier && h.raws[i].group == rm.Group {
			ri = i
		}
	}
	engines := rm.Engines
	if len(h.room.waits) > 0 || (ri >= 0 && len(h.raws[ri].extra) > 0) {
		engines = s.lastCopies(h, ri, rm)
	}
	if ri < 0 {
		h.stats.RemoveUnknown += uint64(len(engines))
		return nil
	}
	s.unknown = s.core.remove(h.raws[ri].slot, engines, s.unknown[:0])
	h.stats.RemoveUnknown += uint64(len(s.unknown))
	if len(h.raws) > 1 {
		s.removeFromUnions(h, ri, engines)
	}
	s.recount(h)
	return nil
}

// lastCopies takes waiting and second copies of rm out, and returns the hashes
// whose last copy it ends.
func (s *Shard) lastCopies(h *holder, ri int, rm *Remove) []kv.EngineHash {
	s.remove = s.remove[:0]
	for _, e := range rm.Engines {
		if h.room.takeOut(rm.Tier, rm.Group, e) {
			continue
		}
		if ri >= 0 && h.raws[ri].extra[e] > 0 {
			r := &h.raws[ri]
			if r.extra[e]--; r.extra[e] == 0 {
				delete(r.extra, e)
			}
			h.extras--
			continue
		}
		s.remove = append(s.remove, e)
	}
	return s.remove
}

// removeFromUnions ends the unions' mappings of those engines that were just
// removed from raw ri and that no other raw of the union has.
func (s *Shard) removeFromUnions(h *holder, ri int, engines []kv.EngineHash) {
	gone := make([]kv.EngineHash, 0, len(engines))
	last := slot(0)
	for c := range numClasses {
		u := h.class[c]
		if u == 0 || u == last || !c.covers(h.raws[ri].tier) || !h.isUnion(u) {
			continue
		}
		last = u
		gone = gone[:0]
		for _, e := range engines {
			if !s.heldElsewhere(h, c, e) {
				gone = append(gone, e)
			}
		}
		s.unknown = s.core.remove(u, gone, s.unknown[:0])
	}
}

// heldElsewhere reports whether a raw of class c has e.
func (s *Shard) heldElsewhere(h *holder, c class, e kv.EngineHash) bool {
	for i := range h.raws {
		if c.covers(h.raws[i].tier) && s.core.find(h.raws[i].slot, e) != 0 {
			return true
		}
	}
	return false
}

// Clear implements [Index].
func (s *Shard) Clear(id Holder) error {
	h := s.holders[id]
	if h == nil {
		return ErrUnknownHolder
	}
	for _, sl := range h.allSlots() {
		s.core.clear(sl)
	}
	s.forget(h)
	s.recount(h)
	return nil
}

// forget empties what h keeps outside the core.
func (s *Shard) forget(h *holder) {
	for i := range h.raws {
		h.raws[i].extra = nil
	}
	h.extras = 0
	h.room = room{}
}

// allSlots returns h's slots, each once.
func (h *holder) allSlots() []slot {
	var all []slot
	for i := range h.raws {
		all = append(all, h.raws[i].slot)
	}
	last := slot(0)
	for _, sl := range h.class {
		if sl != 0 && sl != last && h.isUnion(sl) {
			all = append(all, sl)
			last = sl
		}
	}
	return all
}

// Drop implements [Index].
func (s *Shard) Drop(id Holder) error {
	h := s.holders[id]
	if h == nil {
		return ErrUnknownHolder
	}
	all := h.allSlots()
	for _, sl := range all {
		s.core.close(sl)
	}
	s.setClasses(h, [numClasses]slot{})
	s.recount(h) // it speaks for nothing now
	s.freed = append(s.freed, all...)
	s.reserved -= max(0, slotsPerHolder-h.slots)
	delete(s.holders, id)
	storeWord(&s.count, uint64(len(s.holders)))
	return nil
}
