// SPDX-License-Identifier: Apache-2.0

// Before: store.go (a new block). After: blob.go (its cell).

package live

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"kindex/internal/kv"
)

// A blob is the block's tokens as packed varints. If the record says keyed, the
// block's extra keys follow, each a field of KvBlock, and then the bytes that the
// tokens take, as a little-endian uint32.

// blobBound returns the most bytes that the blob of one of t's blocks takes.
func (t *told) blobBound() int {
	keys := 0
	for _, block := range t.keys {
		n := 0
		for i := range block {
			n += len(block[i].ID) + 48
		}
		keys = max(keys, n)
	}
	return 5*t.blocks.BlockSize + keys + 4
}

// putBlob keeps the tokens and keys of block i of t and returns the blob's number
// and a record's size and flags for it. A block without tokens has none.
func (s *State) putBlob(t *told, i int) (ref, size uint32) {
	b := s.blob[:0]
	if n := t.blocks.BlockSize; n > 0 {
		b = appendTokens(b, t.blocks.Tokens[i*n:(i+1)*n])
	}
	tokens := len(b)
	if t.keys != nil && len(t.keys[i]) > 0 {
		foreign := t.foreign
		for k := range t.keys[i] {
			key := &t.keys[i][k]
			if foreign != "" && key.Kind == kv.ExtraString && key.ID == foreign {
				foreign = ""
				continue
			}
			b = appendKey(b, key)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(tokens))
		size = keyed
	}
	s.blob = b
	if len(b) == 0 {
		return 0, 0
	}
	return s.blobs.put(b), size | uint32(len(b))
}

// appendTokens appends tokens as packed varints.
func appendTokens(b []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		switch {
		case t < 1<<7:
			b = append(b, byte(t))
		case t < 1<<14:
			b = append(b, byte(t)|0x80, byte(t>>7))
		case t < 1<<21:
			b = append(b, byte(t)|0x80, byte(t>>7)|0x80, byte(t>>14))
		default:
			b = protowire.AppendVarint(b, uint64(t))
		}
	}
	return b
}

// appendKey appends k as a field extra_keys of KvBlock.
func appendKey(b []byte, k *kv.ExtraKey) []byte {
	b = append(b, tagBlockKeys)
	switch k.Kind {
	case kv.ExtraItem:
		item := sizeText(k.ID)
		if k.Offset != 0 {
			item += 1 + protowire.SizeVarint(uint64(k.Offset))
		}
		b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(item)))
		b = append(b, tagKeyMultimodal)
		b = protowire.AppendVarint(b, uint64(item))
		if k.ID != "" {
			b = appendText(b, tagItemIdentifier, k.ID)
		}
		if k.Offset != 0 {
			b = append(b, tagItemOffset)
			b = protowire.AppendVarint(b, uint64(k.Offset))
		}
	case kv.ExtraBytes:
		b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(len(k.ID))))
		b = appendText(b, tagKeyBlob, k.ID)
	case kv.ExtraString:
		b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(len(k.ID))))
		b = appendText(b, tagKeyText, k.ID)
	}
	return b
}

// sizeText returns the bytes of a field of text, which an empty one lacks.
func sizeText(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}

func appendText(b []byte, tag byte, s string) []byte {
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(len(s)))
	return append(b, s...)
}
