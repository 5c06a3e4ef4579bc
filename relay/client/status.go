// SPDX-License-Identifier: Apache-2.0

package client

import (
	"time"

	"kindex/relay/normal"
)

// drop is why a part of what came was left out.
type drop uint8

// The reasons under the relay's own contract. What the peers' contracts bring is
// counted by package normal, under the same names where they mean the same.
const (
	dropUnknownEvent drop = iota // an event of a kind that this version does not know
	dropUnknownTier              // a tier that this version cannot name
	dropGroupRange               // a group number that is not 0 to 255
	dropBlockSize                // another block size than the wanted one
	dropNoHashes                 // an event that names no block
	numDrops
)

var dropNames = [numDrops]string{
	dropUnknownEvent: "unknown_type",
	dropUnknownTier:  "unknown_medium",
	dropGroupRange:   "group_range",
	dropBlockSize:    "block_size",
	dropNoHashes:     "no_hashes",
}

// String returns the metric label of d.
func (d drop) String() string { return dropNames[d] }

// Status is what a client has seen.
type Status struct {
	Contract      Contract // found last
	Connected     bool     // a stream stands
	Subscriptions uint64   // streams asked for
	Connections   uint64   // made
	Errors        uint64   // streams that ended with one
	Ignored       uint64   // messages of ranks that are not wanted
	RelayRanks    int      // that the relay has of the engine; 0: it does not say
	Unserved      bool     // the server was found to serve none of the contracts; it is asked again
	LastError     string   // why the last stream ended, or no connection is made
}

// RankStatus is what one rank has seen and where it stands.
type RankStatus struct {
	Connected bool
	Standing  Standing

	HasSeq bool // false until a batch of this life is known
	Seq    uint64
	Epoch  uint64

	Batches        uint64 // handed on, snapshots aside
	Events         uint64
	Duplicates     uint64 // batches that came again
	Gaps           uint64 // times that a batch was missing when a later one came
	Lost           uint64 // batches that will never come
	Resets         uint64 // contents taken back, snapshots aside
	Restarts       uint64 // of the publisher, as far as its numbers show it
	Snapshots      uint64
	SnapshotBlocks uint64 // physical copies that came in them
	Torn           uint64 // snapshots that did not end or were wrong
	Resumed        uint64 // 1: it went on from [Config].Start

	// Dropped is what was left out, by reason. The set of reasons is bounded and
	// every reason is always present.
	Dropped map[string]uint64

	LastBatch  time.Time // when the last batch or snapshot was handed on; zero: never
	EngineTime float64   // that batch's own timestamp, seconds of the engine's clock
}

// counts are the counters of a rank that need no other look at it.
type counts struct {
	batches, events, duplicates, gaps, lost, resets, restarts uint64
	snapshots, snapshotBlocks, torn, resumed                  uint64

	dropped [numDrops]uint64

	lastBatch  time.Time
	engineTime float64
}

// rankSeen is a copy of what a rank has seen, without anything that is the
// client's goroutine's.
type rankSeen struct {
	counts
	connected  bool
	standing   Standing
	has        bool
	seq, epoch uint64
	normal     [len(normal.Reasons)]uint64
}

// seen returns a copy of what r has seen.
func (r *rank) seen(connected bool) rankSeen {
	s := rankSeen{
		counts: r.st, connected: connected && r.absent == "", standing: r.told,
		has: r.has, seq: r.seq, epoch: r.epoch,
	}
	if !s.connected {
		s.standing.Exact = false
	}
	for i, reason := range normal.Reasons {
		s.normal[i] = r.peer.norm.Drops(reason)
	}
	return s
}

// status returns s in the form of the API.
func (s *rankSeen) status() RankStatus {
	st := RankStatus{
		Connected: s.connected, Standing: s.standing,
		HasSeq: s.has, Seq: s.seq, Epoch: s.epoch,
		Batches: s.batches, Events: s.events, Duplicates: s.duplicates, Gaps: s.gaps, Lost: s.lost,
		Resets: s.resets, Restarts: s.restarts, Snapshots: s.snapshots, SnapshotBlocks: s.snapshotBlocks, Torn: s.torn,
		Resumed:   s.resumed,
		LastBatch: s.lastBatch, EngineTime: s.engineTime,
		Dropped: make(map[string]uint64, int(numDrops)+len(normal.Reasons)),
	}
	for d, n := range s.dropped {
		st.Dropped[drop(d).String()] += n
	}
	for i, n := range s.normal {
		st.Dropped[normal.Reasons[i].String()] += n
	}
	return st
}
