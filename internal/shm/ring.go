// SPDX-License-Identifier: Apache-2.0

// Before: one side, with a record. After: the other, which finds it in the same memory.

package shm

import (
	"errors"
	"sync/atomic"
)

// errRing is what the other side wrote and cannot have written by the rules: its word
// counts nothing any more.
var errRing = errors.New("the ring holds what the rules do not allow")

// ring is one end of a ring: the producer's or the consumer's. A record is there when
// its header says the place where it lies, which is written last; so whoever waits for
// one looks at the line that it reads next anyway. Both sides only ever believe their
// own position, and check what the other says when it is read, once.
//
// Concurrency: one goroutine at a time, but for moved.
type ring struct {
	data  []byte         // a power of two
	head  *atomic.Uint64 // what the consumer has taken: it writes, the producer reads
	pos   uint64         // this side's own
	other uint64         // of the producer: head, as last checked
	shown uint64         // of the consumer: head, as last written
	mark  uint32         // see place; not 0
	wrote bool           // of the producer: since somebody asked
	last  int            // of the producer: what the last record took
}

func align(n int) uint64 { return uint64(n+lineSize-1) &^ (lineSize - 1) }

// taken returns what a record of so much payload takes of the room: its lines, and the
// first line of the next record, which has to say that it is not there.
func taken(payload int) int { return int(align(lineSize+payload)) + lineSize }

// place returns the word of the record at pos that says whether it is there.
func (r *ring) place(pos uint64) *atomic.Uint32 {
	return wordOf(r.data, int(pos&uint64(len(r.data)-1))+recPlace)
}

// room returns how many bytes the producer may write, looking again where fewer than
// want were free.
func (r *ring) room(want int) (int, error) {
	free := uint64(len(r.data)) - (r.pos - r.other)
	if free >= uint64(want) {
		return int(free), nil
	}
	head := r.head.Load()
	if head-r.other > r.pos-r.other || head%lineSize != 0 {
		return 0, errRing
	}
	r.other = head
	return len(r.data) - int(r.pos-head), nil
}

// write appends a record whose payload is a followed by b, and shows it. The producer
// has seen that there is room for what it takes. Full barrier.
func (r *ring) write(h *header, a, b []byte) {
	next := r.pos + align(lineSize+len(a)+len(b))
	plainStore(r.place(next), ^place(r.mark, next)) // seen before this record is
	at := int(r.pos & uint64(len(r.data)-1))        // lines never wrap
	copy(r.data[at:], h[:recPlace])
	r.put(r.pos+lineSize, a)
	r.put(r.pos+lineSize+uint64(len(a)), b)
	r.place(r.pos).Store(place(r.mark, r.pos))
	r.last, r.pos, r.wrote = int(next-r.pos)+lineSize, next, true
}

// ownMost bounds how many lines are asked for ahead. Chosen, not measured.
const ownMost = 16

// ahead asks for the lines that a next record like the last would be written to, which
// the other side has read since: they come while this side does something else.
func (r *ring) ahead() {
	at := int(r.pos & uint64(len(r.data)-1))
	own(pointerTo(r.data, at), min(r.last, len(r.data)-at, ownMost*lineSize)/lineSize)
}

// put copies b to position pos, around the ring's end.
func (r *ring) put(pos uint64, b []byte) {
	at := int(pos & uint64(len(r.data)-1))
	n := copy(r.data[at:], b)
	copy(r.data, b[n:])
}

// ready reports whether there is a record to read, right or wrong.
func (r *ring) ready() bool { return r.place(r.pos).Load() == place(r.mark, r.pos) }

// moved is ready for those who look without being the consumer, by what it has shown
// of its position: while it reads it may be true for what is read already.
func (r *ring) moved() bool {
	pos := r.head.Load() &^ (lineSize - 1)
	return r.place(pos).Load() == place(r.mark, pos)
}

// next copies the next record's header out, which is there, and returns the length of
// its payload, at most most. It reads it once: what the other side writes over it
// meanwhile is told apart, or is as good as anything it could have written before.
func (r *ring) next(h *header, most int) (int, error) {
	at := int(r.pos & uint64(len(r.data)-1)) // lines never wrap
	copy(h[:], r.data[at:at+lineSize])
	n := h.u32(recPayload)
	if n > uint32(most) || h.u32(recPlace) != place(r.mark, r.pos) || h.u64(recID) == 0 {
		return 0, errRing
	}
	return int(n), nil
}

// payload copies bytes of the next record's payload, from off on, into dst.
func (r *ring) payload(off int, dst []byte) {
	at := int((r.pos + lineSize + uint64(off)) & uint64(len(r.data)-1))
	n := copy(dst, r.data[at:])
	copy(dst[n:], r.data)
}

// skip goes past the next record, whose payload has n bytes.
func (r *ring) skip(n int) { r.pos += align(lineSize + n) }

// free shows the producer what has been taken. Full barrier, where there is something.
func (r *ring) free() {
	if r.shown != r.pos {
		r.shown = r.pos
		r.head.Store(r.pos)
	}
}
