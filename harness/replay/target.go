// SPDX-License-Identifier: Apache-2.0

// Hop before: a lane or the measuring thread, with ready steps.
// Hop after: the index.

package replay

import (
	"fmt"

	"kindex/harness/corpus"
	"kindex/internal/kv"
	"kindex/shard"
)

// Target is an index with a holder for each worker of a corpus.
//
// Concurrency: Apply for workers of different shards may run at the same time, of one
// shard not; Lookup at any time, each goroutine with a buffer of its own.
type Target struct {
	Index     *shard.Sharded
	Namespace kv.Namespace
	// Pins are the CPUs that each lane runs on, in turn; none: wherever.
	Pins [][]int

	holders []shard.Holder // by worker
	shards  []shard.Index  // by worker: the one it lives in
	worker  map[uint32]int // by holder
}

// NewTarget returns an empty index of kind with workers spread evenly over shards.
func NewTarget(kind string, workers int, shards ...shard.Options) (*Target, error) {
	idx, err := shard.NewSharded(kind, shards...)
	if err != nil {
		return nil, err
	}
	model := kv.MakeModelKey("", "corpus", "default")
	t := &Target{Index: idx, Namespace: model.Namespace(kv.HashSeed), worker: map[uint32]int{}}
	for w := range workers {
		s := w % len(shards)
		h, err := idx.AddHolderTo(s, model)
		if err != nil {
			return nil, fmt.Errorf("worker %d of %d: %w", w, workers, err)
		}
		t.holders = append(t.holders, h)
		t.shards = append(t.shards, idx.Shard(s))
		t.worker[uint32(h)] = w
	}
	return t, nil
}

// ShardOf returns the shard that a worker lives in.
func (t *Target) ShardOf(worker uint16) int { return int(worker) % t.Index.Shards() }

// applier applies steps with memory of its own: one for each thread.
type applier struct {
	t      *Target
	store  shard.Store
	remove shard.Remove
}

func newApplier(t *Target) *applier {
	return &applier{t: t, store: shard.Store{Tier: kv.TierDevice, Namespace: t.Namespace}, remove: shard.Remove{Tier: kv.TierDevice}}
}

// apply applies one event.
func (a *applier) apply(s *corpus.Step) error {
	idx, h := a.t.shards[s.Worker], a.t.holders[s.Worker]
	switch s.Kind {
	case corpus.Store:
		st := &a.store
		st.HasParent, st.Parent, st.Engines, st.Contents = s.HasParent, s.Parent, s.Engines, s.Contents
		return idx.Store(h, st)
	case corpus.Remove:
		a.remove.Engines = s.Engines
		return idx.Remove(h, &a.remove)
	case corpus.Clear:
		return idx.Clear(h)
	default:
		panic("BUG: replay: a lookup among the events")
	}
}

// Buffer returns room for any answer of t.
func (t *Target) Buffer() []kv.Match { return make([]kv.Match, 0, len(t.holders)) }

// Lookup appends the answer to dst[:0].
func (t *Target) Lookup(s *corpus.Step, dst []kv.Match) []kv.Match {
	return t.Index.Lookup(t.Namespace, s.Contents, dst[:0])
}

// batchLookups is how many lookups a batch holds: what the index takes in step.
const batchLookups = 32

// batch is room for batchLookups lookups at once.
type batch struct {
	t       *Target
	queries [batchLookups]shard.Query
}

func (t *Target) newBatch() *batch {
	b := &batch{t: t}
	for i := range b.queries {
		b.queries[i] = shard.Query{Namespace: t.Namespace, Matches: t.Buffer()}
	}
	return b
}

// lookup answers up to batchLookups lookups; the answers lie in the queries.
func (b *batch) lookup(lookups []*corpus.Step) []shard.Query {
	for i, s := range lookups {
		q := &b.queries[i]
		q.Chain, q.Matches = s.Contents, q.Matches[:0]
	}
	b.t.Index.LookupBatch(b.queries[:len(lookups)])
	return b.queries[:len(lookups)]
}

// Memory is what the index takes.
type Memory struct {
	Memberships   uint64             `json:"memberships"`
	Blocks        uint64             `json:"distinct_blocks"`
	PerMembership float64            `json:"bytes_per_membership"` // all purposes
	PerBlock      float64            `json:"bytes_per_distinct_block"`
	Purpose       map[string]float64 `json:"bytes_per_membership_by_purpose"`
}

// Memory reads the index's own accounts. A writer's call of all shards.
func (t *Target) Memory() Memory {
	st := t.Index.Stats()
	m := Memory{Memberships: st.Memberships, Blocks: st.Blocks, Purpose: map[string]float64{}}
	if st.Memberships == 0 || st.Blocks == 0 {
		return m
	}
	var all uint64
	for p, n := range st.Bytes {
		all += n
		m.Purpose[shard.Purpose(p).String()] = float64(n) / float64(st.Memberships)
	}
	m.PerMembership, m.PerBlock = float64(all)/float64(st.Memberships), float64(all)/float64(st.Blocks)
	return m
}
