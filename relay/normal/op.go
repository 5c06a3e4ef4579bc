// SPDX-License-Identifier: Apache-2.0

// Before: kv.Batch (decoded events). After: an index's writer, a relay's rank.

package normal

import "kindex/internal/kv"

// Kind is what an Op does.
type Kind uint8

// The kinds of operations.
const (
	Store  Kind = iota // copies appear
	Remove             // copies go
	Clear              // everything goes, all tiers
	// Mismatch changes nothing: a store of another block size than the content's
	// was dropped and counted, so that what the engine caches there is missing.
	// Size is that size.
	Mismatch
)

// Op is one operation on a rank's content. An event makes none, one or several.
// Slices alias the batch's and the normaliser's buffers: valid until the next call
// of Batch.
type Op struct {
	Kind  Kind
	Event int // index of the event in the batch
	From  int // first block of the event that this covers

	Tier  kv.Tier // device, host or disk
	Group uint8   // which main cache group; 0 where the engine names none

	Parent    kv.EngineHash
	HasParent bool

	// Seed, LoRA and Salt are the namespace as the event says it; Seed is their
	// [kv.ContentSeed]. A known parent's namespace wins over it.
	Seed       uint64
	LoRA, Salt string
	// Stated says that the event names its whole namespace, so that a parent in
	// another one is a contradiction worth counting.
	Stated bool

	Engines []kv.EngineHash
	// Contents are the blocks' content hashes under Seed. A store without any is a
	// placeholder: one more copy of blocks told before.
	Contents []kv.ContentHash
	// Blocks is what Contents were made of, kept so that they can be hashed again
	// under the parent's namespace.
	Blocks kv.Blocks

	Size int // Mismatch: the block size told, in tokens
}

// Reason is why an event, or a part of one, makes no memberships. Those of the
// decoder are wire.Reason.
type Reason uint8

// The reasons.
const (
	none           Reason = iota
	NonMainGroup          // a cache group that is not main attention
	RemoteLocality        // a copy in somebody else's storage
	RemoteTier            // a copy in shared storage
	Ownership             // a copy whose owner does not keep it for this engine alone
	UnknownMedium         // a medium this version cannot name
	GroupRange            // a main group number that is not 0 to 255
	BlockSize             // another block size than the content's
	Misaligned            // tokens that are not block size times hashes
	NoHashes              // an event that names no block
	numReasons
)

// Reasons are all reasons, in a fixed order.
var Reasons = [...]Reason{NonMainGroup, RemoteLocality, RemoteTier, Ownership, UnknownMedium, GroupRange, BlockSize, Misaligned, NoHashes}

var reasonNames = [numReasons]string{
	none:           "none",
	NonMainGroup:   "non_main_group",
	RemoteLocality: "remote_locality",
	RemoteTier:     "remote_tier",
	Ownership:      "unsupported_ownership",
	UnknownMedium:  "unknown_medium",
	GroupRange:     "group_range",
	BlockSize:      "block_size",
	Misaligned:     "misaligned",
	NoHashes:       "no_hashes",
}

// String returns the metric label of r.
func (r Reason) String() string { return reasonNames[r] }
