// SPDX-License-Identifier: Apache-2.0

// Before: relay/normal (operations). After: the rank's history (effects, encoded)
// and its subscribers (snapshots).

package live

import (
	"errors"

	"kindex/internal/kv"
	"kindex/relay/normal"
)

// ErrCuts refuses a cut while as many as are allowed are open.
var ErrCuts = errors.New("live: too many snapshots are being sent: try again when one has ended")

// Options size a State. The zero value means the defaults.
type Options struct {
	// HashTokens keeps no token ids, only content hashes: the peer's form is then
	// not to be had. (A store that waits for its parent keeps its tokens until the
	// parent comes: the parent's namespace says how they are hashed.)
	HashTokens bool
	// MaxBlocks bounds the blocks held, ghosts included; a store past it is refused
	// and counted. Default 33,554,432.
	MaxBlocks uint32
	// MaxOrphanBlocks and MaxOrphanBytes bound the waiting room; past either the
	// oldest waiting store is dropped and counted. Defaults 65,536 and 64 MiB.
	MaxOrphanBlocks uint64
	MaxOrphanBytes  uint64
	// MaxCuts bounds the cuts open at once. Default 4.
	MaxCuts int
}

// State is the content of one rank in one life of its engine.
//
// Concurrency: the caller serialises Apply, Clear, Cut and Stats (the rank's
// lock). A [Cut] is used outside that lock, [Effects] until the next Apply or
// Clear.
type State struct{}

// New returns an empty state.
func New(o Options) *State { return &State{} }

// Apply applies ops, made of b, in order and fills fx, which it empties first,
// with what they change. It never fails: what an event is wrong about is counted.
//
// Cost: about 0.1 us a block; no allocation once memory has grown.
func (s *State) Apply(b *kv.Batch, ops []normal.Op, fx *Effects) {}

// Clear forgets everything, waiting stores included; counters stay. Its memory is
// given back.
func (s *State) Clear() {}

// Cut returns the content as it is now, or ErrCuts. It must be closed.
//
// Cost: microseconds: it copies references, a thousandth of the content.
func (s *State) Cut() (*Cut, error) { return nil, ErrCuts }

// Stats describes a State.
type Stats struct {
	Blocks      uint64 // engine hashes held
	Copies      uint64 // physical copies of them
	Ghosts      uint64 // evicted blocks kept because blocks below them are held
	Orphans     uint64 // blocks that wait for their parent
	OrphanBytes uint64 // as the bound counts them
	Cuts        int    // open now
	Bytes       Bytes

	RemoveUnknown  uint64 // removals of a copy that was not held
	StoreUnknown   uint64 // placeholders of a hash nobody told
	OrphansDropped uint64 // waiting blocks dropped past the bound
	Contradictions uint64 // stores whose stated namespace is not their parent's
	Moved          uint64 // engine hashes stored again at another position
	Refused        uint64 // blocks refused: past MaxBlocks, or too large
	CopiesCapped   uint64 // copies past 65,535 of one block in one tier and group
	PeerUntold     uint64 // copies of placeholders that the peer's form leaves out
}

// Bytes says what memory is for, allocated whether in use or not.
type Bytes struct {
	Records    uint64
	Tokens     uint64
	Table      uint64
	Attributes uint64
	Orphans    uint64
	Cuts       uint64 // kept only for the cuts open
	Free       uint64 // how much of Records and Tokens is free for use
}

// Total returns the bytes in all.
func (b *Bytes) Total() uint64 {
	return b.Records + b.Tokens + b.Table + b.Attributes + b.Orphans + b.Cuts
}

// Stats reports on s.
func (s *State) Stats() Stats { return Stats{} }
