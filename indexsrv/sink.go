// SPDX-License-Identifier: Apache-2.0

// Before: relay/feed (admitted batches). After: Writer (the index).

package indexsrv

import (
	"errors"
	"sync/atomic"
	"time"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/relay/normal"
	"kindex/relay/wire"
	"kindex/shard"
)

// indexSink puts one stream's batches into its holder. Stage decodes and
// normalises a batch into a flat list of operations: nothing of the index is
// touched. Commit applies the list within one turn of the shard.
//
// Concurrency: as [feed.Sink].
type indexSink struct {
	rank      int
	model     kv.ModelKey
	blockSize int
	idx       *Writer
	h         shard.Holder

	norm  *normal.Normaliser
	dec   wire.Decoder
	probe *wire.Decoder // tells whether a payload that must wait is a batch
	batch kv.Batch

	// The staged batch, and what each operation is turned into.
	ops    []normal.Op
	store  shard.Store
	remove shard.Remove

	timestamp                         float64 // the last staged batch's own
	events, rankMismatches, arenaFull uint64
	overBudget                        uint64 // events refused because of charge
	charge                            charge
	stats                             shard.HolderStats

	// For whoever watches loads, without a lock.
	held      atomic.Uint64 // stats.Memberships
	otherSize atomic.Int64  // of the engine's blocks, the newest that are not the registered size; 0: none
	applied   atomic.Int64  // when the last batch was, Unix ns; 0: none was
}

var (
	_ feed.Sink   = (*indexSink)(nil)
	_ feed.Turner = (*indexSink)(nil)
)

func newIndexSink(cfg *StreamConfig, idx *Writer, h shard.Holder) *indexSink {
	return &indexSink{
		rank: cfg.Rank, model: cfg.Model, blockSize: cfg.BlockSize, idx: idx, h: h,
		norm: normal.New(normal.Config{BlockSize: cfg.BlockSize, Stated: cfg.Engine == "sglang"}),
	}
}

// Decodable implements [feed.Sink].
func (s *indexSink) Decodable(payload []byte) bool {
	if s.probe == nil {
		s.probe = new(wire.Decoder)
	}
	return s.probe.Decode(payload, &s.batch) == nil
}

// Stage implements [feed.Sink].
func (s *indexSink) Stage(fb *feed.Batch) bool {
	b := &s.batch
	if s.dec.Decode(fb.Payload, b) != nil {
		return false
	}
	s.timestamp = b.Timestamp
	s.events += uint64(len(b.Events))
	if b.HasRank && b.Rank != s.rank {
		s.rankMismatches++
	}
	s.ops = s.norm.Batch(b)
	return true
}

// InTurn implements [feed.Turner].
func (s *indexSink) InTurn(fn func()) {
	_, turn := s.idx.of(s.h)
	turn.Take()
	defer turn.Give()
	fn()
}

// Commit implements [feed.Sink]. The caller has the turn of the shard.
func (s *indexSink) Commit(f *feed.Faults) {
	idx, _ := s.idx.of(s.h)
	for i := range s.ops {
		var err error
		tight := s.charge.tight() // a clear before this one may have made room
		switch op := &s.ops[i]; op.Kind {
		case normal.Store:
			s.setStore(op)
			s.store.Tight = tight
			err = idx.Store(s.h, &s.store)
		case normal.Remove:
			s.remove = shard.Remove{Tier: op.Tier, Group: op.Group, Engines: op.Engines}
			err = idx.Remove(s.h, &s.remove)
		case normal.Clear:
			if err = idx.Clear(s.h); err == nil {
				s.refreshStats(idx, f)
				f.Heal() // known from now on, whatever was missed before
			}
		case normal.Mismatch:
			s.otherSize.Store(int64(op.Size))
			f.Raise(feed.FaultBlockSize, "the engine's block size is %d, registered was %d", op.Size, s.blockSize)
		}
		if err != nil {
			s.refused(err, tight, f)
		}
	}
	s.refreshStats(idx, f)
	s.applied.Store(time.Now().UnixNano())
}

// setStore turns op into s.store.
func (s *indexSink) setStore(op *normal.Op) {
	s.store = shard.Store{
		Tier: op.Tier, Group: op.Group,
		Stated: op.Stated,
		Parent: op.Parent, HasParent: op.HasParent,
		Engines: op.Engines, Contents: op.Contents, Blocks: op.Blocks,
	}
	if len(op.Contents) > 0 {
		s.store.Namespace = s.model.Namespace(op.Seed)
	}
}

// Lost implements [feed.Sink]: the feed has marked the stream.
func (*indexSink) Lost(uint64, uint64, string) {}

// Forget implements [feed.Sink].
func (s *indexSink) Forget(why feed.Forget, f *feed.Faults) {
	s.InTurn(func() { s.empty(f) })
	if why == feed.ForgetRestart {
		s.norm.Restart()
	}
}

// empty takes everything out of the holder. The caller has the turn of the shard.
func (s *indexSink) empty(f *feed.Faults) {
	idx, _ := s.idx.of(s.h)
	f.Heal()
	if err := idx.Clear(s.h); err != nil {
		s.refused(err, false, f)
	}
	s.refreshStats(idx, f)
}

// refused notes that the index did not take an event, which it now lacks; tight says
// that it was told not to take what wants memory.
func (s *indexSink) refused(err error, tight bool, f *feed.Faults) {
	switch {
	case errors.Is(err, shard.ErrArenaFull) && tight:
		s.overBudget++
		f.Raise(feed.FaultRefused, "new blocks are refused: the index nears its bound, and of those it takes this worker has most (memory)")
		return
	case errors.Is(err, shard.ErrArenaFull):
		s.arenaFull++
		s.charge.full()
	}
	f.Raise(feed.FaultRefused, "the index refused an event: %v", err)
}

// refreshStats reads the holder's counters and notices dropped orphans. The
// caller has the turn of the shard.
func (s *indexSink) refreshStats(idx shard.Index, f *feed.Faults) {
	st, err := idx.HolderStats(s.h)
	if err != nil {
		return
	}
	if st.OrphansDropped > s.stats.OrphansDropped {
		f.Raise(feed.FaultOrphans, "%d blocks whose parent did not come were dropped", st.OrphansDropped)
	}
	s.stats = st
	s.held.Store(st.Memberships)
	s.charge.settle(st.Memberships)
}

// status joins what the sink has seen to st.
func (s *indexSink) status(st feed.Status) StreamStatus {
	return StreamStatus{
		Status:         st,
		Events:         s.events,
		Memberships:    s.stats.Memberships,
		Orphans:        s.stats.Orphans,
		OrphanBytes:    s.stats.OrphanBytes,
		SecondCopies:   s.stats.SecondCopies,
		Dropped:        s.dropped(st.Malformed),
		RankMismatches: s.rankMismatches,
		Lookahead:      s.norm.Lookahead(),
		EngineTime:     s.timestamp,
	}
}

// dropped joins the counters of the decoder, the normaliser and the index. The
// set of reasons is fixed.
func (s *indexSink) dropped(malformed uint64) map[string]uint64 {
	m := make(map[string]uint64, len(normal.Reasons)+int(wire.NumReasons)+7)
	for r, n := range s.dec.Drops() {
		m[wire.Reason(r).String()] = n
	}
	for _, r := range normal.Reasons {
		m[r.String()] = s.norm.Drops(r)
	}
	m["malformed"] = malformed
	m["arena_full"] = s.arenaFull
	m["over_budget"] = s.overBudget
	m["remove_unknown"] = s.stats.RemoveUnknown
	m["store_unknown"] = s.stats.StoreUnknown
	m["orphan_dropped"] = s.stats.OrphansDropped
	m["contradiction"] = s.stats.Contradictions
	return m
}
