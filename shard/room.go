// SPDX-License-Identifier: Apache-2.0

package shard

import "kindex/internal/kv"

// orphan is a store that waits for an engine hash: its parent, or for a
// placeholder the block itself.
type orphan struct {
	waitsFor kv.EngineHash
	store    Store
	out      []bool // blocks taken out by a removal; nil while none was
	bytes    uint64
	gone     bool // left the room; still in its order list
	bare     bool // its tokens are gone: it cannot be hashed again
}

func (o *orphan) isOut(i int) bool { return o.out != nil && o.out[i] }

// blocks counts o's waiting blocks.
func (o *orphan) blocks() uint64 {
	n := uint64(len(o.store.Engines))
	for _, out := range o.out {
		if out {
			n--
		}
	}
	return n
}

// room is where one holder's orphans wait, bounded by the index's options.
type room struct {
	waits  map[kv.EngineHash][]*orphan // by what they wait for, in order of arrival
	named  map[kv.EngineHash][]*orphan // by the blocks they name, in order of arrival
	order  []*orphan                   // all, in order of arrival; gone ones are skipped
	live   int                         // orphans in the room
	blocks uint64
	bytes  uint64
}

// wait puts o into h's room and drops the oldest past the bounds.
func (h *holder) wait(opts *Options, o *orphan) {
	if o.blocks() > opts.MaxOrphanBlocks || o.bytes > opts.MaxOrphanBytes {
		h.stats.OrphansDropped += o.blocks()
		return
	}
	r := &h.room
	if r.waits == nil {
		r.waits = map[kv.EngineHash][]*orphan{}
		r.named = map[kv.EngineHash][]*orphan{}
	}
	r.live++
	r.waits[o.waitsFor] = append(r.waits[o.waitsFor], o)
	for _, e := range o.store.Engines {
		if list := r.named[e]; len(list) == 0 || list[len(list)-1] != o {
			r.named[e] = append(list, o)
		}
	}
	r.order = append(r.order, o)
	r.blocks += o.blocks()
	r.bytes += o.bytes
	for r.blocks > opts.MaxOrphanBlocks || r.bytes > opts.MaxOrphanBytes {
		h.stats.OrphansDropped += r.dropOldest()
	}
}

// dropOldest takes the oldest orphan out and returns how many blocks waited.
func (r *room) dropOldest() uint64 {
	for r.order[0].gone {
		r.order = r.order[1:]
	}
	o := r.order[0]
	r.leave(o)
	return o.blocks()
}

// leave takes o out of the room.
func (r *room) leave(o *orphan) {
	o.gone = true
	r.live--
	r.blocks -= o.blocks()
	r.bytes -= o.bytes
	without(r.waits, o.waitsFor, o)
	for _, e := range o.store.Engines {
		without(r.named, e, o)
	}
	switch {
	case r.live == 0:
		*r = room{}
	case len(r.order) > 2*r.live+16:
		r.compact()
	}
}

// compact drops the gone from the order list.
func (r *room) compact() {
	kept := make([]*orphan, 0, len(r.order)/2)
	for _, o := range r.order {
		if !o.gone {
			kept = append(kept, o)
		}
	}
	r.order = kept
}

func without(m map[kv.EngineHash][]*orphan, e kv.EngineHash, o *orphan) {
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

// take takes those that wait for e out of the room and returns them in the
// order they came.
func (r *room) take(e kv.EngineHash) []*orphan {
	list := r.waits[e]
	delete(r.waits, e)
	for _, o := range list {
		r.leave(o)
	}
	return list
}

// holdsBlock reports whether a block named e, not merely a placeholder of it,
// waits.
func (r *room) holdsBlock(e kv.EngineHash) bool {
	for _, o := range r.named[e] {
		if o.store.placeholder() {
			continue
		}
		for i, w := range o.store.Engines {
			if w == e && !o.isOut(i) {
				return true
			}
		}
	}
	return false
}

// takeOut takes the oldest waiting copy of e in that place out of the room.
func (r *room) takeOut(t kv.Tier, group uint8, e kv.EngineHash) bool {
	for _, o := range r.named[e] {
		if o.store.Tier != t || o.store.Group != group {
			continue
		}
		for i, w := range o.store.Engines {
			if w != e || o.isOut(i) {
				continue
			}
			if o.blocks() == 1 {
				r.leave(o)
				return true
			}
			if o.out == nil {
				o.out = make([]bool, len(o.store.Engines))
			}
			o.out[i] = true
			r.blocks--
			return true
		}
	}
	return false
}
