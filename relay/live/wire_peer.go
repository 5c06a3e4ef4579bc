// SPDX-License-Identifier: Apache-2.0

// Before: Effects, Chunks. After: the bytes of the peer's contract.

package live

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"kindex/internal/kv"
)

// Tags of proto/peer/common/common.proto: field number and wire type in one byte.
const (
	tagPeerEvents = 3<<3 | byte(protowire.BytesType) // KvEventBatch.events

	tagPeerID      = 1<<3 | byte(protowire.VarintType) // KvCacheEvent
	tagPeerStored  = 2<<3 | byte(protowire.BytesType)
	tagPeerRemoved = 3<<3 | byte(protowire.BytesType)
	tagPeerCleared = 4<<3 | byte(protowire.BytesType)

	tagStoredBlocks     = 1<<3 | byte(protowire.BytesType) // KvBlocksStored
	tagPeerParent       = 2<<3 | byte(protowire.VarintType)
	tagPeerTier         = 3<<3 | byte(protowire.VarintType)
	tagPeerMedium       = 4<<3 | byte(protowire.BytesType)
	tagPeerGroup        = 5<<3 | byte(protowire.VarintType)
	tagPeerSpec         = 6<<3 | byte(protowire.BytesType)
	tagPeerWindow       = 7<<3 | byte(protowire.VarintType)
	tagPeerLocality     = 8<<3 | byte(protowire.VarintType)
	tagPeerOwnership    = 9<<3 | byte(protowire.BytesType)
	tagPeerSession      = 10<<3 | byte(protowire.BytesType)
	tagPeerLoRA         = 11<<3 | byte(protowire.BytesType)
	tagPeerSalt         = 12<<3 | byte(protowire.BytesType)
	tagBlockHash        = 1<<3 | byte(protowire.VarintType) // KvBlock
	tagBlockTokens      = 2<<3 | byte(protowire.BytesType)
	tagBlockSize        = 3<<3 | byte(protowire.VarintType)
	tagBlockLoRA        = 4<<3 | byte(protowire.VarintType)
	tagBlockLevel       = 5<<3 | byte(protowire.VarintType)
	tagBlockKeys        = 6<<3 | byte(protowire.BytesType)
	tagKeyText          = 1<<3 | byte(protowire.BytesType) // KvBlockExtraKey
	tagKeyBlob          = 2<<3 | byte(protowire.BytesType)
	tagKeyMultimodal    = 4<<3 | byte(protowire.BytesType)
	tagItemIdentifier   = 1<<3 | byte(protowire.BytesType) // KvMultimodalKey
	tagItemOffset       = 2<<3 | byte(protowire.VarintType)
	tagGoneHashes       = 1<<3 | byte(protowire.BytesType) // KvBlocksRemoved
	tagGoneLevel        = 2<<3 | byte(protowire.VarintType)
	tagGoneTier         = 3<<3 | byte(protowire.VarintType)
	tagGoneMedium       = 4<<3 | byte(protowire.BytesType)
	tagGoneGroup        = 5<<3 | byte(protowire.VarintType)
	tagGoneLocality     = 6<<3 | byte(protowire.VarintType)
	tagGoneOwnership    = 7<<3 | byte(protowire.BytesType)
	tagClearedOwnership = 1<<3 | byte(protowire.BytesType) // KvCacheCleared
)

// appendStoredTail appends the fields of KvBlocksStored that follow blocks and
// parent.
func appendStoredTail(b []byte, a *attr) []byte {
	p := &a.peer
	b = append(b, tagPeerTier, byte(a.place.tier())+1)
	b = appendSomeText(b, tagPeerMedium, p.medium)
	if p.hasGroup {
		b = append(b, tagPeerGroup)
		b = protowire.AppendVarint(b, uint64(uint32(p.group)))
	}
	b = appendSomeText(b, tagPeerSpec, p.spec)
	if p.hasWindow {
		b = append(b, tagPeerWindow)
		b = protowire.AppendVarint(b, uint64(uint32(p.window)))
	}
	b = appendLocality(b, tagPeerLocality, p.locality)
	b = appendSomeText(b, tagPeerOwnership, p.ownership)
	b = appendSomeText(b, tagPeerSession, p.session)
	b = appendSomeText(b, tagPeerLoRA, a.lora)
	return appendSomeText(b, tagPeerSalt, a.salt)
}

// appendBlockTail appends the fields of KvBlock between tokens and extra keys.
func appendBlockTail(b []byte, a *attr) []byte {
	if a.blockSize != 0 {
		b = append(b, tagBlockSize)
		b = protowire.AppendVarint(b, uint64(a.blockSize))
	}
	if a.peer.hasLoRAID {
		b = append(b, tagBlockLoRA)
		b = protowire.AppendVarint(b, uint64(a.peer.loraID))
	}
	if t := a.place.tier(); t != kv.TierDevice {
		b = append(b, tagBlockLevel, byte(t))
	}
	return b
}

// appendRemovedTail appends the fields of KvBlocksRemoved that follow the hashes.
func appendRemovedTail(b []byte, at place, p *peerAttr) []byte {
	if t := at.tier(); t != kv.TierDevice {
		b = append(b, tagGoneLevel, byte(t))
	}
	b = append(b, tagGoneTier, byte(at.tier())+1)
	b = appendSomeText(b, tagGoneMedium, p.medium)
	if p.hasGroup {
		b = append(b, tagGoneGroup)
		b = protowire.AppendVarint(b, uint64(uint32(p.group)))
	}
	b = appendLocality(b, tagGoneLocality, p.locality)
	return appendSomeText(b, tagGoneOwnership, p.ownership)
}

func appendLocality(b []byte, tag byte, l kv.Locality) []byte {
	if l == kv.LocalityUnstated {
		return b
	}
	return append(b, tag, byte(l))
}

func appendSomeText(b []byte, tag byte, s string) []byte {
	if s == "" {
		return b
	}
	return appendText(b, tag, s)
}

// peerRun is a KvBlocksStored to be.
type peerRun struct {
	id        uint64
	attr      *shared
	hasParent bool
	parent    uint64
	engines   []uint64
	blobs     []blobRef
	chunks    []*[blobChunk]byte
}

// parts returns the tokens and the extra keys of one block.
func (r blobRef) parts(chunks []*[blobChunk]byte) (tokens, keys []byte) {
	n := int(r.size & sizeMask)
	if n == 0 {
		return nil, nil
	}
	b := blobAt(chunks, r.ref, n)
	if r.size&keyed == 0 {
		return b, nil
	}
	at := binary.LittleEndian.Uint32(b[n-4:])
	return b[:at], b[at : n-4]
}

// sizePeerBlock returns the bytes of one KvBlock's body.
func sizePeerBlock(engine uint64, a *shared, tokens, keys int) int {
	n := len(a.block) + keys
	if engine != 0 {
		n += 1 + protowire.SizeVarint(engine)
	}
	if tokens > 0 {
		n += 1 + protowire.SizeBytes(tokens)
	}
	return n
}

// size returns the bytes of the KvBlocksStored's body.
func (r *peerRun) size() int {
	n := len(r.attr.stored)
	if r.hasParent {
		n += 1 + protowire.SizeVarint(r.parent)
	}
	for i, e := range r.engines {
		tokens, keys := r.blobs[i].lens(r.chunks)
		n += 1 + protowire.SizeBytes(sizePeerBlock(e, r.attr, tokens, keys))
	}
	return n
}

// lens returns the lengths of parts, in bytes.
func (r blobRef) lens(chunks []*[blobChunk]byte) (tokens, keys int) {
	if r.size&keyed == 0 {
		return int(r.size & sizeMask), 0
	}
	t, k := r.parts(chunks)
	return len(t), len(k)
}

// appendPeerStored appends r as a field events.
func appendPeerStored(b []byte, r *peerRun) []byte {
	b = appendPeerEvent(b, r.id, tagPeerStored, r.size())
	for i, e := range r.engines {
		tokens, keys := r.blobs[i].parts(r.chunks)
		b = append(b, tagStoredBlocks)
		b = protowire.AppendVarint(b, uint64(sizePeerBlock(e, r.attr, len(tokens), len(keys))))
		if e != 0 {
			b = append(b, tagBlockHash)
			b = protowire.AppendVarint(b, e)
		}
		if len(tokens) > 0 {
			b = append(b, tagBlockTokens)
			b = protowire.AppendVarint(b, uint64(len(tokens)))
			b = append(b, tokens...)
		}
		b = append(b, r.attr.block...)
		b = append(b, keys...)
	}
	if r.hasParent {
		b = append(b, tagPeerParent)
		b = protowire.AppendVarint(b, r.parent)
	}
	return append(b, r.attr.stored...)
}

func appendPeerRemoved(b []byte, id uint64, engines []uint64, tail []byte) []byte {
	hashes := 0
	for _, e := range engines {
		hashes += protowire.SizeVarint(e)
	}
	b = appendPeerEvent(b, id, tagPeerRemoved, 1+protowire.SizeBytes(hashes)+len(tail))
	b = append(b, tagGoneHashes)
	b = protowire.AppendVarint(b, uint64(hashes))
	for _, e := range engines {
		b = protowire.AppendVarint(b, e)
	}
	return append(b, tail...)
}

func appendPeerCleared(b []byte, id uint64, tail []byte) []byte {
	b = appendPeerEvent(b, id, tagPeerCleared, len(tail))
	return append(b, tail...)
}

// appendPeerEvent appends a KvCacheEvent up to its body of n bytes.
func appendPeerEvent(b []byte, id uint64, kind byte, n int) []byte {
	size := 1 + protowire.SizeBytes(n)
	if id != 0 {
		size += 1 + protowire.SizeVarint(id)
	}
	b = append(b, tagPeerEvents)
	b = protowire.AppendVarint(b, uint64(size))
	if id != 0 {
		b = append(b, tagPeerID)
		b = protowire.AppendVarint(b, id)
	}
	b = append(b, kind)
	return protowire.AppendVarint(b, uint64(n))
}
