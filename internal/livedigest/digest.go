// SPDX-License-Identifier: Apache-2.0

// Package livedigest is the digest of one rank's live content: a number that a
// relay and its subscribers compute each for itself, to see that they hold the
// same. docs/protocol.md gives it for others.
package livedigest

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
)

// Root returns the position hash above the first block of a chain in the namespace
// whose content seed is seed: the seed itself.
func Root(seed uint64) uint64 { return seed }

// Child returns the position hash of the block with content hash c below the
// position with hash parent: XXH3-64 of both as little-endian, parent first.
func Child(parent uint64, c kv.ContentHash) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], uint64(c))
	return xxh3.Hash(b[:])
}

// Copies returns what n copies of one engine hash in one tier and group add to the
// digest, which is the sum of all, modulo 2^64: XXH3-64 of the engine hash and the
// position hash as little-endian uint64, then tier (0 device, 1 host, 2 disk),
// group and n as little-endian uint32. n is at least 1.
func Copies(e kv.EngineHash, position uint64, tier kv.Tier, group uint8, n uint32) uint64 {
	var b [28]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(e))
	binary.LittleEndian.PutUint64(b[8:16], position)
	binary.LittleEndian.PutUint32(b[16:20], uint32(tier))
	binary.LittleEndian.PutUint32(b[20:24], uint32(group))
	binary.LittleEndian.PutUint32(b[24:], n)
	return xxh3.Hash(b[:])
}
