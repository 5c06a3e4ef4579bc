// SPDX-License-Identifier: Apache-2.0

// Before: Effects, Chunks. After: the bytes of the relay's own contract.

package live

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// Tags of proto/kindex/relay/v1/relay.proto: field number and wire type in one
// byte.
const (
	tagBatchEvents = 4<<3 | byte(protowire.BytesType) // Batch.events
	tagChunkEvents = 8<<3 | byte(protowire.BytesType) // SnapshotChunk.events

	tagEventStored  = 1<<3 | byte(protowire.BytesType) // Event
	tagEventRemoved = 2<<3 | byte(protowire.BytesType)
	tagEventCleared = 3<<3 | byte(protowire.BytesType)

	tagStoredTier      = 1<<3 | byte(protowire.VarintType) // Stored
	tagStoredGroup     = 2<<3 | byte(protowire.VarintType)
	tagStoredParent    = 3<<3 | byte(protowire.Fixed64Type)
	tagStoredSeed      = 4<<3 | byte(protowire.Fixed64Type)
	tagStoredBlockSize = 5<<3 | byte(protowire.VarintType)
	tagStoredEngines   = 6<<3 | byte(protowire.BytesType)
	tagStoredContents  = 7<<3 | byte(protowire.BytesType)

	tagRemovedTier    = 1<<3 | byte(protowire.VarintType) // Removed
	tagRemovedGroup   = 2<<3 | byte(protowire.VarintType)
	tagRemovedEngines = 3<<3 | byte(protowire.BytesType)
)

// ownRun is a Stored to be. Without contents it is a placeholder, which says
// nothing of namespace and parent.
type ownRun struct {
	place     place
	seed      uint64
	blockSize int
	hasParent bool
	parent    uint64
	engines   []uint64
	contents  []uint64
}

func (r *ownRun) size() int {
	n := sizePlace(r.place) + sizeHashes(len(r.engines)) + sizeHashes(len(r.contents))
	if r.hasParent {
		n += 9
	}
	if r.seed != 0 {
		n += 9
	}
	if r.blockSize != 0 {
		n += 1 + protowire.SizeVarint(uint64(r.blockSize))
	}
	return n
}

// appendOwnStored appends r as an Event in the field of tag.
func appendOwnStored(b []byte, tag byte, r *ownRun) []byte {
	n := r.size()
	b = appendOwnEvent(b, tag, tagEventStored, n)
	b = appendPlace(b, tagStoredTier, tagStoredGroup, r.place)
	if r.hasParent {
		b = append(b, tagStoredParent)
		b = binary.LittleEndian.AppendUint64(b, r.parent)
	}
	if r.seed != 0 {
		b = append(b, tagStoredSeed)
		b = binary.LittleEndian.AppendUint64(b, r.seed)
	}
	if r.blockSize != 0 {
		b = append(b, tagStoredBlockSize)
		b = protowire.AppendVarint(b, uint64(r.blockSize))
	}
	b = appendHashes(b, tagStoredEngines, r.engines)
	return appendHashes(b, tagStoredContents, r.contents)
}

func appendOwnRemoved(b []byte, tag byte, at place, engines []uint64) []byte {
	b = appendOwnEvent(b, tag, tagEventRemoved, sizePlace(at)+sizeHashes(len(engines)))
	b = appendPlace(b, tagRemovedTier, tagRemovedGroup, at)
	return appendHashes(b, tagRemovedEngines, engines)
}

func appendOwnCleared(b []byte, tag byte) []byte { return appendOwnEvent(b, tag, tagEventCleared, 0) }

// appendOwnEvent appends an Event up to its body of n bytes.
func appendOwnEvent(b []byte, tag, kind byte, n int) []byte {
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(n)))
	b = append(b, kind)
	return protowire.AppendVarint(b, uint64(n))
}

func sizePlace(p place) int {
	n := 2
	if g := p.group(); g != 0 {
		n += 1 + protowire.SizeVarint(uint64(g))
	}
	return n
}

func appendPlace(b []byte, tier, group byte, p place) []byte {
	b = append(b, tier, byte(p.tier())+1)
	if g := p.group(); g != 0 {
		b = append(b, group)
		b = protowire.AppendVarint(b, uint64(g))
	}
	return b
}

func sizeHashes(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(8*n)
}

func appendHashes(b []byte, tag byte, hashes []uint64) []byte {
	if len(hashes) == 0 {
		return b
	}
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(8*len(hashes)))
	for _, h := range hashes {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	return b
}
