// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"kindex/relay/feed"
	"kindex/relay/hashcheck"
	"kindex/relay/live"
	"kindex/relay/normal"
	"kindex/relay/wire"
)

// RankInfo is where a rank stands.
type RankInfo struct {
	Rank       int
	Epoch      uint64
	Standing   Standing
	Has        bool      // false: nothing was admitted in this epoch, and the next three mean nothing
	Sequence   uint64    // the last number admitted, or passed over as lost
	Check      uint64    // that batch's; 0: it was lost
	Oldest     uint64    // the oldest number in the history
	BlockSize  int       // tokens; 0: not known yet
	LiveBlocks uint64    // engine hashes held
	LastBatch  time.Time // when the last batch was admitted; zero: none was in this epoch
}

// RankStats are a rank's counters. Counts go up over the rank's whole time, epochs
// included.
type RankStats struct {
	RankInfo

	Feed feed.Status
	Live live.Stats
	Hash hashcheck.Stats // zero where hashes are not checked

	Batches, Events   uint64
	Holes, Lost       uint64 // runs of lost batches, and the batches in them
	Restarts, Resyncs uint64
	RankMismatches    uint64 // batches that name another rank
	Lookahead         int    // tokens beyond a block that the engine's hashes cover
	EngineTime        float64
	HistoryBatches    int
	HistoryBytes      int64
	LagBytes          int64 // kept beside the history for subscribers that lag
	Subscribers       int
	MaxLag            uint64 // entries of the history between the subscriber furthest behind and the newest
	Snapshots         uint64 // cut for subscribers
	SnapshotsShared   uint64 // and readers served from one that was there
	FellBehind        uint64 // readers that fell out of the history
	// Dropped counts by reason what was left out. The set of reasons is bounded
	// and every reason is always present.
	Dropped map[string]uint64
}

// Info returns where the rank stands.
func (r *Rank) Info() RankInfo {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.info()
}

// info is Info. The rank is locked.
func (r *Rank) info() RankInfo {
	in := RankInfo{
		Rank:       r.number,
		Epoch:      r.epoch,
		Standing:   r.standing,
		Has:        r.has,
		Sequence:   r.last,
		Check:      r.check,
		BlockSize:  r.blockSize,
		LiveBlocks: r.live.Stats().Blocks,
		LastBatch:  r.received,
	}
	if why := r.tooShort(); why != "" {
		in.Standing = Standing{Why: why}
	}
	if r.hist.len() > 0 {
		in.Oldest = r.hist.at(r.hist.from).from
	}
	return in
}

// Stats returns the rank's counters as they were between two batches.
func (r *Rank) Stats() RankStats {
	var st RankStats
	if r.stream == nil {
		r.stats(&st)
	} else {
		r.stream.Between(func(now feed.Status) {
			st.Feed = now
			r.stats(&st)
		})
	}
	st.Subscribers, st.MaxLag = r.lag()
	return st
}

// stats fills st. No batch is in work.
func (r *Rank) stats(st *RankStats) {
	r.mu.Lock() // live's counters are read by one at a time
	defer r.mu.Unlock()
	st.RankInfo = r.info()
	st.Live, st.Hash = r.live.Stats(), r.hashes.Stats()
	c := &r.counts
	st.Batches, st.Events, st.Holes, st.Lost = c.batches, c.events, c.holes, c.lost
	st.Restarts, st.Resyncs, st.RankMismatches = c.restarts, c.resyncs, c.mismatches
	st.Lookahead, st.EngineTime = r.norm.Lookahead(), r.timestamp
	st.HistoryBatches, st.HistoryBytes, st.LagBytes = r.hist.len(), r.hist.bytes, r.hist.old
	st.Snapshots, st.SnapshotsShared, st.FellBehind = r.snapshots.cuts.Load(), r.snapshots.shared.Load(), r.fell.Load()
	st.Dropped = map[string]uint64{
		"malformed":       st.Feed.Malformed,
		"remove_unknown":  st.Live.RemoveUnknown,
		"store_unknown":   st.Live.StoreUnknown,
		"orphan_dropped":  st.Live.OrphansDropped,
		"contradiction":   st.Live.Contradictions,
		"too_many_blocks": st.Live.Refused,
		"too_many_copies": st.Live.CopiesCapped,
		"peer_untold":     st.Live.PeerUntold,
	}
	for reason, n := range r.dec.Drops() {
		st.Dropped[wire.Reason(reason).String()] = n
	}
	for _, reason := range normal.Reasons {
		st.Dropped[reason.String()] = r.norm.Drops(reason)
	}
}

// lag returns how many subscribers read the rank, and how many entries of its
// history the one furthest behind has not read.
func (r *Rank) lag() (subscribers int, furthest uint64) {
	r.mu.RLock()
	head := r.hist.head
	r.mu.RUnlock()
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	for s := range r.engine.subs {
		for _, rd := range s.readers {
			if rd.rank != r {
				continue
			}
			subscribers++
			if pos := rd.pos.Load(); rd.following.Load() && pos < head {
				furthest = max(furthest, head-pos)
			}
		}
	}
	return subscribers, furthest
}
