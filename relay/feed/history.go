// SPDX-License-Identifier: Apache-2.0

package feed

import "github.com/zeebo/xxh3"

// HistoryLen is how many admitted batches a stream can recognise. It is what an
// engine's own replay buffer holds by default, so that whatever a replay repeats
// is recognised.
const HistoryLen = 10_000

const historyChunk = 1_000

// history keeps a 64-bit hash of each of the last [HistoryLen] admitted payloads
// by number. It grows to 80 KB as numbers come.
type history struct {
	chunks [HistoryLen / historyChunk][]uint64
	next   uint64 // one past the last number noted
}

// digest returns a payload's hash, never 0.
func digest(payload []byte) uint64 { return max(xxh3.Hash(payload), 1) }

func (h *history) slot(seq uint64) *uint64 {
	i := seq % HistoryLen
	c := &h.chunks[i/historyChunk]
	if *c == nil {
		*c = make([]uint64, historyChunk)
	}
	return &(*c)[i%historyChunk]
}

// add notes the payload hash of number seq, which is above all noted before.
// Numbers left out become unknown.
func (h *history) add(seq, sum uint64) {
	h.skip(seq)
	*h.slot(seq) = sum
	h.next = seq + 1
}

// note keeps the hash of the last number noted or skipped, which is seq.
func (h *history) note(seq, sum uint64) { *h.slot(seq) = sum }

// skip makes the numbers from the last noted one up to seq, exclusive, unknown.
func (h *history) skip(seq uint64) {
	from := h.next
	if seq-from > HistoryLen {
		from = seq - HistoryLen
	}
	for ; from < seq; from++ {
		*h.slot(from) = 0
	}
	h.next = max(h.next, seq)
}

// get returns the hash of number seq, or 0 where it is unknown.
func (h *history) get(seq uint64) uint64 {
	if seq >= h.next || h.next-seq > HistoryLen {
		return 0
	}
	c := h.chunks[seq%HistoryLen/historyChunk]
	if c == nil {
		return 0
	}
	return c[seq%HistoryLen%historyChunk]
}

// reset forgets everything; it keeps its memory.
func (h *history) reset() {
	for _, c := range h.chunks {
		clear(c)
	}
	h.next = 0
}
