// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"sync/atomic"
)

// errRing is what the other side wrote and cannot have written by the rules: its word
// counts nothing any more.
var errRing = errors.New("the ring holds what the rules do not allow")

// ring is one end of a ring: the producer's or the consumer's. Both only ever believe
// their own position; what the other one published is checked when it is read, once.
//
// Concurrency: one goroutine at a time.
type ring struct {
	data   []byte         // a power of two
	mine   *atomic.Uint64 // where this side has got to, for the other
	theirs *atomic.Uint64 // where the other has got to, whatever it says
	pos    uint64         // this side's own
	other  uint64         // theirs, as last checked
	mark   uint32         // see place
}

func align(n int) uint64 { return uint64(n+lineSize-1) &^ (lineSize - 1) }

// room returns how many bytes the producer may write, looking again where fewer than
// want were free.
func (r *ring) room(want int) (int, error) {
	free := uint64(len(r.data)) - (r.pos - r.other)
	if free >= uint64(want) {
		return int(free), nil
	}
	head := r.theirs.Load()
	if head-r.other > r.pos-r.other || head%lineSize != 0 {
		return 0, errRing
	}
	r.other = head
	return len(r.data) - int(r.pos-head), nil
}

// write appends a record whose payload is a followed by b. The producer has seen that
// there is room; nobody sees it before publish.
func (r *ring) write(h *header, a, b []byte) {
	h.put32(recPlace, place(r.mark, r.pos))
	r.put(r.pos, h[:])
	r.put(r.pos+lineSize, a)
	r.put(r.pos+lineSize+uint64(len(a)), b)
	r.pos += align(lineSize + len(a) + len(b))
}

// put copies b to position pos, around the ring's end.
func (r *ring) put(pos uint64, b []byte) {
	at := int(pos & uint64(len(r.data)-1))
	n := copy(r.data[at:], b)
	copy(r.data, b[n:])
}

// publish shows the other side where this one has got to. Full barrier.
func (r *ring) publish() { r.mine.Store(r.pos) }

// ready reports whether there is something to read.
func (r *ring) ready() (bool, error) {
	if r.pos != r.other {
		return true, nil
	}
	tail := r.theirs.Load()
	if tail == r.pos {
		return false, nil
	}
	if tail-r.pos > uint64(len(r.data)) || tail%lineSize != 0 {
		return false, errRing
	}
	r.other = tail
	return true, nil
}

// moved reports whether the other side has published something since, right or wrong.
func (r *ring) moved() bool { return r.pos != r.other || r.theirs.Load() != r.pos }

// next copies the next record's header out and returns the length of its payload,
// which is all there and at most most.
func (r *ring) next(h *header, most int) (int, error) {
	at := int(r.pos & uint64(len(r.data)-1)) // lines never wrap
	copy(h[:], r.data[at:at+lineSize])
	n := h.u32(recPayload)
	if n > uint32(most) || align(lineSize+int(n)) > r.other-r.pos || h.u32(recPlace) != place(r.mark, r.pos) || h.u64(recID) == 0 {
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
