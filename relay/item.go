// SPDX-License-Identifier: Apache-2.0

// Before: Subscription. After: the servers of the contracts.

package relay

import (
	"fmt"
	"time"
)

// Form is an encoding of batches.
type Form uint8

// The forms that a history keeps.
const (
	// FormOwn is a message kindex.relay.v1.Batch with events: content hashes.
	FormOwn Form = iota
	// FormPeer is a message smg.grpc.common.KvEventBatch without its field load:
	// token ids. A rank that hashes tokens does not keep it.
	FormPeer

	numForms
)

// Rules say what happens to a subscription that a rank cannot go on with.
type Rules uint8

// The rules of the two contracts.
const (
	// RulesOwn: everything is told in band. A rank whose cursor is no good, that
	// begins a new epoch or whose subscriber fell behind the history is reset and
	// told anew; the other ranks are not disturbed. Lost batches and the standing
	// are told.
	RulesOwn Rules = iota
	// RulesPeer: the one cursor is of rank 0. What cannot go on ends the whole
	// subscription with an [*EndError]; lost batches are passed over in silence,
	// so that their numbers show them.
	RulesPeer
)

// Cursor is the last batch of a rank that a subscriber has applied.
type Cursor struct {
	Rank     int
	Epoch    uint64 // 0: not known
	Sequence uint64
	// Check is the XXH3-64 of that batch's payload as the engine sent it, which
	// proves the content to another life of the relay; 0 proves nothing. A
	// subscriber that was told of a hole, or of a snapshot with numbers unknown
	// before it, must leave it 0: its content is no proof.
	Check uint64
}

// SubscribeRequest says what a subscriber wants. The zero value asks for every
// rank, from the beginning, in this package's own form and rules.
type SubscribeRequest struct {
	Form  Form
	Rules Rules
	// Ranks are the wanted ones; nil means all.
	Ranks []int
	// Cursors are where to go on: at most one a rank. A wanted rank without one
	// begins anew: with the whole history where that begins at number 0 and has no
	// holes, else with a snapshot, or at once with live batches where nothing is
	// there. Under RulesPeer only rank 0's counts, and Sequence 0 is no cursor.
	Cursors []Cursor
	// Pooled says, under RulesPeer, that the subscriber pools the ranks of an engine,
	// as the peer's gateway does: to it a snapshot of one rank replaces the content of
	// all. The snapshots of several ranks are then chunks of one, before all else, and
	// rank 0's cursor is refused where another rank has something.
	Pooled bool
	// LoadFirst allows items of kind ItemLoad before the first batch was sent.
	// RulesOwn always does.
	LoadFirst bool
}

// EndReason is why a subscription ended, or was refused.
type EndReason uint8

// The reasons.
const (
	EndInvalid    EndReason = iota // the request names what is not there
	EndNoForm                      // the rank does not keep that form
	EndOutOfRange                  // the cursor, or the position by now, is not in the history
	EndDataLoss                    // a new epoch began
	EndClosed                      // the engine was closed
)

// EndError is what Subscribe and Next return when there is nothing more to come.
type EndError struct {
	Reason EndReason
	Why    string
}

// Error implements error.
func (e *EndError) Error() string { return e.Why }

func endf(reason EndReason, format string, args ...any) *EndError {
	return &EndError{reason, fmt.Sprintf(format, args...)}
}

// ItemKind is what an [Item] tells.
type ItemKind uint8

// The kinds of items.
const (
	ItemBatches  ItemKind = iota // Batches, in order
	ItemHole                     // Hole (RulesOwn)
	ItemReset                    // the rank's content goes; what follows is of Epoch (RulesOwn)
	ItemChunk                    // Chunk, a part of a snapshot
	ItemStanding                 // Standing (RulesOwn): on subscribing, on change, after 5 s of silence
	ItemLoad                     // a load record alone
)

// Item is the next thing for a subscriber. It is valid until the next call of
// Next; the bodies it refers to never change and may be kept longer.
type Item struct {
	Kind  ItemKind
	Rank  int
	Epoch uint64

	Batches  []Batch
	Hole     Hole
	Why      string // ItemReset
	Any      bool   // ItemReset: there was a batch in this life of the record
	Newest   uint64 // ItemReset: the last of them
	Chunk    Chunk
	Standing Standing

	// LastSequence is the number of the last batch told of this rank (by a batch, a
	// hole, a snapshot's end or the cursor); 0 before the first: Told is false then.
	LastSequence uint64
	Told         bool

	// Load is the newest load record to go with this item: an encoded message
	// smg.grpc.common.EngineLoad. Empty: none is known or due. Where several
	// batches come in one item it goes with each. Unlike the bodies it is valid
	// until the next call of Next only.
	Load []byte
}

// Batch is one batch in the subscription's form.
type Batch struct {
	Sequence  uint64
	Check     uint64 // XXH3-64 of the payload as the engine sent it
	Timestamp float64
	Received  time.Time // when the relay had it, for its own measurements
	Body      []byte    // the encoded message
}

// Hole is a run of batches that will never come, both ends included.
type Hole struct {
	From, To uint64
	Why      string
}

// Chunk is one part of a snapshot. Chunk 0 replaces what the subscriber holds of
// the rank; after chunk Count-1 it holds what the engine held after batch Through.
type Chunk struct {
	Index, Count  uint32
	Blocks        uint64 // physical copies in the whole snapshot
	UnknownBefore uint64 // batches up to Through that nobody had; 0: the snapshot is complete
	Through       uint64 // the last batch that the snapshot takes in
	Check         uint64 // of that batch
	Sequence      uint64 // FormPeer: this chunk's own number
	Digest        uint64 // FormOwn: of the whole content, in the last chunk
	// Body is the encoded message: kindex.relay.v1.SnapshotChunk, or
	// smg.grpc.common.KvEventBatch with its field snapshot. Where Head is not empty
	// the message is Head and then Body.
	Head, Body []byte
}

// Standing says how far a rank's content can be trusted.
type Standing struct {
	// Primed: the engine was reached and what it could tell of its past was taken
	// in, in this epoch.
	Primed bool
	// Exact: nothing is missing and nothing is being repaired.
	Exact bool
	// Why says what keeps it from being exact; "" when it is.
	Why string
}
