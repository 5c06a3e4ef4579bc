// SPDX-License-Identifier: Apache-2.0

// Hop before: indexsrv's writer and its queries.
// Hop after: one Shard for each holder's events, all of them for a lookup.

package shard

import (
	"errors"
	"fmt"

	"kindex/internal/kv"
)

// MaxShards bounds the shards of one index. Chosen, not measured: each costs
// every lookup a walk.
const MaxShards = 256

// Sharded is an [Index] over several, each with a core and a writer of its own.
// A holder lives in one shard, so that the answers of all shards together are
// one index's answer: no two name the same holder.
//
// Concurrency: as [Index] has it, for each shard: one mutating or walking call at
// a time in each, and calls for holders of different shards may run at the same
// time. AddHolder and Stats are calls in all shards. Lookups,
// ShardOf, Load and Least may be called from any goroutine at any time.
type Sharded struct {
	shards []loaded
}

// loaded is an index that can say at any time how much it carries.
type loaded interface {
	Index
	Load() (memberships, holders uint64)
}

var (
	_ Index   = (*Sharded)(nil)
	_ Batcher = (*Sharded)(nil)
	_ Grouper = (*Sharded)(nil)
)

// NewSharded returns an empty index of one of [Kinds] with a shard for each of
// opts, whose FirstHolder and HolderStride it sets: holder numbers are unique over
// all shards and name theirs, so that a lookup maps nothing.
//
// Errors: those of [New].
func NewSharded(kind string, opts ...Options) (*Sharded, error) {
	if len(opts) == 0 || len(opts) > MaxShards {
		return nil, fmt.Errorf("%d shards: an index has 1 to %d", len(opts), MaxShards)
	}
	s := &Sharded{}
	for i, o := range opts {
		o.FirstHolder, o.HolderStride = Holder(1+i), uint32(len(opts))
		idx, err := New(kind, o)
		if err != nil {
			return nil, err
		}
		l, ok := idx.(loaded)
		if !ok {
			panic("BUG: shard: index kind " + kind + " does not know its load")
		}
		s.shards = append(s.shards, l)
	}
	return s, nil
}

// Shards returns the number of shards.
func (s *Sharded) Shards() int { return len(s.shards) }

// Shard returns shard i as an index of its own. Its holders are numbered as s
// numbers them.
func (s *Sharded) Shard(i int) Index { return s.shards[i] }

// ShardOf returns the shard that h lives in, or would.
func (s *Sharded) ShardOf(h Holder) int { return int(uint32(h-1) % uint32(len(s.shards))) }

func (s *Sharded) of(h Holder) Index { return s.shards[s.ShardOf(h)] }

// Load returns how much shard i carries. While its writer runs, the numbers are
// those after some recent event.
func (s *Sharded) Load(i int) (memberships, holders uint64) { return s.shards[i].Load() }

// Least returns the shard that carries least: the fewest memberships, then the
// fewest holders. A shard that takes no more holders comes last.
func (s *Sharded) Least() int {
	best, bestFull := 0, true
	var memberships, holders uint64
	for i, sh := range s.shards {
		m, h := sh.Load()
		full := h >= MaxHolders
		less := m < memberships || m == memberships && h < holders
		if i == 0 || bestFull && !full || bestFull == full && less {
			best, bestFull, memberships, holders = i, full, m, h
		}
	}
	return best
}

// fullError says that all shards are full: their bounds add up.
type fullError struct{ shards int }

func (e *fullError) Error() string {
	return fmt.Sprintf("index full: it takes %d (worker, rank) holders (%d shards of %d); unregister some or start another index host",
		e.shards*MaxHolders, e.shards, MaxHolders)
}

// Is makes errors.Is find [ErrHolders].
func (e *fullError) Is(target error) bool { return target == ErrHolders }

// AddHolder implements [Index]: in the shard that carries least.
func (s *Sharded) AddHolder(m kv.ModelKey) (Holder, error) {
	h, err := s.AddHolderTo(s.Least(), m)
	for i := 0; errors.Is(err, ErrHolders) && i < len(s.shards); i++ {
		h, err = s.AddHolderTo(i, m)
	}
	if errors.Is(err, ErrHolders) && len(s.shards) > 1 {
		return 0, &fullError{len(s.shards)}
	}
	return h, err
}

// AddHolderTo is AddHolder in shard i.
//
// Concurrency: a writer's call of that shard alone.
func (s *Sharded) AddHolderTo(i int, m kv.ModelKey) (Holder, error) { return s.shards[i].AddHolder(m) }

// Store implements [Index].
func (s *Sharded) Store(h Holder, st *Store) error { return s.of(h).Store(h, st) }

// Remove implements [Index].
func (s *Sharded) Remove(h Holder, rm *Remove) error { return s.of(h).Remove(h, rm) }

// Clear implements [Index].
func (s *Sharded) Clear(h Holder) error { return s.of(h).Clear(h) }

// Drop implements [Index].
func (s *Sharded) Drop(h Holder) error { return s.of(h).Drop(h) }

// Lookup implements [Index]: one walk for each shard.
func (s *Sharded) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	for _, sh := range s.shards {
		dst = sh.Lookup(ns, chain, dst)
	}
	return dst
}

// LookupBatch implements [Batcher]: one walk of the batch for each shard.
func (s *Sharded) LookupBatch(queries []Query) {
	for _, sh := range s.shards {
		if b, ok := sh.(Batcher); ok {
			b.LookupBatch(queries)
			continue
		}
		for i := range queries {
			q := &queries[i]
			q.Matches = sh.Lookup(q.Namespace, q.Chain, q.Matches)
		}
	}
}

// LookupGroups implements [Grouper]: each shard adds groups of its own.
func (s *Sharded) LookupGroups(ns kv.Namespace, chain []kv.ContentHash, a *Answer) {
	for _, sh := range s.shards {
		if g, ok := sh.(Grouper); ok {
			g.LookupGroups(ns, chain, a)
			continue
		}
		a.Singles = sh.Lookup(ns, chain, a.Singles)
	}
}

// LookupShard is Lookup in shard i alone: the holders that live there.
func (s *Sharded) LookupShard(i int, ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	return s.shards[i].Lookup(ns, chain, dst)
}

// Walk implements [Index].
func (s *Sharded) Walk(h Holder, fn func(*Node) bool) error { return s.of(h).Walk(h, fn) }

// HolderStats implements [Index].
func (s *Sharded) HolderStats(h Holder) (HolderStats, error) { return s.of(h).HolderStats(h) }

// Stats implements [Index]: the sums over all shards. A position that holders of
// several shards hold counts once in each.
func (s *Sharded) Stats() Stats {
	var sum Stats
	for i := range s.shards {
		sum.Add(s.ShardStats(i))
	}
	return sum
}

// ShardStats reports on shard i.
//
// Concurrency: a writer's call of that shard alone.
func (s *Sharded) ShardStats(i int) Stats { return s.shards[i].Stats() }

// Add adds o's numbers to st.
func (st *Stats) Add(o Stats) {
	st.Holders += o.Holders
	st.Memberships += o.Memberships
	st.Blocks += o.Blocks
	st.Runs += o.Runs
	for p, n := range o.Bytes {
		st.Bytes[p] += n
	}
}
