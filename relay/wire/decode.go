// SPDX-License-Identifier: Apache-2.0

package wire

// Before this file: a payload from frames.go. After it: the stream's
// normalisation, which decides what of the events counts.

import (
	"math"

	"kindex/internal/kv"
)

// MaxPayload is the longest payload that is looked at, in bytes. A prompt of a
// million tokens makes about 5 MB.
const MaxPayload = 64 << 20

// What a batch keeps for the next use, in elements: past these the memory is
// let go, so that one huge payload is not paid for until the process ends.
const (
	keepEvents = 1 << 10
	keepHashes = 1 << 14
	keepTokens = 1 << 17
)

// Decoder turns payloads into batches. The zero value is ready.
//
// Concurrency: one goroutine at a time; decoders share nothing.
type Decoder struct {
	r     reader
	b     *kv.Batch
	names interner
	last  [numFields]string // the word last seen in a field
	after [numFields]Field  // the field last seen behind a field
	drops Drops
	now   Drops // of the payload being read
}

// Drops returns how many events were left out of batches that decoded, since
// the decoder began.
func (d *Decoder) Drops() Drops { return d.drops }

// Decode reads one payload into b, replacing all that was in it.
//
// On success b holds the batch's events in the payload's order, less those that
// could not be read, which [Decoder.Drops] counts. The events' slices are valid
// until b is given to a Decode again; Digests alias payload, which must not
// change before.
//
// Errors: [ErrMalformed] when payload is not one msgpack batch from its first
// byte to its last. Then b has no events and nothing is counted.
// Cost: no allocation once b and the decoder have seen batches as large and
// the names in them; never more than 100 bytes per payload byte, which only a
// payload made for it reaches.
func (d *Decoder) Decode(payload []byte, b *kv.Batch) error {
	reset(b)
	if len(payload) > MaxPayload {
		return malformed("a payload of %d bytes, where %d is the most", len(payload), MaxPayload)
	}
	d.r, d.b, d.now = reader{buf: payload}, b, Drops{}
	err := d.batch()
	d.r, d.b = reader{}, nil
	if err != nil {
		reset(b)
		return err
	}
	for i, n := range d.now {
		d.drops[i] += n
	}
	return nil
}

// batch reads [timestamp, events, rank, ...].
func (d *Decoder) batch() error {
	r, b := &d.r, d.b
	n, ok := r.array()
	if !ok || n < 2 {
		return r.or("a batch must be an array of 2 or more, not %d", n)
	}
	if b.Timestamp, ok = r.number(); !ok {
		return r.or("a batch's timestamp must be a number")
	}
	if math.IsNaN(b.Timestamp) || math.IsInf(b.Timestamp, 0) {
		b.Timestamp = 0
	}
	events, ok := r.array()
	if !ok {
		return r.or("a batch's events must be an array")
	}
	for i := range events {
		b.Events = room(b.Events, min(events-i, r.left()/leastEvent))
		if !d.event() {
			return r.err
		}
	}
	if n > 2 && !r.null() {
		rank, ok := r.int64()
		if !ok || rank < 0 || rank > math.MaxInt32 {
			return r.or("a batch's rank must be nil or an integer from 0 to %d", math.MaxInt32)
		}
		b.Rank, b.HasRank = int(rank), true
	}
	for range n - 3 {
		if !r.skip() {
			return r.err
		}
	}
	if r.left() > 0 {
		return malformed("%d bytes after the batch", r.left())
	}
	return nil
}

// or returns the reader's own error if it has one, else a new one.
func (r *reader) or(format string, args ...any) error {
	if r.err != nil {
		return r.err
	}
	return malformed(format, args...)
}

// reset empties b and keeps its memory, within limits.
func reset(b *kv.Batch) {
	s := b.Storage
	s.Hashes = recycle(s.Hashes, keepHashes)
	s.Tokens = recycle(s.Tokens, keepTokens)
	s.Digests = recycle(s.Digests, keepHashes)
	s.Keys = recycle(s.Keys, keepHashes)
	s.KeyLists = recycle(s.KeyLists, keepHashes)
	s.TokenLists = recycle(s.TokenLists, keepHashes)
	*b = kv.Batch{Events: recycle(b.Events, keepEvents), Storage: s}
}

func recycle[T any](s []T, most int) []T {
	if cap(s) > most {
		return nil
	}
	return s[:0]
}

// carve returns n elements cut from slab, and a new slab when they do not fit:
// what was cut before stays in the old one. The elements hold whatever an
// earlier batch left there.
func carve[T any](slab *[]T, n int) []T {
	const least = 64
	s := *slab
	at := len(s)
	if cap(s)-at < n {
		s, at = make([]T, 0, max(n, 2*cap(s), least)), 0
	}
	if n == 0 {
		return []T{}
	}
	*slab = s[:at+n]
	return s[at : at+n : at+n]
}

// leastEvent is the length of the shortest event that is kept, in bytes: a
// removal of nothing.
const leastEvent = len("\x92\xacBlockRemoved\x90")

// room returns events with room for one more: doubled, but for no more than
// the most that can still come.
func room(events []kv.Event, most int) []kv.Event {
	if n := len(events); n == cap(events) {
		events = append(make([]kv.Event, 0, n+max(1, min(max(n, 4), most))), events...)
	}
	return events
}

// event reads one event and keeps it, or counts why not and steps over it as a
// whole. It returns false when the payload itself is broken.
func (d *Decoder) event() bool {
	at := d.r.pos
	b := d.b
	kept := len(b.Events)
	b.Events = append(b.Events, kv.Event{})
	reason, ok := d.fields(&b.Events[kept])
	if ok {
		return true
	}
	b.Events = b.Events[:kept]
	if d.r.err != nil {
		return false
	}
	d.now[reason]++
	d.r.pos = at
	return d.r.skip()
}

// fields reads one event in either form. On success the cursor is behind it.
func (d *Decoder) fields(e *kv.Event) (Reason, bool) {
	r := &d.r
	if r.pos >= len(r.buf) {
		r.next()
		return BadEvent, false
	}
	c := r.buf[r.pos]
	switch {
	case c&0xf0 == fixArray, c == array16, c == array32:
		return d.list(e)
	case c&0xf0 == fixMap, c == map16, c == map32:
		return d.object(e)
	}
	return BadEvent, false
}

// list reads [tag, field, field, ...]: fields by position, the last ones left
// out at will, unknown ones after them skipped.
func (d *Decoder) list(e *kv.Event) (Reason, bool) {
	r := &d.r
	n, ok := r.array()
	if !ok || n == 0 {
		return BadEvent, false
	}
	tag, ok := r.text()
	if !ok {
		return BadEvent, false
	}
	if e.Kind, ok = kindOf(tag); !ok {
		return UnknownEvent, false
	}
	e.ArrayItems = n
	var seen fieldSet
	order := positions[e.Kind]
	for i := range n - 1 {
		if i >= len(order) {
			if !r.skip() {
				return BadEvent, false
			}
			continue
		}
		if reason, ok := d.field(e, order[i]); !ok {
			return reason, false
		}
		seen |= 1 << order[i]
	}
	return d.whole(e, seen)
}

// object reads {"type": tag, name: value, ...}, keys in any order.
func (d *Decoder) object(e *kv.Event) (Reason, bool) {
	r := &d.r
	n, ok := r.object()
	if !ok {
		return BadEvent, false
	}
	begin := r.pos
	tag, ok := d.tag(n)
	if !ok {
		return BadEvent, false
	}
	if e.Kind, ok = kindOf(tag); !ok {
		return UnknownEvent, false
	}
	r.pos = begin
	var seen fieldSet
	known, f := accepts[e.Kind], fieldNone
	for range n {
		f = d.key(f)
		if known&(1<<f) == 0 {
			if !r.skip() {
				return BadEvent, false
			}
			continue
		}
		if reason, ok := d.field(e, f); !ok {
			return reason, false
		}
		seen |= 1 << f
	}
	return d.whole(e, seen)
}

// tag finds the value of "type" among n pairs. It is the first in every release.
func (d *Decoder) tag(n int) ([]byte, bool) {
	r, f := &d.r, fieldNone
	for range n {
		if f = d.key(f); f == fieldType {
			return r.text()
		}
		if !r.skip() {
			return nil, false
		}
	}
	return nil, false
}

// key reads a map's key; one that is no field of ours is fieldNone, whatever
// its type. prev is the key before it: most often the same one follows as last
// time, which is then a comparison and no search.
func (d *Decoder) key(prev Field) Field {
	r := &d.r
	if guess := keys[d.after[prev]]; guess != "" && len(guess) <= r.left() &&
		string(r.buf[r.pos:r.pos+len(guess)]) == guess {
		r.pos += len(guess)
		return d.after[prev]
	}
	if r.pos < len(r.buf) {
		if c := r.buf[r.pos]; c&0xe0 == fixStr || (c >= str8 && c < array16) {
			name, ok := r.text()
			if !ok {
				return fieldNone
			}
			d.after[prev] = fieldOf(name)
			return d.after[prev]
		}
	}
	r.skip()
	return fieldNone
}

// keys holds each field's name as a whole msgpack string.
var keys = func() (t [numFields]string) {
	for f := fieldType; f < numFields; f++ {
		t[f] = string(appendText(nil, f.String()))
	}
	return t
}()

// whole checks what the fields must be together.
func (d *Decoder) whole(e *kv.Event, seen fieldSet) (Reason, bool) {
	if need := required[e.Kind]; seen&need != need {
		return MissingField, false
	}
	if e.HasExtra && len(e.Extra) != len(e.Hashes) {
		return BadField, false
	}
	if e.Lookahead != nil && len(e.Lookahead) != len(e.Hashes) {
		return BadField, false
	}
	return 0, true
}

func kindOf(tag []byte) (kv.Kind, bool) {
	switch string(tag) {
	case "BlockStored":
		return kv.KindStored, true
	case "BlockRemoved":
		return kv.KindRemoved, true
	case "AllBlocksCleared":
		return kv.KindCleared, true
	}
	return 0, false
}
