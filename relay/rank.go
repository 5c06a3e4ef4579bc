// SPDX-License-Identifier: Apache-2.0

// Before: feed.Feed. After: Subscription.

package relay

import (
	"sync"
	"time"
)

// Rank is one data-parallel rank of an engine: what it holds, its newest batches
// and where it stands.
//
// Concurrency: Info and Stats may be called from any goroutine.
type Rank struct {
	number int
	engine *Engine

	mu sync.RWMutex // guards what follows

	epoch    uint64
	hist     history
	standing Standing
	told     uint64 // version of standing
	has      bool   // something was admitted or lost in this epoch
	last     uint64 // number of the last of it
	check    uint64 // of the last batch; 0: it was lost
	unknown  uint64 // numbers lost since the content was last known to be whole
}

// RankInfo is where a rank stands.
type RankInfo struct {
	Rank      int
	Epoch     uint64
	Standing  Standing
	Has       bool   // false: nothing was admitted in this epoch, and the next two mean nothing
	Sequence  uint64 // the last number admitted, or passed over as lost
	Check     uint64 // that batch's; 0: it was lost
	BlockSize int    // tokens; 0: not known yet
}

// RankStats are a rank's counters. Counts go up over the rank's whole time,
// epochs included.
type RankStats struct {
	RankInfo

	// Of the feed.
	Batches, Events               uint64
	Gaps, Recovered, Lost         uint64
	Restarts, Resyncs, Duplicates uint64
	HeldBatches, HeldBytes        uint64
	Connected                     bool
	LastBatch                     time.Time
	EngineTime                    float64
	Dropped                       map[string]uint64 // by reason; every reason is always there
	Holes                         uint64            // runs of lost batches
	HistoryBatches                int
	HistoryBytes                  int64
	HistoryFirst                  uint64 // the oldest number kept; means something where HistoryBatches > 0
	LiveBlocks, LiveCopies        uint64
	LiveBytes                     uint64
	Orphans, OrphanBytes          uint64
	Subscribers                   int
	MaxLagBatches                 uint64 // of the subscriber furthest behind
	Snapshots, SnapshotsShared    uint64 // cut, and served from one that was there
	FellBehind                    uint64 // readers that fell out of the history
	HashChecked, HashMismatches   uint64
	HashWarning                   string
}

// Info returns where the rank stands.
func (r *Rank) Info() RankInfo {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return RankInfo{Rank: r.number, Epoch: r.epoch, Standing: r.standing, Has: r.has, Sequence: r.last, Check: r.check}
}
