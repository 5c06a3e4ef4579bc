// SPDX-License-Identifier: Apache-2.0

// Before: Rank. After: Subscription.

package relay

import "sort"

// The defaults of a rank's history.
const (
	DefaultHistoryBatches = 10_000
	DefaultHistoryBytes   = 256 << 20
)

const (
	// pageSize is the memory that encoded batches are cut from. A page is freed
	// with the last entry that lies in it; readers that still send from it keep it
	// until then, so it is small: 1,000 stuck readers hold at most 64 MiB.
	pageSize = 64 << 10
	// ownPage is the size from which an encoded batch has memory of its own.
	ownPage = pageSize / 4
	// entryBytes is what an entry is charged beside its encoded bytes: its slot.
	entryBytes = 128
)

// entry is one place of the history: a batch, or a hole.
type entry struct {
	from, to  uint64 // numbers; equal for a batch
	check     uint64
	timestamp float64
	received  int64 // Unix nanoseconds
	hole      bool
	clears    bool   // the batch has a clear
	why       string // of a hole
	bodies    [numForms][]byte
}

func (e *entry) charge() int64 {
	n := entryBytes + len(e.why)
	for _, b := range e.bodies {
		n += len(b)
	}
	return int64(n)
}

// What subscribers that are connected may lag behind where the history itself is
// smaller: as many batches as the peer's relay queues for each of its own.
const (
	lagEntries = 4096
	lagBytes   = 4 << 20
	// trimEvery is every how many entries those that nobody needs any more are
	// looked for.
	trimEvery = 8
)

// history is the ring of a rank's newest batches and holes. A place in it is
// named by its index, which counts up from 0 and over epochs; [tail, head) are
// kept. The newest entry is kept however large it is.
//
// Cursors may lie in the window [from, head), which the limits bound. Where they
// are small, what was in the window a while ago is kept as long as somebody is being
// told it, up to the limits of lag: else a subscriber could not be told a snapshot
// before the window has passed it by.
//
// Concurrency: the caller's lock. Encoded bytes never change once added.
type history struct {
	window, lag limits

	ring       []entry // index i at i % len(ring)
	tail, head uint64
	from       uint64
	first      uint64 // index of this epoch's first entry
	bytes      int64  // of [from, head)
	old        int64  // bytes of [tail, from)
	holes      int    // entries that are holes, in [from, head)
	page       []byte
}

type limits struct {
	entries int
	bytes   int64
}

func newHistory(maxEntries int, maxBytes int64) history {
	if maxEntries <= 0 {
		maxEntries = DefaultHistoryBatches
	}
	if maxBytes <= 0 {
		maxBytes = DefaultHistoryBytes
	}
	return history{
		window: limits{maxEntries, maxBytes},
		lag:    limits{max(maxEntries, lagEntries), max(maxBytes, lagBytes)},
	}
}

func (h *history) at(i uint64) *entry { return &h.ring[i%uint64(len(h.ring))] }

// len is how many entries the window has.
func (h *history) len() int { return int(h.head - h.from) }

// kept is how many entries there are in all.
func (h *history) kept() int { return int(h.head - h.tail) }

// keep returns a copy of b that lives as long as somebody refers to it.
func (h *history) keep(b []byte) []byte {
	n := len(b)
	switch {
	case n == 0:
		return nil
	case n >= ownPage:
		return append(make([]byte, 0, n), b...)
	case cap(h.page)-len(h.page) < n:
		h.page = make([]byte, 0, pageSize)
	}
	at := len(h.page)
	h.page = append(h.page, b...)
	return h.page[at : at+n : at+n]
}

// add appends e, whose bodies keep has returned, and lets go of what is past the
// limits.
func (h *history) add(e entry) {
	n := e.charge()
	for h.len() > 0 && (h.len() >= h.window.entries || h.bytes+n > h.window.bytes) {
		h.pass()
	}
	for h.kept() > 0 && (h.kept() >= h.lag.entries || h.old+h.bytes+n > h.lag.bytes) {
		h.drop()
	}
	if h.kept() == len(h.ring) {
		h.grow()
	}
	*h.at(h.head) = e
	h.head++
	h.bytes += n
	if e.hole {
		h.holes++
	}
}

// pass takes the oldest entry out of the window.
func (h *history) pass() {
	e := h.at(h.from)
	n := e.charge()
	h.bytes -= n
	h.old += n
	if e.hole {
		h.holes--
	}
	h.from++
}

// drop lets go of the oldest entry.
func (h *history) drop() {
	if h.tail == h.from {
		h.pass()
	}
	e := h.at(h.tail)
	h.old -= e.charge()
	*e = entry{}
	h.tail++
}

// trim lets go of what is past the window and before index need.
func (h *history) trim(need uint64) {
	for h.tail < min(h.from, need) {
		h.drop()
	}
}

// reach is how many entries of the present sizes the limits of lag let it keep.
func (h *history) reach() uint64 {
	n := uint64(h.lag.entries)
	if all := h.old + h.bytes; all > 0 {
		n = min(n, uint64(float64(h.lag.bytes)/float64(all)*float64(h.kept())))
	}
	return n
}

func (h *history) grow() {
	ring := make([]entry, min(max(2*len(h.ring), 64), h.lag.entries))
	for i := h.tail; i < h.head; i++ {
		ring[i%uint64(len(ring))] = *h.at(i)
	}
	h.ring = ring
}

// reset forgets everything and begins an epoch; indices go on.
func (h *history) reset() {
	for h.kept() > 0 {
		h.drop()
	}
	h.ring, h.page = nil, nil
	h.first = h.head
}

// whole reports whether everything of this epoch is there, from number 0 and
// without holes.
func (h *history) whole() bool {
	return h.from == h.first && h.holes == 0 && h.len() > 0 && h.at(h.from).from == 0
}

// find returns the index of the window's entry that takes in number seq.
func (h *history) find(seq uint64) (uint64, bool) {
	i := h.from + uint64(sort.Search(h.len(), func(i int) bool { return h.at(h.from+uint64(i)).to >= seq }))
	return i, i < h.head && h.at(i).from <= seq
}

// after returns the index of the window's first entry past number seq.
func (h *history) after(seq uint64) uint64 {
	return h.from + uint64(sort.Search(h.len(), func(i int) bool { return h.at(h.from+uint64(i)).from > seq }))
}
