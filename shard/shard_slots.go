// SPDX-License-Identifier: Apache-2.0

package shard

import "kindex/internal/kv"

// freeSlots counts the slots neither taken nor promised.
func (s *Shard) freeSlots() int {
	return maxSlots - int(s.nextSlot) + len(s.freed) - s.reserved
}

// takeSlot opens a slot for h. A slot beyond h's reservation (further cache
// groups) may find none free.
func (s *Shard) takeSlot(h *holder) (slot, error) {
	if h.slots >= slotsPerHolder {
		if s.freeSlots() <= 0 {
			return 0, ErrHolders
		}
	} else {
		s.reserved--
	}
	h.slots++
	var sl slot
	if s.nextSlot < maxSlots {
		s.nextSlot++
		sl = slot(s.nextSlot)
	} else {
		sl = s.freed[0]
		s.freed = s.freed[1:]
	}
	s.core.open(sl)
	return sl, nil
}

// releaseSlot gives back a slot that h took and that speaks for nobody.
func (s *Shard) releaseSlot(h *holder, sl slot) {
	s.core.close(sl)
	s.freed = append(s.freed, sl)
	if h.slots--; h.slots < slotsPerHolder {
		s.reserved++
	}
}

// setClasses publishes which slot answers which class for h.
func (s *Shard) setClasses(h *holder, classes [numClasses]slot) {
	s.seats.Store(s.seats.Load().with(h, classes))
	h.class = classes
}

// rawFor returns h's raw of a tier and group, making it, and the unions that
// then differ from it, when it is the first of its kind.
func (s *Shard) rawFor(h *holder, t kv.Tier, group uint8) (int, error) {
	for i := range h.raws {
		if h.raws[i].tier == t && h.raws[i].group == group {
			return i, nil
		}
	}
	taken := make([]slot, 0, numClasses+1)
	take := func() (slot, error) {
		sl, err := s.takeSlot(h)
		if err == nil {
			taken = append(taken, sl)
		}
		return sl, err
	}
	classes, err := s.classesWith(h, t, take)
	if err != nil {
		for _, sl := range taken {
			s.releaseSlot(h, sl)
		}
		return 0, err
	}
	h.raws = append(h.raws, raw{slot: taken[0], tier: t, group: group})
	s.setClasses(h, classes)
	return len(h.raws) - 1, nil
}

// classesWith returns h's classes once it has a further raw of tier t, whose
// slot is the first one taken. A class that one raw alone answers is that raw's
// slot; others are unions, shared by classes that take in the same tiers.
func (s *Shard) classesWith(h *holder, t kv.Tier, take func() (slot, error)) ([numClasses]slot, error) {
	classes := h.class
	sl, err := take()
	if err != nil {
		return classes, err
	}
	for c := range numClasses {
		if !c.covers(t) {
			continue
		}
		old := h.class[c]
		sharedBelow := c > 0 && h.class[c-1] == old
		switch {
		case old == 0:
			classes[c] = sl
		case sharedBelow && (c - 1).covers(t):
			classes[c] = classes[c-1]
		case h.isUnion(old) && !sharedBelow:
			// A union of this class's own: it takes the new tier in.
		default:
			u, err := take()
			if err != nil {
				return classes, err
			}
			if err := s.core.clone(old, u); err != nil {
				return classes, err
			}
			classes[c] = u
		}
	}
	return classes, nil
}

// isUnion reports whether sl is none of h's raws.
func (h *holder) isUnion(sl slot) bool {
	for i := range h.raws {
		if h.raws[i].slot == sl {
			return false
		}
	}
	return true
}

// any is the slot that maps all of h's engine hashes; 0 before the first event.
func (h *holder) any() slot { return h.class[classAny] }

// unions calls fn for each union slot that takes in copies of tier t, the
// widest first, so that a lookup never finds a depth that a wider class lacks.
func (h *holder) unions(t kv.Tier, rawSlot slot, fn func(slot) error) error {
	last := rawSlot
	for c := int(numClasses) - 1; c >= 0; c-- {
		sl := h.class[c]
		if sl == 0 || sl == last || sl == rawSlot || !class(c).covers(t) {
			continue
		}
		last = sl
		if err := fn(sl); err != nil {
			return err
		}
	}
	return nil
}
