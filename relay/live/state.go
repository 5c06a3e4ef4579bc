// SPDX-License-Identifier: Apache-2.0

// Before: relay/normal (operations). After: the rank's history (effects, encoded)
// and its subscribers (snapshots).

package live

import (
	"errors"
	"math/rand/v2"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
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
	// MaxBlocks bounds the blocks kept, ghosts included, and MaxBytes their tokens
	// and attributes; a store past either is refused and counted. Defaults
	// 33,554,432 and 8 GiB.
	MaxBlocks uint32
	MaxBytes  uint64
	// MaxOrphanBlocks and MaxOrphanBytes bound the waiting room; past either the
	// oldest waiting store is dropped and counted. Defaults 65,536 and 64 MiB.
	MaxOrphanBlocks uint64
	MaxOrphanBytes  uint64
	// MaxCuts bounds the cuts open at once. Default 4.
	MaxCuts int
}

func (o *Options) setDefaults() {
	if o.MaxBlocks == 0 {
		o.MaxBlocks = 1 << 25
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 8 << 30
	}
	if o.MaxOrphanBlocks == 0 {
		o.MaxOrphanBlocks = 65_536
	}
	if o.MaxOrphanBytes == 0 {
		o.MaxOrphanBytes = 64 << 20
	}
	if o.MaxCuts == 0 {
		o.MaxCuts = 4
	}
}

// State is the content of one rank in one life of its engine.
//
// Concurrency: the caller serialises Apply, Clear, Cut and Stats (the rank's
// lock). A [Cut] is used outside that lock, [Effects] until the next Apply or
// Clear.
type State struct {
	opts Options
	cuts cuts

	recs  slab[record]
	nodes slab[node]
	blobs blobs
	attrs attrs
	held  table // by engine hash
	ghost table // by position
	room  room

	stats  Stats // counters; what is there now is filled in by Stats
	salt   uint64
	freshN uint64
	warm   uint64 // of table.touch, kept so that its reads are

	// Buffers of the operation in work.
	told     told
	fx       *Effects
	stored   []uint64 // engine hashes stored, in order, while others wait for them
	contents []kv.ContentHash
	blob     []byte
	touched  []touched
}

// New returns an empty state.
func New(o Options) *State {
	o.setDefaults()
	s := &State{opts: o, salt: rand.Uint64()}
	s.cuts.publish()
	s.reset()
	return s
}

// reset forgets the content and gives its memory back.
func (s *State) reset() {
	s.recs, s.nodes, s.blobs = slab[record]{}, slab[node]{}, blobs{}
	s.attrs = attrs{peer: !s.opts.HashTokens}
	s.held, s.ghost = table{seed: s.salt}, table{seed: s.salt, byPosition: true}
	s.room = room{}
	s.stats.Blocks, s.stats.Copies, s.stats.Ghosts = 0, 0, 0
	s.stored, s.contents, s.blob, s.touched = nil, nil, nil, nil
}

// Apply applies ops, made of b, in order and fills fx, which it empties first,
// with what they change. It never fails: what an event is wrong about is counted.
//
// Cost: about 0.1 us a block; no allocation once memory has grown.
func (s *State) Apply(b *kv.Batch, ops []normal.Op, fx *Effects) {
	fx.reset(s)
	s.fx = fx
	s.blobs.settle(&s.cuts)
	for i := range ops {
		op := &ops[i]
		switch op.Kind {
		case normal.Store:
			s.tell(b, op)
			if len(op.Contents) == 0 {
				s.placeholders(&s.told)
			} else {
				s.storeOrWait(&s.told)
			}
		case normal.Remove:
			s.remove(b, op)
		case normal.Clear:
			// What the batch did before is void, here and for whoever applies it.
			s.reset()
			fx.reset(s)
			fx.clear(eventOf(b, op))
		case normal.Mismatch:
		}
	}
	s.fx = nil
}

// Clear forgets everything, waiting stores included; counters stay. Its memory is
// given back.
func (s *State) Clear() { s.reset() }

// eventOf returns the event that op was made of.
func eventOf(b *kv.Batch, op *normal.Op) *kv.Event {
	if b == nil || op.Event >= len(b.Events) {
		return &noEvent
	}
	return &b.Events[op.Event]
}

var noEvent kv.Event

// freshEngine returns an engine hash that nobody uses, for a ghost that must be
// named.
func (s *State) freshEngine() uint64 {
	for {
		s.freshN++
		if e := livedigest.Child(s.salt, kv.ContentHash(s.freshN)); s.held.find(&s.recs, e) == 0 {
			return e
		}
	}
}

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
	Refused        uint64 // blocks refused: past a limit, or too large
	CopiesCapped   uint64 // copies past 65,535 of one block in one tier and group
	// PeerUntold are copies of placeholders that the peer's form leaves out, below too
	// many ghosts: its subscribers count them as gone too early, never too late.
	PeerUntold uint64
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
func (s *State) Stats() Stats {
	st := s.stats
	st.Orphans, st.OrphanBytes = s.room.blocks, s.room.bytes
	recs, freeRecs := s.recs.bytes()
	nodes, freeNodes := s.nodes.bytes()
	tokens, freeTokens, kept := s.blobs.bytes()
	open, pinned := s.cuts.stats()
	st.Cuts = open
	st.Bytes = Bytes{
		Records:    recs + nodes,
		Tokens:     tokens,
		Table:      s.held.bytes() + s.ghost.bytes(),
		Attributes: s.attrs.bytes,
		Orphans:    s.room.bytes,
		Cuts:       pinned + kept,
		Free:       freeRecs + freeNodes + freeTokens,
	}
	return st
}
