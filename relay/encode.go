// SPDX-License-Identifier: Apache-2.0

// Before: Rank and snapshot. After: the history, and the servers' streams. What
// stands here are the messages around the events, which package live encodes.

package relay

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

func appendVarint(dst []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
}

func appendFixed64(dst []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(dst, field, protowire.Fixed64Type), v)
}

// appendOwnBatch appends a kindex.relay.v1.Batch but for its events.
func appendOwnBatch(dst []byte, seq, check uint64, timestamp float64) []byte {
	dst = appendVarint(dst, 1, seq)
	dst = appendFixed64(dst, 2, check)
	return appendFixed64(dst, 3, math.Float64bits(timestamp))
}

// appendPeerBatch appends a smg.grpc.common.KvEventBatch but for its events.
func appendPeerBatch(dst []byte, seq uint64, timestamp float64, rank int) []byte {
	dst = appendVarint(dst, 1, seq)
	dst = appendFixed64(dst, 2, math.Float64bits(timestamp))
	return appendVarint(dst, 4, uint64(rank))
}

// appendOwnChunk appends a kindex.relay.v1.SnapshotChunk but for its events.
func appendOwnChunk(dst []byte, c *Chunk) []byte {
	dst = appendVarint(dst, 1, uint64(c.Index))
	dst = appendVarint(dst, 2, uint64(c.Count))
	dst = appendVarint(dst, 3, c.Blocks)
	dst = appendVarint(dst, 4, c.UnknownBefore)
	dst = appendVarint(dst, 5, 1)
	dst = appendVarint(dst, 6, c.Through)
	dst = appendFixed64(dst, 7, c.Check)
	if c.Index == c.Count-1 {
		dst = appendFixed64(dst, 10, c.Digest)
	}
	return dst
}

// appendPeerChunk appends a smg.grpc.common.KvEventBatch with its field snapshot
// but for its events.
func appendPeerChunk(dst []byte, c *Chunk, timestamp float64, rank int) []byte {
	dst = appendPeerBatch(dst, c.Sequence, timestamp, rank)
	var part []byte
	part = appendVarint(part, 1, uint64(c.Index))
	part = appendVarint(part, 2, uint64(c.Count))
	part = appendVarint(part, 3, c.Blocks)
	part = appendVarint(part, 4, c.UnknownBefore)
	return protowire.AppendBytes(protowire.AppendTag(dst, 7, protowire.BytesType), part)
}
