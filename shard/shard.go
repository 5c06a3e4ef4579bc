// SPDX-License-Identifier: Apache-2.0

// Hop before: indexsrv's writer, with normalised events, and its queries.
// Hop after: a core, with slots and positions.

package shard

import (
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
	// counted is how many of the shard's memberships are h's.
	counted uint64
}

// Shard is an [Index] above a core.
type Shard struct {
	core  core
	chain *chainCore // core, when it is one
	opts  Options
	_     [64]byte // lookups read what is above, the writer changes what is below

	// The writer's. memberships and count are read by anybody.
	memberships uint64
	count       uint64 // holders

	holders  map[Holder]*holder
	next     Holder
	nextSlot uint32
	freed    []slot // closed slots, oldest first
	reserved int    // slots promised to holders and not yet taken
	held     []uint64
	moved    []kv.EngineHash
	unknown  []kv.EngineHash
	remove   []kv.EngineHash
	hashes   []kv.ContentHash
	_        [64]byte

	// seats says for whom slots speak. Stored by the writer, loaded by lookups.
	seats atomic.Pointer[seatTable]
}

func newShard(c core, o Options) *Shard {
	s := &Shard{
		core:    c,
		opts:    o,
		holders: map[Holder]*holder{},
		next:    o.FirstHolder,
	}
	s.chain, _ = c.(*chainCore)
	s.seats.Store(newSeatTable())
	return s
}

// AddHolder implements [Index].
func (s *Shard) AddHolder(m kv.ModelKey) (Holder, error) {
	if len(s.holders) >= MaxHolders || s.freeSlots() < slotsPerHolder {
		return 0, ErrHolders
	}
	id := s.next
	s.next += Holder(s.opts.HolderStride)
	s.holders[id] = &holder{id: id, model: m}
	s.reserved += slotsPerHolder
	storeWord(&s.count, uint64(len(s.holders)))
	return id, nil
}

// Load returns the memberships and the holders of all s. While the writer runs,
// the numbers are those after some recent event.
//
// Concurrency: any goroutine.
func (s *Shard) Load() (memberships, holders uint64) {
	return atomic.LoadUint64(&s.memberships), atomic.LoadUint64(&s.count)
}

// recount makes s.memberships right after a change of h's content.
func (s *Shard) recount(h *holder) {
	held := uint64(0)
	if h.any() != 0 {
		held = s.core.held(h.any())
	}
	if held != h.counted {
		storeWord(&s.memberships, s.memberships-h.counted+held)
		h.counted = held
	}
}
