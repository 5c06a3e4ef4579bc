// SPDX-License-Identifier: Apache-2.0

// Before: /status. After: Engine and its ranks.

package relay

import (
	"time"

	"kindex/relay/hashcheck"
)

// statusReply is the body of /status: what an operator asks first.
type statusReply struct {
	Version       string         `json:"version"`
	Revision      string         `json:"revision"`
	UptimeSeconds float64        `json:"uptime_seconds"`
	HashTokens    bool           `json:"hash_tokens"`
	Ready         bool           `json:"ready"`
	Engines       []statusEngine `json:"engines"`
}

type statusEngine struct {
	Name          string         `json:"name"`
	Kind          string         `json:"kind"`
	Listen        string         `json:"listen"`
	PassedThrough bool           `json:"passed_through"` // other RPCs reach the engine
	Subscribers   map[string]int `json:"subscribers"`    // by contract
	Load          *statusLoad    `json:"load,omitempty"`
	Ranks         []statusRank   `json:"ranks"`
}

type statusLoad struct {
	Source    string `json:"source"`
	LastError string `json:"last_error,omitempty"`
}

type statusRank struct {
	Rank              int               `json:"rank"`
	State             string            `json:"state"`
	Connected         bool              `json:"connected"`
	Primed            bool              `json:"primed"`
	Exact             bool              `json:"exact"`
	Why               string            `json:"why,omitempty"`
	LastError         string            `json:"last_error,omitempty"`
	Epoch             uint64            `json:"epoch"`
	Sequence          *uint64           `json:"sequence"` // null: no batch yet
	AgeSeconds        *float64          `json:"age_seconds"`
	LoadAgeSeconds    *float64          `json:"load_age_seconds"`
	BlockSize         int               `json:"block_size"`
	LiveBlocks        uint64            `json:"live_blocks"`
	LiveCopies        uint64            `json:"live_copies"`
	LiveBytes         uint64            `json:"live_bytes"`
	Orphans           uint64            `json:"orphans"`
	HistoryBatches    int               `json:"history_batches"`
	HistoryBytes      int64             `json:"history_bytes"`
	HistoryOldest     *uint64           `json:"history_oldest"`
	Batches           uint64            `json:"batches"`
	Gaps              uint64            `json:"gaps"`
	Recovered         uint64            `json:"recovered"`
	Holes             uint64            `json:"holes"`
	Lost              uint64            `json:"lost"`
	Restarts          uint64            `json:"restarts"`
	Resyncs           uint64            `json:"resyncs"`
	Duplicates        uint64            `json:"duplicates"`
	Subscribers       int               `json:"subscribers"`
	SubscriberLag     uint64            `json:"subscriber_lag_batches"`
	Snapshots         uint64            `json:"snapshots_cut"`
	SnapshotsShared   uint64            `json:"snapshots_shared"`
	SubscribersBehind uint64            `json:"subscribers_fell_behind"`
	Dropped           map[string]uint64 `json:"dropped"` // by reason
	HashCheck         *statusHashes     `json:"hash_check,omitempty"`
}

type statusHashes struct {
	Algorithm    string            `json:"algorithm"` // "": not found out yet
	Checked      uint64            `json:"checked"`
	Mismatched   uint64            `json:"mismatched"`
	Rate         float64           `json:"mismatch_rate"`
	Skipped      uint64            `json:"skipped"`
	Unverifiable map[string]uint64 `json:"unverifiable"` // by reason
	Warning      string            `json:"warning,omitempty"`
}

func statusOfHashes(h *hashcheck.Stats) *statusHashes {
	st := &statusHashes{
		Algorithm: h.Algorithm, Checked: h.Checked, Mismatched: h.Mismatched, Rate: h.Rate(), Skipped: h.Skipped,
		Unverifiable: map[string]uint64{}, Warning: h.Warning,
	}
	for _, reason := range hashcheck.Reasons() {
		st.Unverifiable[reason.String()] = h.Unverifiable[reason]
	}
	return st
}

func statusOfEngine(e *served, now time.Time) statusEngine {
	st := statusEngine{
		Name: e.engine.Name(), Kind: e.engine.Kind(), Listen: e.listen, PassedThrough: e.pass != nil,
		Subscribers: map[string]int{},
	}
	for c := range numContracts {
		st.Subscribers[c.String()] = int(e.stats.subscribers[c].Load())
	}
	if e.meter != nil {
		m := e.meter.Stats()
		st.Load = &statusLoad{Source: m.Source, LastError: m.LastErr}
	}
	for _, r := range e.engine.Ranks() {
		stats := r.Stats()
		rank := statusOfRank(&stats, now)
		if l := e.meter.Rank(r.number); l != nil {
			age := l.Age(now).Seconds()
			rank.LoadAgeSeconds = &age
		}
		if e.engine.HashCheck() {
			rank.HashCheck = statusOfHashes(&stats.Hash)
		}
		st.Ranks = append(st.Ranks, rank)
	}
	return st
}

func statusOfRank(s *RankStats, now time.Time) statusRank {
	st := statusRank{
		Rank: s.Rank, State: s.Feed.State.String(), Connected: s.Feed.Connected,
		Primed: s.Standing.Primed, Exact: s.Standing.Exact, Why: s.Standing.Why, LastError: s.Feed.LastError,
		Epoch: s.Epoch, BlockSize: s.BlockSize,
		LiveBlocks: s.LiveBlocks, LiveCopies: s.Live.Copies, LiveBytes: s.Live.Bytes.Total(), Orphans: s.Live.Orphans,
		HistoryBatches: s.HistoryBatches, HistoryBytes: s.HistoryBytes,
		Batches: s.Batches, Gaps: s.Feed.Gaps, Recovered: s.Feed.Recovered, Holes: s.Holes, Lost: s.Lost,
		Restarts: s.Restarts, Resyncs: s.Resyncs, Duplicates: s.Feed.Duplicates,
		Subscribers: s.Subscribers, SubscriberLag: s.MaxLag,
		Snapshots: s.Snapshots, SnapshotsShared: s.SnapshotsShared, SubscribersBehind: s.FellBehind,
		Dropped: s.Dropped,
	}
	if s.Has {
		st.Sequence = &s.Sequence
	}
	if !s.LastBatch.IsZero() {
		age := age(s.LastBatch, now).Seconds()
		st.AgeSeconds = &age
	}
	if s.HistoryBatches > 0 {
		st.HistoryOldest = &s.Oldest
	}
	return st
}
