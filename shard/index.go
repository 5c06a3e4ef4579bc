// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"fmt"

	"kindex/internal/kv"
	"kindex/numa"
)

// Holder names one (worker, rank) within an index. Numbers are never used
// again, so that a late answer cannot name a successor.
type Holder uint32

// MaxHolders bounds the holders an index takes at once. A holder occupies one
// slot while it names one tier and at most [slotsPerHolder] when it names all;
// slots are 16-bit, and every holder's worst case is reserved, so that a stream
// is refused when it registers and never while it runs.
const MaxHolders = maxSlots / slotsPerHolder

// MaxArenaBytes is the most that one index takes outside the Go heap: lines of 64
// bytes have 32-bit numbers.
const MaxArenaBytes = 256 << 30

// slotsPerHolder: device, host, disk, device-or-host, any.
const slotsPerHolder = 5

// Conditions that callers meet.
var (
	// ErrHolders refuses a holder past MaxHolders.
	ErrHolders = fmt.Errorf("index full: it takes %d (worker, rank) holders (%d slots, %d each); unregister some or start another index host", MaxHolders, maxSlots, slotsPerHolder)
	// ErrArenaFull refuses a store that memory has no room for. What the store would
	// have moved is gone, in all tiers, so that nothing is counted that is not there;
	// the holder is exact again only once it is cleared.
	ErrArenaFull = errors.New("index arena full")
	// ErrUnknownHolder is a holder never added or already dropped.
	ErrUnknownHolder = errors.New("unknown holder")
)

// Store announces copies of consecutive blocks of one chain in one tier.
//
// Shape: with tokens, len(Contents) == len(Engines) (== Blocks.Len() when
// Blocks is given). A placeholder has no Contents: each engine hash names a
// block told before, whose copy in Tier is added.
// Concurrency: the index copies what it keeps; slices stay the caller's.
type Store struct {
	Tier  kv.Tier // device, host or disk
	Group uint8   // which main cache group; 0 where the engine names none

	// Namespace is where a chain without parent begins, and what Contents were
	// hashed under. A known parent's namespace wins over it.
	Namespace kv.Namespace
	// Stated says that the event itself names its whole namespace (LoRA and
	// salt), so that a parent in another one is a contradiction worth counting.
	Stated bool

	Parent    kv.EngineHash
	HasParent bool

	Engines  []kv.EngineHash
	Contents []kv.ContentHash
	// Blocks is what Contents were made of, kept so that they can be hashed
	// again under the parent's namespace. Empty: Contents are taken as they are.
	Blocks kv.Blocks

	// Tight refuses the store with ErrArenaFull, as if the index were full, unless
	// it wants next to no memory: no new block, and nothing that waits. An index
	// that has no bound of memory stores it all the same.
	Tight bool
}

// placeholder reports whether st only names blocks told before.
func (st *Store) placeholder() bool { return len(st.Contents) == 0 }

// Remove takes one copy of each engine hash out of one tier and group.
type Remove struct {
	Tier    kv.Tier
	Group   uint8
	Engines []kv.EngineHash
}

// HolderStats counts one holder's state and what happened to its events.
type HolderStats struct {
	Memberships  uint64 // positions held now, in any local tier
	Orphans      uint64 // blocks that wait for a parent
	OrphanBytes  uint64 // memory they take
	SecondCopies uint64 // copies beyond the first of a (tier, group, hash), now

	RemoveUnknown  uint64 // removals of a copy that was not held
	StoreUnknown   uint64 // placeholders of a hash nobody told
	OrphansDropped uint64 // waiting blocks dropped past the bound
	Contradictions uint64 // stores whose stated namespace is not their parent's
	// Moved counts engine hashes stored again at another position. How often a
	// hash counts that stands twice in one store is the implementation's affair.
	Moved uint64
}

// Purpose says what index memory is for.
type Purpose uint8

// The purposes that bytes are counted by.
const (
	PurposeRuns Purpose = iota
	PurposeDictionary
	PurposeEdges
	PurposeHolders
	PurposeStreams // copies, orphans, exceptions: what streams need beyond the index
	PurposeFree    // allocated and not in use
	NumPurposes
)

var purposeNames = [NumPurposes]string{"runs", "dictionary", "edges", "holders", "streams", "free"}

// String returns the metric label of p.
func (p Purpose) String() string { return purposeNames[p] }

// Stats describes an index as a whole.
type Stats struct {
	Holders     uint64
	Memberships uint64 // one holder holding one position, any tier
	Blocks      uint64 // distinct positions
	Runs        uint64 // 0 where the index has no runs
	Bytes       [NumPurposes]uint64
}

// Sized is an Index that knows at any time how much of its memory is taken.
type Sized interface {
	// Memory returns the bytes that count against the bound, and the bound.
	//
	// Concurrency: a writer's call. Cost: a few additions.
	Memory() (used, bound uint64)

	// Pressed is what Memory says is used. Where a table of the index has no room
	// to grow within the bound and is fuller than memory is, it is the table's share
	// of the bound: it too comes to the bound before stores are refused.
	//
	// Concurrency: a writer's call. Cost: a few additions.
	Pressed() uint64
}

// Copy is one engine hash by which a holder holds a position.
type Copy struct {
	Engine kv.EngineHash
	Tier   kv.Tier
	Group  uint8
	Count  uint32 // physical copies, at least 1
}

// Node is one position of a holder's content, or a hole above one.
type Node struct {
	ID        uint64 // never 0; equal IDs are equal positions within one Walk
	Parent    uint64 // ID of the position above; 0 at a root
	Namespace kv.Namespace
	Content   kv.ContentHash
	Copies    []Copy // empty: a hole with held positions below; valid during the call
}

// Options size an index. The zero value means the defaults.
type Options struct {
	// MaxOrphanBlocks and MaxOrphanBytes bound one holder's waiting room;
	// past either the oldest waiting store is dropped and counted.
	MaxOrphanBlocks uint64 // default 65,536
	MaxOrphanBytes  uint64 // default 64 MiB, tokens included
	// ArenaBytes bounds memory outside the Go heap; at most [MaxArenaBytes].
	ArenaBytes uint64 // default: what the implementation states
	// Placement is where memory outside the Go heap lies.
	Placement numa.Placement // default: anywhere
	// FirstHolder is the first holder's number, HolderStride the difference of two
	// that follow each other: several indexes can share one space of numbers.
	FirstHolder  Holder // default 1
	HolderStride uint32 // default 1
}

func (o *Options) setDefaults() {
	if o.MaxOrphanBlocks == 0 {
		o.MaxOrphanBlocks = 65_536
	}
	if o.MaxOrphanBytes == 0 {
		o.MaxOrphanBytes = 64 << 20
	}
	if o.FirstHolder == 0 {
		o.FirstHolder = 1
	}
	if o.HolderStride == 0 {
		o.HolderStride = 1
	}
}

// Index answers which holder holds how much of a chain: exactly, with no hole
// jumped. All implementations answer alike.
//
// Concurrency: Lookup may be called from any goroutine at any time. Every other
// method is a writer's: one call at a time (the caller serialises them).
type Index interface {
	// AddHolder begins a holder, empty, whose positions lie in m's namespaces.
	// It returns ErrHolders when the index takes no more.
	AddHolder(m kv.ModelKey) (Holder, error)
	// Store applies st for h. Only ErrArenaFull and ErrUnknownHolder are
	// returned; whatever the event itself may be wrong about is counted.
	Store(h Holder, st *Store) error
	// Remove applies rm for h.
	Remove(h Holder, rm *Remove) error
	// Clear takes away all of h's content, tiers and waiting orphans alike.
	Clear(h Holder) error
	// Drop clears h and ends it.
	Drop(h Holder) error

	// Lookup appends to dst one match for each holder that holds at least
	// chain[0] in namespace ns, in no order, and returns the extended slice. It
	// allocates only when dst is too small.
	Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match

	// Walk calls fn for each position of h's content, parents first, holes with
	// held positions below included, until fn returns false.
	Walk(h Holder, fn func(*Node) bool) error
	// HolderStats reports on h.
	HolderStats(h Holder) (HolderStats, error)
	// Stats reports on the whole.
	Stats() Stats
}
