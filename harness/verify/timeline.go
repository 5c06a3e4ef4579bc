// SPDX-License-Identifier: Apache-2.0

// Before: a recording's lines. After: the replica and the rules (credit.go).

package verify

import (
	"bytes"
	"slices"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// A batch is one message of a rank's event socket, in the publisher's order.
type batch struct {
	life    int    // 0, 1, ...: lives of the publisher
	seq     uint64 //
	payload []byte
	line    int     // where it was received; 0: before the recording, known from replay
	ts      float64 // the engine's own time, seconds
	events  []kv.Event
	bad     error // it does not decode
}

// An item is one event of a rank, or the end of one life of its publisher.
type item struct {
	ev    *kv.Event // nil: a new life begins, everything of the old one is gone
	batch int       // index into timeline.batches
}

// timeline is everything one rank published, as far as the recording knows.
type timeline struct {
	rank    int
	batches []batch
	items   []item
	ends    []int // per batch: items up to and including it
	starts  []int // lines after which the publisher was another one, from ctl lines
}

// buildTimeline puts the recorded messages of rank in the publisher's order:
// live ones as received, duplicates once, and what only a replay shows in its place.
func buildTimeline(f *record.File, rank int) *timeline {
	tl := &timeline{rank: rank}
	restarted := false
	for i := range f.Lines {
		l := &f.Lines[i]
		switch {
		case l.Ctl != nil && l.Ctl.Op == "engine_start":
			tl.starts = append(tl.starts, l.N)
			restarted = true
		case l.Msg != nil:
			if r, ok := record.PubRank(l.Msg.Src); !ok || r != rank {
				continue
			}
			if _, payload, seq, err := wire.ParseMessage(l.Msg.Frames); err == nil {
				tl.live(batch{seq: seq, payload: payload, line: l.N}, restarted)
				restarted = false
			}
		}
	}
	for i := range f.Lines {
		if r := f.Lines[i].Replay; r != nil {
			if n, ok := record.ReplayRank(r.Src); ok && n == rank {
				tl.replayed(f.Lines[i].N, r)
			}
		}
	}
	tl.decode()
	return tl
}

// live appends one message of the live socket.
func (tl *timeline) live(b batch, restarted bool) {
	n := len(tl.batches)
	if n == 0 {
		tl.batches = append(tl.batches, b)
		return
	}
	last := &tl.batches[n-1]
	b.life = last.life
	if !restarted && b.seq <= last.seq {
		for i := range slices.Backward(tl.batches) {
			if tl.batches[i].life != last.life {
				break
			}
			if tl.batches[i].seq == b.seq && bytes.Equal(tl.batches[i].payload, b.payload) {
				return // a duplicate
			}
		}
		restarted = true
	}
	if restarted {
		b.life++
	}
	tl.batches = append(tl.batches, b)
}

// replayed inserts those batches of an answer that never came live. An answer
// recorded at a line is of the life that published last before it.
func (tl *timeline) replayed(line int, r *record.Replay) {
	life := 0
	for i := range tl.batches {
		if tl.batches[i].line <= line {
			life = tl.batches[i].life
		}
	}
	for _, frames := range r.Messages {
		payload, seq, end, err := wire.ParseReplay(frames)
		if err != nil || end {
			continue
		}
		at := len(tl.batches)
		known := false
		for i := range tl.batches {
			b := &tl.batches[i]
			if b.life > life || b.life == life && b.seq >= seq {
				at, known = i, b.life == life && b.seq == seq
				break
			}
		}
		if known {
			continue
		}
		// A stream asks for what is missing as soon as it sees the gap: on
		// joining, or when the message behind it arrives.
		got := line
		if at < len(tl.batches) && tl.batches[at].life == life {
			got = tl.batches[at].line
			if at == 0 {
				got = 0
			}
		}
		tl.batches = slices.Insert(tl.batches, at, batch{life: life, seq: seq, payload: payload, line: got})
	}
}

// decode reads all payloads and lays out the items.
func (tl *timeline) decode() {
	var dec wire.Decoder
	var kb kv.Batch
	life := 0
	for i := range tl.batches {
		b := &tl.batches[i]
		if b.bad = dec.Decode(b.payload, &kb); b.bad == nil {
			b.ts = kb.Timestamp
			b.events = make([]kv.Event, len(kb.Events))
			for j := range kb.Events {
				b.events[j] = cloneEvent(&kb.Events[j])
			}
		} else if i > 0 {
			b.ts = tl.batches[i-1].ts
		}
		if b.life != life {
			life = b.life
			tl.items = append(tl.items, item{batch: i})
		}
		for j := range b.events {
			tl.items = append(tl.items, item{&b.events[j], i})
		}
		tl.ends = append(tl.ends, len(tl.items))
	}
}

// at returns how many items had been received before line.
func (tl *timeline) at(line int) int {
	n := 0
	for i := range tl.batches {
		if tl.batches[i].line >= line {
			break
		}
		n = tl.ends[i]
	}
	return n
}

// published returns how many items the engine had published by t, of its own
// clock, which is the recorder's.
func (tl *timeline) published(t float64) int {
	n := 0
	for i := range tl.batches {
		if tl.batches[i].ts > t {
			break
		}
		n = tl.ends[i]
	}
	return n
}

// lifeAt returns the publisher's life at a line: the one of the last message
// before it, or the next when the engine was started again since.
func (tl *timeline) lifeAt(line int) int {
	life, last := 0, 0
	for i := range tl.batches {
		if tl.batches[i].line >= line {
			break
		}
		life, last = tl.batches[i].life, tl.batches[i].line
	}
	for _, s := range tl.starts {
		if s > last && s < line {
			life++
		}
	}
	return life
}

// cloneEvent copies e out of the decoder's buffers.
func cloneEvent(e *kv.Event) kv.Event {
	c := *e
	c.Hashes = slices.Clone(e.Hashes)
	c.Tokens = slices.Clone(e.Tokens)
	c.Second = slices.Clone(e.Second)
	c.Digests = slices.Clone(e.Digests)
	if e.Extra != nil {
		c.Extra = make([][]kv.ExtraKey, len(e.Extra))
		for i := range e.Extra {
			c.Extra[i] = slices.Clone(e.Extra[i])
		}
	}
	if e.Lookahead != nil {
		c.Lookahead = make([][]uint32, len(e.Lookahead))
		for i := range e.Lookahead {
			c.Lookahead[i] = slices.Clone(e.Lookahead[i])
		}
	}
	return c
}
