// SPDX-License-Identifier: Apache-2.0

// Hop before: indexsrv's writer, with normalised events, and its queries.
// Hop after: a core, with slots and positions.

package shard

import (
	"runtime"
	"sync"
	"sync/atomic"

	"kindex/internal/kv"
)

// class is a question that lookups ask: how deep in which tiers.
type class uint8

const (
	classDevice class = iota // device copies
	classHost                // device or host
	classAny                 // any local tier
	numClasses
)

// covers reports whether copies in t answer c.
func (c class) covers(t kv.Tier) bool { return uint8(t) <= uint8(c) }

// raw is one holder's copies in one tier and cache group.
type raw struct {
	slot  slot
	tier  kv.Tier
	group uint8
	// extra counts the copies beyond the first, which is the membership.
	extra map[kv.EngineHash]uint32
}

// holder is the writer's state of one holder.
type holder struct {
	id     Holder
	model  kv.ModelKey
	raws   []raw
	class  [numClasses]slot // 0: no copy can answer it yet
	slots  int              // slots taken
	room   room
	stats  HolderStats
	extras uint64 // copies in all raws' extra
}

// Shard is an [Index] above a core.
type Shard struct {
	core core
	opts Options

	// The writer's.
	holders  map[Holder]*holder
	last     Holder
	nextSlot uint32
	freed    []slot // closed slots, oldest first
	reserved int    // slots promised to holders and not yet taken
	held     []uint64
	moved    []kv.EngineHash
	unknown  []kv.EngineHash
	remove   []kv.EngineHash
	hashes   []kv.ContentHash

	// slotVersion is odd while words of slotInfo change meaning. Written by
	// the writer, read by lookups.
	slotVersion atomic.Uint64
	// slotInfo says per slot whom it speaks for: holder<<8 | classes<<1 | 1.
	// Written by the writer under slotVersion, read by lookups.
	slotInfo []atomic.Uint64

	scratch sync.Pool // *lookupScratch
}

// lookupScratch is what one lookup needs besides the caller's slice.
type lookupScratch struct {
	depths []slotDepth
	at     map[Holder]int // index in dst of holders with several slots
}

func newShard(c core, o Options) *Shard {
	s := &Shard{
		core:     c,
		opts:     o,
		holders:  map[Holder]*holder{},
		slotInfo: make([]atomic.Uint64, 1<<16),
	}
	s.scratch.New = func() any { return &lookupScratch{at: map[Holder]int{}} }
	return s
}

// AddHolder implements [Index].
func (s *Shard) AddHolder(m kv.ModelKey) (Holder, error) {
	if len(s.holders) >= MaxHolders || s.freeSlots() < slotsPerHolder {
		return 0, ErrHolders
	}
	s.last++
	s.holders[s.last] = &holder{id: s.last, model: m}
	s.reserved += slotsPerHolder
	return s.last, nil
}

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
	s.slotVersion.Add(1)
	defer s.slotVersion.Add(1)
	for _, sl := range h.class {
		if sl != 0 {
			s.slotInfo[sl].Store(0)
		}
	}
	h.class = classes
	for c, sl := range classes {
		if sl != 0 {
			info := uint64(h.id)<<8 | 1 | s.slotInfo[sl].Load() | 2<<c
			s.slotInfo[sl].Store(info)
		}
	}
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

// Store implements [Index].
func (s *Shard) Store(id Holder, st *Store) error {
	h := s.holders[id]
	if h == nil {
		return ErrUnknownHolder
	}
	if err := st.valid(); err != nil {
		return err
	}
	if st.placeholder() {
		for _, e := range st.Engines {
			if err := s.storePlaceholder(h, st.Tier, st.Group, e); err != nil {
				return err
			}
		}
		return nil
	}
	if st.HasParent && (h.any() == 0 || s.core.find(h.any(), st.Parent) == 0) {
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

// retract takes back what unions were given before the store failed, so that no
// union holds what no raw does. Hashes that the store moved are gone.
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

func (s *Shard) hasMoved(e kv.EngineHash) bool {
	for _, m := range s.moved {
		if m == e {
			return true
		}
	}
	return false
}

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
		return err
	}
	for i, e := range st.Engines {
		if out[i] {
			continue
		}
		if err := s.adopt(h, ri, s.core.find(ghost, names[i]), e); err != nil {
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

// Remove implements [Index].
func (s *Shard) Remove(id Holder, rm *Remove) error {
	h := s.holders[id]
	if h == nil {
		return ErrUnknownHolder
	}
	if err := rm.valid(); err != nil {
		return err
	}
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
	s.freed = append(s.freed, all...)
	s.reserved -= max(0, slotsPerHolder-h.slots)
	delete(s.holders, id)
	return nil
}

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
