// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// HashSeed is the seed of the bare namespace's content hashes.
// Source: Mooncake RFC 1403 and Dynamo's kv-router, so that a hash computed by
// a client of those means the same here.
const HashSeed = 1337

// extraSeed is added to the namespace's seed for blocks that carry extra keys,
// so that no such block equals a plain one by construction. The rule is ours:
// docs/protocol.md.
const extraSeed = 0x6b69_6e64_6578_0001

// ContentSeed returns the seed of the content hashes of one namespace. Empty
// strings name nothing: ContentSeed("", "") is HashSeed.
func ContentSeed(lora, salt string) uint64 {
	seed := uint64(HashSeed)
	if lora != "" {
		seed += xxh3.HashStringSeed(lora, 0)
	}
	if salt != "" {
		seed += xxh3.HashStringSeed(salt, 1)
	}
	return seed
}

// ModelKey separates what a fleet serves side by side: tenant, model name and
// routing group. It is the part of a [Namespace] that all holders of one model
// share.
type ModelKey uint64

// MakeModelKey returns the key of one (tenant, model, routing group). Lengths
// are hashed too, so that no two triples run together.
func MakeModelKey(tenant, model, group string) ModelKey {
	var b []byte
	for _, s := range [...]string{tenant, model, group} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return ModelKey(xxh3.HashSeed(b, HashSeed))
}

// Namespace roots a tree of positions of its own: model key plus content seed,
// wrapping. Equal on every host for equal names.
type Namespace uint64

// Namespace returns the namespace of one content seed within m.
func (m ModelKey) Namespace(seed uint64) Namespace { return Namespace(uint64(m) + seed) }

// Seed returns the content seed that made n within m.
func (m ModelKey) Seed(n Namespace) uint64 { return uint64(n) - uint64(m) }

// Blocks is the token content of consecutive blocks.
//
// Shape: len(Tokens) is a multiple of BlockSize; Extra is nil or has one entry
// per block, an empty entry meaning no extra keys.
type Blocks struct {
	Tokens    []uint32
	BlockSize int
	Extra     [][]byte // canonical encoding, see [AppendExtraKey]
}

// Len returns the number of blocks.
func (b *Blocks) Len() int {
	if b.BlockSize <= 0 {
		return 0
	}
	return len(b.Tokens) / b.BlockSize
}

// AppendHashes appends the content hash of each block under seed to dst.
// It allocates only when dst is too small.
func (b *Blocks) AppendHashes(dst []ContentHash, seed uint64) []ContentHash {
	n := b.Len()
	for i := range n {
		tokens := b.Tokens[i*b.BlockSize : (i+1)*b.BlockSize]
		var extra []byte
		if b.Extra != nil {
			extra = b.Extra[i]
		}
		dst = append(dst, HashBlock(seed, tokens, extra))
	}
	return dst
}

// HashBlock returns the content hash of one block: XXH3-64 with the namespace's
// seed over the tokens as little-endian uint32. A block with extra keys (an
// image's identifier and offset) hashes the plain hash and the keys' canonical
// encoding again, under a seed of its own.
func HashBlock(seed uint64, tokens []uint32, extra []byte) ContentHash {
	plain := ContentHash(xxh3.HashSeed(tokenBytes(tokens), seed))
	if len(extra) == 0 {
		return plain
	}
	return HashExtra(seed, plain, extra)
}

// HashExtra returns the content hash of a block that carries the extra keys
// extra, not empty, and whose tokens alone hash to plain under seed.
func HashExtra(seed uint64, plain ContentHash, extra []byte) ContentHash {
	h := xxh3.New()
	var le [16]byte
	binary.LittleEndian.PutUint64(le[:8], seed+extraSeed)
	binary.LittleEndian.PutUint64(le[8:], uint64(plain))
	_, _ = h.Write(le[:])
	_, _ = h.Write(extra)
	return ContentHash(h.Sum64())
}

// The tags of AppendExtraKey's encoding.
const (
	extraItem   = 1 // multimodal item: identifier and offset
	extraString = 2 // a bare identifier
	extraBytes  = 3 // a digest, as of prompt embeddings
)

// ValidExtraKeys reports whether b is keys as [AppendExtraKey] encodes them, one
// after the other, or none.
func ValidExtraKeys(b []byte) bool {
	for len(b) > 0 {
		if len(b) < 5 || b[0] < extraItem || b[0] > extraBytes {
			return false
		}
		n := uint64(binary.LittleEndian.Uint32(b[1:]))
		if b[0] == extraItem {
			n += 8
		}
		if b = b[5:]; n > uint64(len(b)) {
			return false
		}
		b = b[n:]
	}
	return true
}

// AppendExtraKey appends k's canonical encoding: a tag byte, the identifier's
// length as little-endian uint32, the identifier, and for an item its offset as
// little-endian int64.
func AppendExtraKey(dst []byte, k ExtraKey) []byte {
	tag := byte(extraString)
	switch k.Kind {
	case ExtraItem:
		tag = extraItem
	case ExtraBytes:
		tag = extraBytes
	case ExtraString:
	}
	dst = append(dst, tag)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(k.ID)))
	dst = append(dst, k.ID...)
	if tag == extraItem {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(k.Offset))
	}
	return dst
}
