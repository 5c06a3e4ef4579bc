// SPDX-License-Identifier: Apache-2.0

package bench

import "kindex/internal/kv"

// BlockSize of all streams, in tokens.
const BlockSize = blockSize

// Model is what the streams' engines serve.
const Model = "bench"

// Stream is what one busy engine publishes: frames as vLLM lays them out, of prompts of
// 64 blocks of which half is shared with some before.
type Stream struct {
	Frames          [][]byte   // payloads; a message's number is its place
	Batches         []kv.Batch // what they hold
	Stored, Removed int        // blocks
}

// MakeStream returns a stream of so many prompts, of an engine that holds at most cache
// blocks; cache 0: that evicts nothing. Equal arguments give equal streams.
func MakeStream(prompts, cache int, seed uint64) *Stream {
	s := typical
	s.prompts, s.cache = prompts, cache
	w := generate(s, seed)
	return &Stream{Frames: w.frames, Batches: w.batches, Stored: w.stored, Removed: w.removed}
}
