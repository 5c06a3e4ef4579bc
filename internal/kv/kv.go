// SPDX-License-Identifier: Apache-2.0

package kv

import "fmt"

// ContentHash is the 64-bit hash of one block's tokens and its extra keys. It
// says what a block is, not where it stands in a chain. See [HashBlock].
type ContentHash uint64

// EngineHash is the engine's own name for a cached block: a hash over the whole
// chain up to it. Hashes sent as bytes are folded to their last 8, big-endian.
type EngineHash uint64

// Tier is where a copy of a block lies.
type Tier uint8

// The tiers, fastest first. TierRemote is storage shared with others: copies
// there are never memberships.
const (
	TierDevice Tier = iota
	TierHost
	TierDisk
	TierRemote
	TierUnknown // a medium this version cannot name
)

// LocalTiers is the number of tiers that make memberships: device, host, disk.
const LocalTiers = 3

var tierNames = [...]string{"device", "host", "disk", "remote", "unknown"}

// String returns the glossary's word for t.
func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// Cursor names the last batch admitted from one stream.
type Cursor struct {
	Epoch    uint64 // one life of a publisher; a restart begins another
	Sequence uint64 // number of the last admitted batch of that life
}

// Match is one holder's answer to a lookup: how many leading blocks of the
// chain it holds, counted in blocks, no hole jumped.
//
// The three depths are cumulative: Device <= Host <= Any.
type Match struct {
	Holder uint32 // as given by the index's AddHolder
	Device uint32 // blocks held in the device tier
	Host   uint32 // blocks held in the device or the host tier
	Any    uint32 // blocks held in any local tier
}
