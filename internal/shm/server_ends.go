// SPDX-License-Identifier: Apache-2.0

// Before: one client's rings of one shard. After: the shard's thread, with copies
// that nobody else can change.

package shm

import (
	"sync/atomic"

	"kindex/internal/kv"
)

// ends are the server's ends of one client's rings of one shard, and what is under
// way there. All but broken is the thread's.
type ends struct {
	client *peer
	words  words
	in     ring // requests
	out    ring // replies

	most    int // payload of one record, in each ring
	mostOut int

	broken atomic.Bool

	// The request whose pieces are coming in; id 0: none.
	part    assembly
	pending []byte // replies that had no room: whole records, header and payload, padded
	sent    int    // of pending, bytes that have gone
}

// newEnds returns the server's ends in shard i's part of m.
func newEnds(p *peer, m *memory, l Layout, i int, mark uint32) *ends {
	w := m.words(l, i)
	in, out := m.rings(l, i)
	return &ends{
		client: p, words: w, most: chunk(len(in)), mostOut: chunk(len(out)),
		in:  ring{data: in, head: w.requestHead, mark: mark},
		out: ring{data: out, head: w.replyHead, mark: mark},
	}
}

// assembly is a request of several records.
type assembly struct {
	head    header
	id      uint64
	payload int // bytes of all records
	got     int // of them, so far
	next    uint32
	hashes  []kv.ContentHash
	holders []uint32
}

// stuck reports whether replies wait for room. Meanwhile nothing more is read: a
// client that takes no replies gets none.
func (e *ends) stuck() bool { return len(e.pending) > 0 }

// fail ends the client: it broke the rules.
func (e *ends) fail(err error) {
	if e.broken.Swap(true) {
		return
	}
	e.client.fail(err)
}

// shape returns what the header says of the whole payload, having checked that it can
// be.
func shape(h *header) (hashes, holders int, ok bool) {
	nh, no := h.u32(recHashes), h.u32(recHolders)
	if nh > MaxBlocks || no > MaxHolders || no > 0 && h.u32(recFlags)&flagFiltered == 0 {
		return 0, 0, false
	}
	return int(nh), int(no), true
}

// read copies the next record out, into the thread's buffers where it is a whole
// request. It returns true where r is one now.
func (e *ends) read(t *thread, r *Request) (bool, error) {
	var h header
	n, err := e.in.next(&h, e.most)
	if err != nil {
		return false, err
	}
	hashes, holders, ok := shape(&h)
	i, of := h.records()
	whole := hashes*hashSize + holders*holderSize
	if !ok || of == 0 || i >= of || of != uint32(records(whole, e.most)) || i+1 < of && n != e.most {
		return false, errRing
	}
	if of == 1 {
		if n != whole {
			return false, errRing
		}
		t.begin(r, &h, e)
		t.hashes = grow(t.hashes, hashes)
		t.holders = grow(t.holders, holders)
		r.hashes.to, r.only.to = len(t.hashes), len(t.holders)
		e.in.payload(0, hashBytes(t.hashes[r.hashes.from:]))
		e.in.payload(hashes*hashSize, holderBytes(t.holders[r.only.from:]))
		e.in.skip(n)
		return true, nil
	}
	return e.assemble(t, r, &h, n, hashes, holders)
}

// assemble takes a record of a long request.
func (e *ends) assemble(t *thread, r *Request, h *header, n, hashes, holders int) (bool, error) {
	p := &e.part
	i, of := h.records()
	if i == 0 { // whatever was under way was given up
		*p = assembly{head: *h, id: h.u64(recID), payload: hashes*hashSize + holders*holderSize, hashes: p.hashes[:0], holders: p.holders[:0]}
		p.hashes, p.holders = grow(p.hashes, hashes), grow(p.holders, holders)
	}
	ph, po, _ := shape(&p.head)
	if p.id != h.u64(recID) || p.next != i || ph != hashes || po != holders || p.got+n > p.payload {
		return false, errRing
	}
	// A record may end with hashes and go on with holders.
	hb, ob := hashBytes(p.hashes), holderBytes(p.holders)
	if at := p.got; at < len(hb) {
		e.in.payload(0, hb[at:min(at+n, len(hb))])
	}
	if at := p.got + n - len(hb); at > 0 {
		from := max(p.got-len(hb), 0)
		e.in.payload(from+len(hb)-p.got, ob[from:at])
	}
	e.in.skip(n)
	e.in.free() // there is room for more of it
	e.client.ring()
	p.got += n
	p.next++
	if i+1 < of {
		return false, nil
	}
	if p.got != p.payload {
		return false, errRing
	}
	t.begin(r, &p.head, e)
	t.hashes, t.holders = append(t.hashes, p.hashes...), append(t.holders, p.holders...)
	r.hashes.to, r.only.to = len(t.hashes), len(t.holders)
	p.id = 0
	if cap(p.hashes) > keepBlocks {
		p.hashes = nil
	}
	if cap(p.holders) > keepBlocks {
		p.holders = nil
	}
	return true, nil
}

// begin makes r the request that h heads; its parts of the thread's buffers begin
// where those end now.
func (t *thread) begin(r *Request, h *header, e *ends) {
	r.id, r.client = h.u64(recID), e
	r.Model, r.Seed, r.deadline = h.u64(recModel), h.u64(recSeed), h.u64(recDeadline)
	r.Filtered = h.u32(recFlags)&flagFiltered != 0
	r.Limit = int(h.u32(recLimit))
	r.hashes, r.only = span{from: len(t.hashes)}, span{from: len(t.holders)}
}

// grow returns s longer by n elements of any value.
func grow[T any](s []T, n int) []T {
	for cap(s)-len(s) < n {
		s = append(s[:cap(s)], *new(T))[:len(s)]
	}
	return s[:len(s)+n]
}

// reply writes r's answer, or as much of it as there is room for: the rest waits.
func (e *ends) reply(r *Request) error {
	if e.broken.Load() {
		return nil
	}
	var h header
	h.put64(recID, r.id)
	h.put32(recMatches, uint32(len(r.Matches)))
	h.put32(recStatus, uint32(r.Status))
	h.put64(recVersion, r.Version)
	b := matchBytes(r.Matches)
	of := records(len(b), e.mostOut)
	for i := range of {
		piece := b[i*e.mostOut : min((i+1)*e.mostOut, len(b))]
		h.piece(i, of, len(piece))
		if e.stuck() {
			e.hold(&h, piece)
			continue
		}
		free, err := e.out.room(taken(len(piece)))
		if err != nil {
			return err
		}
		if free < taken(len(piece)) {
			e.hold(&h, piece)
			continue
		}
		e.out.write(&h, piece, nil)
	}
	return nil
}

// hold has a record wait for room.
func (e *ends) hold(h *header, payload []byte) {
	e.pending = append(append(e.pending, h[:]...), payload...)
	e.pending = append(e.pending, make([]byte, int(align(len(payload)))-len(payload))...)
}

// flush writes what waits and has room now.
func (e *ends) flush() error {
	for e.sent < len(e.pending) {
		var h header
		copy(h[:], e.pending[e.sent:])
		n := int(h.u32(recPayload))
		free, err := e.out.room(taken(n))
		if err != nil {
			return err
		}
		if free < taken(n) {
			break
		}
		e.out.write(&h, e.pending[e.sent+lineSize:e.sent+lineSize+n], nil)
		e.sent += lineSize + int(align(n))
	}
	if e.sent == len(e.pending) {
		e.pending, e.sent = nil, 0
	}
	e.publish()
	return nil
}

// publish shows the client what was taken of its requests, and wakes it where it
// sleeps and there are replies.
func (e *ends) publish() {
	e.in.free()
	if e.out.wrote {
		e.out.wrote = false
		e.client.ring()
		e.out.ahead()
	}
}
