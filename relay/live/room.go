// SPDX-License-Identifier: Apache-2.0

// Before: store.go (stores whose parent is not there). After: store.go, once it is.

package live

import (
	"slices"
	"strings"

	"kindex/internal/kv"
)

// orphan is a store that waits for an engine hash: its parent, or for a
// placeholder the block itself. It shares nothing with the batch it came in.
type orphan struct {
	told
	waitsFor uint64
	out      []bool // blocks taken out by a removal; nil while none was
	bytes    uint64
	gone     bool // left the room; still in its order list
}

// orphanBytes is the fixed cost of one waiting store: chosen, not measured.
const orphanBytes = 256

func newOrphan(t *told, waitsFor uint64) *orphan {
	o := &orphan{told: *t, waitsFor: waitsFor}
	o.engines, o.contents = slices.Clone(t.engines), slices.Clone(t.contents)
	o.blocks.Tokens = slices.Clone(t.blocks.Tokens)
	n := orphanBytes + 9*len(o.engines) + 8*len(o.contents) + 4*len(o.blocks.Tokens)
	if t.blocks.Extra != nil {
		o.blocks.Extra = make([][]byte, len(t.blocks.Extra))
		for i, x := range t.blocks.Extra {
			o.blocks.Extra[i] = slices.Clone(x)
			n += 24 + len(x)
		}
	}
	if t.keys != nil {
		o.keys = make([][]kv.ExtraKey, len(t.keys))
		for i, keys := range t.keys {
			o.keys[i] = slices.Clone(keys)
			for k := range keys {
				o.keys[i][k].ID = strings.Clone(keys[k].ID)
				n += 40 + len(keys[k].ID)
			}
		}
	}
	o.bytes = uint64(n + o.attr.text())
	return o
}

func (o *orphan) placeholder() bool { return len(o.contents) == 0 }

// waits counts o's waiting blocks.
func (o *orphan) waits() uint64 {
	n := uint64(len(o.engines))
	for _, out := range o.out {
		if out {
			n--
		}
	}
	return n
}

// room is where orphans wait, bounded by the options.
type room struct {
	waits  map[uint64][]*orphan // by what they wait for, in order of arrival
	named  map[uint64][]*orphan // by the blocks they name, in order of arrival
	order  []*orphan            // all, in order of arrival; gone ones are skipped
	live   int                  // orphans in the room
	blocks uint64
	bytes  uint64
}

// wait puts o into the room and drops the oldest past the bounds.
func (s *State) wait(o *orphan) {
	r, n := &s.room, o.waits()
	if n > s.opts.MaxOrphanBlocks || o.bytes > s.opts.MaxOrphanBytes {
		s.stats.OrphansDropped += n
		return
	}
	if r.waits == nil {
		r.waits, r.named = map[uint64][]*orphan{}, map[uint64][]*orphan{}
	}
	r.live++
	r.waits[o.waitsFor] = append(r.waits[o.waitsFor], o)
	for _, e := range o.engines {
		e := uint64(e)
		if list := r.named[e]; len(list) == 0 || list[len(list)-1] != o {
			r.named[e] = append(list, o)
		}
	}
	r.order = append(r.order, o)
	r.blocks += n
	r.bytes += o.bytes
	for r.blocks > s.opts.MaxOrphanBlocks || r.bytes > s.opts.MaxOrphanBytes {
		s.stats.OrphansDropped += r.dropOldest()
	}
}

// dropOldest takes the oldest orphan out and returns how many blocks waited.
func (r *room) dropOldest() uint64 {
	for r.order[0].gone {
		r.order = r.order[1:]
	}
	o := r.order[0]
	r.leave(o)
	return o.waits()
}

// leave takes o out of the room.
func (r *room) leave(o *orphan) {
	o.gone = true
	r.live--
	r.blocks -= o.waits()
	r.bytes -= o.bytes
	without(r.waits, o.waitsFor, o)
	for _, e := range o.engines {
		without(r.named, uint64(e), o)
	}
	switch {
	case r.live == 0:
		*r = room{}
	case len(r.order) > 2*r.live+16:
		r.order = slices.DeleteFunc(slices.Clone(r.order), func(o *orphan) bool { return o.gone })
	}
}

func without(m map[uint64][]*orphan, e uint64, o *orphan) {
	list := m[e]
	for i, x := range list {
		if x == o {
			if i == 0 { // the oldest, nearly always
				list = list[1:]
			} else {
				list = append(list[:i:i], list[i+1:]...)
			}
			break
		}
	}
	if len(list) == 0 {
		delete(m, e)
	} else {
		m[e] = list
	}
}

// take takes those that wait for e out of the room and returns them in the order
// they came.
func (r *room) take(e uint64) []*orphan {
	list := r.waits[e]
	delete(r.waits, e)
	for _, o := range list {
		r.leave(o)
	}
	return list
}

// holdsBlock reports whether a block named e, not merely a placeholder of it,
// waits.
func (r *room) holdsBlock(e uint64) bool {
	for _, o := range r.named[e] {
		if o.placeholder() {
			continue
		}
		for i, w := range o.engines {
			if uint64(w) == e && !isOut(o.out, i) {
				return true
			}
		}
	}
	return false
}

// takeOut takes the oldest waiting copy of e in that place out of the room.
func (r *room) takeOut(at place, e uint64) bool {
	for _, o := range r.named[e] {
		if o.attr.place != at {
			continue
		}
		for i, w := range o.engines {
			if uint64(w) != e || isOut(o.out, i) {
				continue
			}
			if o.waits() == 1 {
				r.leave(o)
				return true
			}
			if o.out == nil {
				o.out = make([]bool, len(o.engines))
			}
			o.out[i] = true
			r.blocks--
			return true
		}
	}
	return false
}
