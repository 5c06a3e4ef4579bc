// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"slices"

	"kindex/internal/kv"
)

// Store implements [Index].
func (s *Shard) Store(id Holder, st *Store) error {
	h := s.holders[id]
	if h == nil {
		return ErrUnknownHolder
	}
	if err := st.valid(); err != nil {
		return err
	}
	if st.Tight {
		s.core.tighten(true)
		defer s.core.tighten(false)
	}
	err := s.store(h, st)
	s.recount(h)
	return err
}

// Memory implements [Sized].
func (s *Shard) Memory() (used, bound uint64) { return s.core.taken() }

// Pressed implements [Sized].
func (s *Shard) Pressed() uint64 { return s.core.pressed() }

func (s *Shard) store(h *holder, st *Store) error {
	s.core.expect(st.Engines)
	if st.placeholder() {
		for _, e := range st.Engines {
			if err := s.storePlaceholder(h, st.Tier, st.Group, e); err != nil {
				return err
			}
		}
		return nil
	}
	if st.HasParent && (h.any() == 0 || s.core.find(h.any(), st.Parent) == 0) {
		if st.Tight {
			s.forgo(h, st.Engines)
			return ErrArenaFull
		}
		h.wait(&s.opts, &orphan{waitsFor: st.Parent, store: st.clone(), bytes: st.bytes()})
		return nil
	}
	if err := s.apply(h, st, nil); err != nil {
		return err
	}
	if len(h.room.waits) == 0 {
		return nil
	}
	return s.settle(h, append([]kv.EngineHash(nil), st.Engines...))
}

// apply stores st, whose parent, if any, h holds, but for the blocks of out.
func (s *Shard) apply(h *holder, st *Store, out []bool) error {
	ri, err := s.rawFor(h, st.Tier, st.Group)
	if err != nil {
		s.forgo(h, st.Engines)
		return err
	}
	ns, at, contents := st.Namespace, pos(0), st.Contents
	if st.HasParent {
		at = s.core.find(h.any(), st.Parent)
		if ns = s.core.namespace(at); ns != st.Namespace {
			if st.Stated {
				h.stats.Contradictions++
			}
			if st.Blocks.Len() > 0 {
				s.hashes = st.Blocks.AppendHashes(s.hashes[:0], h.model.Seed(ns))
				contents = s.hashes
			}
		}
	}
	if out != nil {
		return s.applyWithHoles(h, ri, st, ns, at, contents, out)
	}
	return s.storeChain(h, ri, ns, at, st.Engines, contents)
}

// storeChain stores one chain in a raw and the unions that take it in.
func (s *Shard) storeChain(h *holder, ri int, ns kv.Namespace, at pos, engines []kv.EngineHash, contents []kv.ContentHash) error {
	r := &h.raws[ri]
	words := (len(engines) + 63) / 64
	if cap(s.held) < words {
		s.held = make([]uint64, 2*words)
	}
	held := s.held[:words]
	s.moved = s.moved[:0]
	moved := -1 // in the first slot, the widest: it has all of h's hashes
	store := func(sl slot) (err error) {
		s.moved, err = s.core.store(sl, ns, at, engines, contents, held, s.moved)
		if moved < 0 {
			moved = len(s.moved)
		}
		return err
	}
	err := h.unions(r.tier, r.slot, store)
	if err == nil {
		err = store(r.slot)
	}
	h.stats.Moved += uint64(max(0, moved))
	if err != nil {
		s.retract(h, ri, engines)
		return err
	}
	if len(s.moved) > 0 {
		s.startAnew(h, ri)
	}
	s.countCopies(h, r, engines, held)
	return nil
}

// forgo ends all that h holds by engines, whose store is refused before it is known
// which of them it would have moved.
func (s *Shard) forgo(h *holder, engines []kv.EngineHash) {
	for i := range h.raws {
		r := &h.raws[i]
		for _, e := range engines {
			if n := r.extra[e]; n > 0 {
				h.extras -= uint64(n)
				delete(r.extra, e)
			}
		}
	}
	for _, sl := range h.allSlots() {
		s.unknown = s.core.remove(sl, engines, s.unknown[:0])
	}
}

// retract takes back what unions were given before the store failed, so that no
// union holds what no raw does. Hashes that the store moved, or would have, are
// gone.
func (s *Shard) retract(h *holder, ri int, engines []kv.EngineHash) {
	if len(s.moved) > 0 {
		s.startAnew(h, ri)
		s.unknown = s.core.remove(h.raws[ri].slot, s.moved, s.unknown[:0])
	}
	s.removeFromUnions(h, ri, engines)
}

// startAnew ends the copies of the moved hashes in all places but the slots
// just stored, where their one new copy lies.
func (s *Shard) startAnew(h *holder, ri int) {
	stored := h.raws[ri]
	seen := map[kv.EngineHash]bool{}
	keep := s.moved[:0]
	for _, e := range s.moved {
		if !seen[e] {
			seen[e] = true
			keep = append(keep, e)
		}
	}
	s.moved = keep
	for i := range h.raws {
		r := &h.raws[i]
		for _, e := range s.moved {
			if n := r.extra[e]; n > 0 {
				h.extras -= uint64(n)
				delete(r.extra, e)
			}
		}
		if i != ri {
			s.unknown = s.core.remove(r.slot, s.moved, s.unknown[:0])
		}
	}
	for c, sl := range h.class {
		if sl != 0 && h.isUnion(sl) && !class(c).covers(stored.tier) {
			s.unknown = s.core.remove(sl, s.moved, s.unknown[:0])
		}
	}
}

// countCopies counts second copies: blocks that the raw held already. The
// moved hashes have begun anew and have one copy.
func (s *Shard) countCopies(h *holder, r *raw, engines []kv.EngineHash, held []uint64) {
	for w, bits := range held {
		if bits == 0 {
			continue
		}
		for i := w * 64; i < len(engines) && i < w*64+64; i++ {
			if bits&(1<<(i%64)) == 0 || s.hasMoved(engines[i]) {
				continue
			}
			s.addCopy(h, r, engines[i])
		}
	}
}

func (s *Shard) hasMoved(e kv.EngineHash) bool { return slices.Contains(s.moved, e) }

func (s *Shard) addCopy(h *holder, r *raw, e kv.EngineHash) {
	if r.extra == nil {
		r.extra = map[kv.EngineHash]uint32{}
	}
	r.extra[e]++
	h.extras++
}

// ghost is a slot that speaks for nobody; holders take the slots below it.
const (
	ghost    = slot(1<<16 - 1)
	maxSlots = 1<<16 - 2
)

// applyWithHoles stores those blocks of st that no removal took out while it
// waited. A ghost slot makes the positions, so that no lookup ever sees a block
// that was taken out.
func (s *Shard) applyWithHoles(h *holder, ri int, st *Store, ns kv.Namespace, at pos, contents []kv.ContentHash, out []bool) error {
	s.core.open(ghost)
	defer s.core.close(ghost)
	names := make([]kv.EngineHash, len(contents)) // any distinct hashes do: the ghost has no others
	for i := range names {
		names[i] = kv.EngineHash(i)
	}
	held := make([]uint64, (len(names)+63)/64)
	if _, err := s.core.store(ghost, ns, at, names, contents, held, nil); err != nil {
		s.forgo(h, st.Engines)
		return err
	}
	for i, e := range st.Engines {
		if out[i] {
			continue
		}
		if err := s.adopt(h, ri, s.core.find(ghost, names[i]), e); err != nil {
			s.forgo(h, st.Engines[i:])
			return err
		}
	}
	return nil
}

// adopt adds a copy of e, at the existing position p, to a raw and its unions.
func (s *Shard) adopt(h *holder, ri int, p pos, e kv.EngineHash) error {
	r := &h.raws[ri]
	s.moved = s.moved[:0]
	note := func(moved bool) {
		if moved {
			s.moved = append(s.moved, e)
		}
	}
	err := h.unions(r.tier, r.slot, func(u slot) error {
		_, moved, err := s.core.adopt(u, p, e)
		note(moved)
		return err
	})
	held := false
	if err == nil {
		var moved bool
		held, moved, err = s.core.adopt(r.slot, p, e)
		note(moved)
	}
	if err != nil {
		s.retract(h, ri, []kv.EngineHash{e})
		return err
	}
	if len(s.moved) > 0 {
		h.stats.Moved++
		s.startAnew(h, ri)
	} else if held {
		s.addCopy(h, r, e)
	}
	return nil
}

// storePlaceholder adds a copy of a block told before, waits with a block that
// waits, or counts a hash nobody told.
func (s *Shard) storePlaceholder(h *holder, t kv.Tier, group uint8, e kv.EngineHash) error {
	if h.any() != 0 && s.core.find(h.any(), e) != 0 {
		ri, err := s.rawFor(h, t, group)
		if err != nil {
			return err
		}
		return s.adopt(h, ri, s.core.find(h.any(), e), e)
	}
	if !h.room.holdsBlock(e) {
		h.stats.StoreUnknown++
		return nil
	}
	one := Store{Tier: t, Group: group, Engines: []kv.EngineHash{e}}
	h.wait(&s.opts, &orphan{waitsFor: e, store: one, bytes: one.bytes()})
	return nil
}

// settle applies the orphans of the stored hashes, in the order they came, then
// theirs.
func (s *Shard) settle(h *holder, stored []kv.EngineHash) error {
	for len(stored) > 0 && len(h.room.waits) > 0 {
		e := stored[0]
		stored = stored[1:]
		for _, o := range h.room.take(e) {
			if o.store.placeholder() {
				if err := s.storePlaceholder(h, o.store.Tier, o.store.Group, e); err != nil {
					return err
				}
				continue
			}
			if o.bare && s.elsewhere(h, &o.store) {
				h.stats.OrphansDropped += o.blocks()
				continue
			}
			if err := s.apply(h, &o.store, o.out); err != nil {
				return err
			}
			for i, e := range o.store.Engines {
				if !o.isOut(i) {
					stored = append(stored, e)
				}
			}
		}
	}
	return nil
}

// elsewhere reports whether the parent of st, which h holds, lies in another
// namespace than st's contents were hashed under.
func (s *Shard) elsewhere(h *holder, st *Store) bool {
	at := s.core.find(h.any(), st.Parent)
	return at != 0 && s.core.namespace(at) != st.Namespace
}
