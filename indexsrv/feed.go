// SPDX-License-Identifier: Apache-2.0

// Before: stream (socket messages), or a recording. After: Writer (the index).

package indexsrv

import (
	"time"

	"kindex/internal/kv"
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
	ReplayTries   int           // fruitless replay requests before a gap is given up; default 3
	RetryDelay    time.Duration // before the second try, doubling; default 200 ms
	ResyncDelay   time.Duration // between tries to get back what was given up; default 30 s
	ConnectPeriod time.Duration // without a connection before a stream is failed; default 30 s
}

// StreamStatus is what one stream has seen and where it stands.
type StreamStatus struct {
	State     State
	Repairing bool // a replay is wanted or under way; false once given up on
	Connected bool

	LastSeq uint64 // number of the last admitted batch
	HasSeq  bool   // false until one was admitted in this epoch
	Epoch   uint64 // the publisher's life, from 1; 0 until the first batch

	Batches    uint64 // admitted
	Events     uint64 // decoded, dropped ones included
	Gaps       uint64 // runs of missing batches, a join not counted
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

// Feed is the pipeline of one stream without its sockets: admission, decoding,
// normalisation, index. Inputs are method calls, and what it wants done is
// returned by Next; it reads no clock, starts no goroutine and does no I/O, so
// that equal inputs give equal results.
//
// Concurrency: one goroutine at a time.
type Feed struct {
	cfg StreamConfig
	idx *Writer
	h   shard.Holder
}

// NewFeed returns the feed of one stream into holder h of idx. The caller owns h
// and drops it when the feed is no longer used.
func NewFeed(cfg StreamConfig, idx *Writer, h shard.Holder) *Feed {
	return &Feed{cfg: cfg, idx: idx, h: h}
}

// Connected tells that messages published from now on will arrive.
func (f *Feed) Connected(now time.Time) { _ = now }

// Disconnected tells that messages may be missed from now on, and why.
func (f *Feed) Disconnected(why string, now time.Time) { _, _ = why, now }

// Live takes one message of the live socket. The feed may keep payload: it must
// not change any more.
func (f *Feed) Live(seq uint64, payload []byte, now time.Time) { _, _, _ = seq, payload, now }

// BadMessage counts one message that could not be taken apart: wrong number of
// frames, or a sequence that is not 8 bytes.
func (f *Feed) BadMessage() {}

// ReplayBatch takes one batch of the answer to request id, as [Feed.Live] does.
// Answers to any but the newest request are ignored.
func (f *Feed) ReplayBatch(id, seq uint64, payload []byte, now time.Time) {
	_, _, _, _ = id, seq, payload, now
}

// ReplayEnd tells that the answer to request id is complete.
func (f *Feed) ReplayEnd(id uint64, now time.Time) { _, _ = id, now }

// ReplayFailed tells that the answer to request id stopped before its end, or
// never began.
func (f *Feed) ReplayFailed(id uint64, err error, now time.Time) { _, _, _ = id, err, now }

// Next must be called after every input, and at the time it returned. It returns
// the replay request to make now, if any (a request supersedes the one before),
// and when to call it again; a zero time means not before the next input.
func (f *Feed) Next(now time.Time) (req ReplayRequest, ask bool, wake time.Time) {
	_ = now
	return ReplayRequest{}, false, time.Time{}
}

// State returns where the stream stands.
func (f *Feed) State() State { return StatePending }

// Status returns a copy of all counters.
func (f *Feed) Status() StreamStatus { return StreamStatus{} }
