// SPDX-License-Identifier: Apache-2.0

// Before: State.Cut, under the rank's lock. After: subscribers' streams.

package live

// Cut is the content of a State at one moment.
//
// Concurrency: any goroutine, without the rank's lock; several at once.
type Cut struct{}

// Close ends the cut: what it kept is free for use again. Chunks made of it must
// not be used any more. Further calls do nothing.
func (c *Cut) Close() {}

// Blocks returns the physical copies in the cut.
func (c *Cut) Blocks() uint64 { return 0 }

// Digest returns the sum that internal/livedigest computes of the same content.
func (c *Cut) Digest() uint64 { return 0 }

// Own returns the content as chunks of the relay's own contract: each the field
// events of kindex.relay.v1.SnapshotChunk.
func (c *Cut) Own() *Chunks { return nil }

// Peer returns the content as chunks of the peer's contract: each the field events
// of smg.grpc.common.KvEventBatch. There are at most through+1 of them: chunks
// carry the numbers that end with through. It returns nil when tokens are hashed.
func (c *Cut) Peer(through uint64) *Chunks { return nil }

// Chunks is a snapshot laid out: at most 2,048 blocks and 1 MiB each (the peer's
// rule doubles both while there are more chunks than numbers), parents first, the
// first chunk beginning with a clear. There is always at least one.
//
// Concurrency: any goroutine, several at once, until the cut is closed.
type Chunks struct{}

// Len returns the number of chunks.
func (c *Chunks) Len() int { return 0 }

// Append appends chunk i to dst.
func (c *Chunks) Append(dst []byte, i int) []byte { return dst }
