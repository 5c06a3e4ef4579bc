// SPDX-License-Identifier: Apache-2.0

// Before: stream (socket messages), or a recording. After: Writer (the index).

package indexsrv

import (
	"fmt"
	"time"

	"kindex/internal/kv"
	"kindex/relay/wire"
	"kindex/shard"
)

// State says how far a stream can be trusted. The order is that of severity: a
// worker's state is the greatest of its streams'.
type State uint8

// The states of a stream.
const (
	StateActive   State = iota // exact
	StatePending               // not connected yet
	StateDegraded              // something may be missing: being repaired, or lost for good
	StateFailed                // no connection for a long time; still retried
)

// String returns the word of the HTTP contract.
func (s State) String() string {
	switch s {
	case StateActive:
		return "active"
	case StatePending:
		return "pending"
	case StateDegraded:
		return "degraded"
	case StateFailed:
		return "failed"
	}
	return "unknown"
}

// StreamConfig describes one stream: one publisher, one (worker, rank).
type StreamConfig struct {
	Rank           int    // data-parallel rank
	Endpoint       string // live socket, this rank's port already in it
	ReplayEndpoint string // replay socket, this rank's port already in it; "" where there is none
	Model          kv.ModelKey
	BlockSize      int    // tokens
	Engine         string // "auto" (or ""), "vllm", "sglang"
	Limits         FeedLimits
}

// FeedLimits bound what one stream may occupy and how long it waits. The zero
// value means the defaults.
type FeedLimits struct {
	HeldBatches   int           // live batches that wait behind a gap; default 16,384
	HeldBytes     int           // and their payload bytes; default 64 MiB
	ReplayTries   int           // fruitless replay requests before a gap is given up; default 2
	RetryDelay    time.Duration // before the second try, doubling; default 200 ms
	ResyncDelay   time.Duration // between tries to get back what was given up; default 30 s
	ConfirmDelay  time.Duration // after connecting, until a silent stream is asked once more; default 1 s
	SubscribeTime time.Duration // after connecting, until the subscription counts as told; default 50 ms
	ConnectPeriod time.Duration // without a connection before a stream is failed; default 30 s
}

func orElse[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (l *FeedLimits) setDefaults() {
	orElse(&l.HeldBatches, 16_384)
	orElse(&l.HeldBytes, 64<<20)
	orElse(&l.ReplayTries, 2)
	orElse(&l.RetryDelay, 200*time.Millisecond)
	orElse(&l.ResyncDelay, 30*time.Second)
	orElse(&l.ConfirmDelay, time.Second)
	orElse(&l.SubscribeTime, 50*time.Millisecond)
	orElse(&l.ConnectPeriod, 30*time.Second)
}

// StreamStatus is what one stream has seen and where it stands.
type StreamStatus struct {
	State     State
	Repairing bool // a replay is wanted or under way; false once given up on
	Connected bool

	LastSeq uint64 // number of the last admitted batch
	HasSeq  bool   // false until one was admitted in this epoch
	Epoch   uint64 // the publisher's life, from 1

	Batches    uint64 // admitted
	Events     uint64 // decoded, dropped ones included
	Gaps       uint64 // runs of batches that were missing when a later one came live
	Recovered  uint64 // batches that came through replay
	Lost       uint64 // batches that never came
	Restarts   uint64
	Duplicates uint64

	Memberships  uint64
	Orphans      uint64 // blocks that wait for their parent
	OrphanBytes  uint64
	HeldBatches  uint64 // live batches that wait behind a gap now
	HeldBytes    uint64
	SecondCopies uint64

	// Dropped counts by reason what was left out. The set of reasons is bounded
	// and every reason is always present.
	Dropped map[string]uint64

	RankMismatches uint64 // batches that name another rank than the stream's
	Lookahead      int    // tokens beyond a block that the engine's hashes cover; 0: none

	LastBatch  time.Time // when the last batch was admitted; zero: never
	EngineTime float64   // that batch's own timestamp, seconds of the engine's clock
	LastError  string    // why the stream is not active, or what last went wrong
}

// ReplayRequest is what a feed wants asked of the replay socket.
type ReplayRequest struct {
	ID    uint64 // never 0; names the request in the answers
	Start uint64 // first batch wanted
}

// fault is a reason why a stream is not exact although nothing is being done
// about it. Faults add up.
type fault uint8

const (
	faultLost       fault = 1 << iota // batches that never came
	faultUnverified                   // nobody could say what was missed, or whose life this is
	faultOrphans                      // orphans dropped past the waiting room's bound
	faultBlockSize                    // the engine's block size is not the registered one
	faultIndex                        // the index refused an event
)

// Feed is the pipeline of one stream without its sockets: admission, decoding,
// normalisation, index. Inputs are method calls, and what it wants done is
// returned by Next; it reads no clock, starts no goroutine and does no I/O, so
// that equal inputs give equal results.
//
// A feed is told by Connected when messages can come; until then it is pending.
// It admits batches in the publisher's order only: what comes early is held,
// within bounds, while the missing ones are asked of the replay socket; what
// nobody has is counted lost. Without a replay socket nothing waits.
//
// Concurrency: one goroutine at a time.
type Feed struct {
	cfg    StreamConfig
	limits FeedLimits
	idx    *Writer
	h      shard.Holder

	norm  *normaliser
	dec   wire.Decoder
	probe *wire.Decoder // tells whether a payload that must wait is a batch
	batch kv.Batch

	staged staged

	// The cursor: the last number admitted, or passed over as lost, of this epoch.
	epoch   uint64
	has     bool
	last    uint64
	history history

	// What came live.
	seen    uint64 // one past the greatest number seen live or admitted, this epoch
	held    map[uint64]heldBatch
	heldLen int // bytes
	bad     badBatch

	// The connection.
	connected bool
	ever      bool      // connected at least once
	failed    bool      // not connected for too long
	since     time.Time // not connected since then; zero: not known yet
	why       string    // why there is no connection
	telling   time.Time // until then the publisher may not know of the subscription; zero: it does

	repair repair

	faults    fault
	reason    string // of the last fault or failed repair
	lastBatch time.Time
	engineTS  float64
	counts    counts
	dropped   [numDrops]uint64
	stats     shard.HolderStats
}

// counts are the counters that Status copies.
type counts struct {
	batches, events, gaps, recovered, lost, restarts, duplicates, rankMismatches uint64
}

// heldBatch is a batch that waits for those before it.
type heldBatch struct {
	payload  []byte
	replayed bool // came through replay
}

// badBatch is an undecodable payload whose number was not admitted yet.
type badBatch struct {
	open bool
	seq  uint64
	sum  uint64
}

// NewFeed returns the feed of one stream into holder h of idx. The caller owns h
// and drops it when the feed is no longer used.
func NewFeed(cfg StreamConfig, idx *Writer, h shard.Holder) *Feed {
	f := &Feed{
		cfg:    cfg,
		limits: cfg.Limits,
		idx:    idx,
		h:      h,
		norm:   newNormaliser(&cfg),
		epoch:  1,
		held:   map[uint64]heldBatch{},
	}
	f.limits.setDefaults()
	f.repair.wantJoin = f.canReplay()
	return f
}

func (f *Feed) canReplay() bool { return f.cfg.ReplayEndpoint != "" }

// next is the number that continues the stream.
func (f *Feed) next() uint64 {
	if f.has {
		return f.last + 1
	}
	return 0
}

// State returns where the stream stands.
func (f *Feed) State() State {
	switch {
	case f.failed:
		return StateFailed
	case !f.ever, f.connected && !f.has && !f.telling.IsZero():
		return StatePending
	case !f.connected, f.faults != 0, f.repairing():
		return StateDegraded
	}
	return StateActive
}

// Status returns a copy of all counters.
func (f *Feed) Status() StreamStatus {
	st := StreamStatus{
		State:          f.State(),
		Repairing:      f.repairing() || f.ever && !f.connected && !f.failed,
		Connected:      f.connected,
		LastSeq:        f.last,
		HasSeq:         f.has,
		Epoch:          f.epoch,
		Batches:        f.counts.batches,
		Events:         f.counts.events,
		Gaps:           f.counts.gaps,
		Recovered:      f.counts.recovered,
		Lost:           f.counts.lost,
		Restarts:       f.counts.restarts,
		Duplicates:     f.counts.duplicates,
		Memberships:    f.stats.Memberships,
		Orphans:        f.stats.Orphans,
		OrphanBytes:    f.stats.OrphanBytes,
		HeldBatches:    uint64(len(f.held)),
		HeldBytes:      uint64(f.heldLen),
		SecondCopies:   f.stats.SecondCopies,
		RankMismatches: f.counts.rankMismatches,
		Lookahead:      f.norm.lookahead,
		LastBatch:      f.lastBatch,
		EngineTime:     f.engineTS,
		Dropped:        f.droppedByReason(),
		LastError:      f.lastError(),
	}
	return st
}

// droppedByReason joins the counters of the decoder, the normaliser and the
// index. The set of reasons is fixed.
func (f *Feed) droppedByReason() map[string]uint64 {
	m := make(map[string]uint64, int(numDrops)+int(wire.NumReasons)+4)
	for r, n := range f.dec.Drops() {
		m[wire.Reason(r).String()] = n
	}
	for d := dropNone + 1; d < numDrops; d++ {
		m[d.String()] = f.dropped[d]
	}
	m["remove_unknown"] = f.stats.RemoveUnknown
	m["store_unknown"] = f.stats.StoreUnknown
	m["orphan_dropped"] = f.stats.OrphansDropped
	m["contradiction"] = f.stats.Contradictions
	return m
}

// lastError says why the stream is not active; "" when it is.
func (f *Feed) lastError() string {
	switch f.State() {
	case StateActive:
		return ""
	case StatePending:
		return f.why
	case StateFailed:
		return fmt.Sprintf("no connection to %s for %v: %s", f.cfg.Endpoint, f.limits.ConnectPeriod, orUnknown(f.why))
	case StateDegraded:
	}
	switch {
	case !f.connected:
		return fmt.Sprintf("connection to %s lost: %s", f.cfg.Endpoint, orUnknown(f.why))
	case f.faults != 0, f.reason != "":
		return f.reason
	}
	return fmt.Sprintf("asking %s for batches from %d", f.cfg.ReplayEndpoint, f.next())
}

func orUnknown(why string) string {
	if why == "" {
		return "no answer"
	}
	return why
}

// fail notes a fault and why.
func (f *Feed) fail(what fault, format string, args ...any) {
	f.faults |= what
	f.reason = fmt.Sprintf(format, args...)
}
