// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"sync/atomic"

	"kindex/gateway/fleet"
)

// remembered is how many of a large pool's best are read in each decision beside its
// draws: whoever is better than the fleet is found once and then stays known.
const remembered = 2

// maxModels bounds the pools that a policy keeps something for.
const maxModels = 4096

// state is what a policy keeps of one model's pool: nothing that a decision needs to
// be right, no copy of any load.
type state struct {
	pool *fleet.Pool
	best [remembered]atomic.Pointer[fleet.Holder]
	none atomic.Int64 // when nobody was usable
	keys []uint64     // identities of Pool.Holders, for consistent hashing
	*counters
}

// counters outlive a pool's changes.
type counters struct {
	turn         atomic.Uint64 // of round robin
	misses, hits atomic.Uint64 // while somebody warms up
	given        atomic.Uint64 // the last stretch of hits of which one was given away; counted from 1
}

// stateOf returns what is kept for q's pool.
func (p *policy) stateOf(pool *fleet.Pool) *state {
	if s := p.last.Load(); s != nil && s.pool == pool {
		return s
	}
	states := p.states.Load()
	s := (*states)[pool.Model]
	if s != nil && s.pool == pool {
		p.last.Store(s)
		return s
	}
	return p.changed(pool)
}

// changed returns what is kept for a pool that nobody has asked about yet. Whoever comes
// first makes it: two that made one each would both begin at the first turn.
func (p *policy) changed(pool *fleet.Pool) *state {
	p.making.Lock()
	defer p.making.Unlock()
	s := (*p.states.Load())[pool.Model]
	if s != nil && s.pool == pool {
		return s
	}
	next := p.newState(pool)
	if s != nil {
		next.counters = s.counters
		if s.pool.Version > pool.Version {
			return next // a question from before the change
		}
	}
	p.keep(next)
	return next
}

// keep publishes s, under the lock of changed.
func (p *policy) keep(s *state) {
	old := p.states.Load()
	next := make(map[string]*state, len(*old)+1)
	if len(*old) < maxModels {
		maps.Copy(next, *old)
	}
	next[s.pool.Model] = s
	p.states.Store(&next)
	p.last.Store(s)
}

func (p *policy) newState(pool *fleet.Pool) *state {
	s := &state{pool: pool, counters: &counters{}}
	if p.kind == byKey {
		s.keys = make([]uint64, len(pool.Holders))
		for i, h := range pool.Holders {
			s.keys[i] = identity(h)
		}
		return s
	}
	if len(pool.Holders) > p.o.Whole {
		p.survey(s)
	}
	return s
}

// survey reads a new pool whole, once, so that its best are known from the first
// decision on.
func (p *policy) survey(s *state) {
	all := make([]candidate, 0, len(s.pool.Holders))
	now := fleet.Now()
	for _, h := range s.pool.Holders {
		if h.Worker.Usable() {
			all = append(all, candidate{h: h, flags: ofFleet})
			p.read(&all[len(all)-1], now)
		}
	}
	p.price(all, 0)
	s.remember(all)
}

// remember keeps the best of what was read, whatever the prompt.
func (s *state) remember(all []candidate) {
	var first, second *candidate
	for i := range all {
		c := &all[i]
		switch {
		case first == nil || c.bare < first.bare:
			first, second = c, first
		case second == nil || c.bare < second.bare:
			second = c
		}
	}
	for i, c := range [remembered]*candidate{first, second} {
		if c != nil && s.best[i].Load() != c.h {
			s.best[i].Store(c.h)
		}
	}
}

// identity is a holder's for consistent hashing: of its worker's URL, which outlives a
// registration, and its rank.
func identity(h *fleet.Holder) uint64 {
	const prime = 0x100000001b3 // FNV-1a
	x := uint64(0xcbf29ce484222325)
	url := h.Worker.ID
	if h.Worker.Spec != nil {
		url = h.Worker.Spec.URL
	}
	for i := range len(url) {
		x = (x ^ uint64(url[i])) * prime
	}
	return mix(x + uint64(h.Rank)*0x9e3779b97f4a7c15)
}
