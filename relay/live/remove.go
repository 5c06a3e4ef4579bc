// SPDX-License-Identifier: Apache-2.0

// Before: State.Apply (operations). After: Effects, and cut.go.

package live

import (
	"slices"

	"kindex/internal/kv"
	"kindex/relay/normal"
)

// remove takes one copy of each of op's blocks away.
func (s *State) remove(b *kv.Batch, op *normal.Op) {
	at := placeOf(op.Tier, op.Group)
	s.fx.remove(eventOf(b, op), at)
	s.warm += s.held.touch(&s.recs, op.Engines)
	for _, e := range op.Engines {
		e := uint64(e)
		if s.room.live > 0 && s.room.takeOut(at, e) {
			continue
		}
		r := s.held.find(&s.recs, e)
		if r == 0 || !s.removeCopy(r, at) {
			s.stats.RemoveUnknown++
			continue
		}
		s.fx.engine(e)
	}
	s.fx.end()
}

// removeCopy takes a copy of record r at one place away, and with its last copy
// the block. It reports false when there is none.
func (s *State) removeCopy(r uint32, at place) bool {
	rec := s.recs.at(r)
	first := s.attrs.place[rec.attr] == at
	if rec.more == 0 {
		if !first {
			return false
		}
		s.held.remove(rec.engine, r)
		s.stats.Blocks--
		s.drop(r)
		return true
	}
	var before uint32
	for n := rec.more; n != 0; {
		nd := s.nodes.at(n)
		if s.attrs.place[nd.attr] == at {
			s.takeNode(r, before, n)
			s.stats.Copies--
			return true
		}
		before, n = n, nd.next
	}
	if !first {
		return false
	}
	// Another copy becomes the first.
	a, gone := rec.attr, rec.more
	promoted := s.nodes.at(gone).attr
	s.attrs.ref(promoted)
	s.takeNode(r, 0, gone)
	s.recs.mut(r, &s.cuts).attr = promoted
	s.attrs.unref(a)
	s.stats.Copies--
	return true
}

// takeNode takes one copy out of node n of record r, whose node before it is
// before, or 0.
func (s *State) takeNode(r, before, n uint32) {
	nd := s.nodes.mut(n, &s.cuts)
	if nd.count > 1 {
		nd.count--
		return
	}
	next := nd.next
	if before == 0 {
		s.recs.mut(r, &s.cuts).more = next
	} else {
		s.nodes.mut(before, &s.cuts).next = next
	}
	s.freeNode(n)
}

func (s *State) freeNode(n uint32) {
	nd := s.nodes.mut(n, &s.cuts)
	s.attrs.unref(nd.attr)
	*nd = node{next: s.nodes.free}
	s.nodes.free = n
	s.nodes.used--
}

// evict ends record r with all its copies and tells it.
func (s *State) evict(r uint32) {
	rec := *s.recs.at(r)
	s.fx.removeLike(s.attrs.list[rec.attr], fxBoth, []uint64{rec.engine})
	for n := rec.more; n != 0; {
		nd := *s.nodes.at(n)
		s.fx.removeLike(s.attrs.list[nd.attr], fxBoth, slices.Repeat([]uint64{rec.engine}, int(nd.count)))
		n = nd.next
	}
	s.held.remove(rec.engine, r)
	s.stats.Blocks--
	s.drop(r)
}

// drop ends the copies of record r, which the table no longer names: it becomes a
// ghost while records lie below it.
func (s *State) drop(r uint32) {
	rec := s.recs.mut(r, &s.cuts)
	s.stats.Copies--
	for n := rec.more; n != 0; {
		nd := *s.nodes.at(n)
		s.stats.Copies -= uint64(nd.count)
		s.freeNode(n)
		n = nd.next
	}
	if rec.children == 0 {
		s.free(r)
		return
	}
	rec.engine, rec.more = 0, 0
	rec.size = rec.size&^held | ghost
	s.ghost.insert(rec.position, r)
	s.stats.Ghosts++
}

// bury frees ghost r, which has no children.
func (s *State) bury(r uint32) {
	s.ghost.remove(s.recs.at(r).position, r)
	s.stats.Ghosts--
	s.free(r)
}

// free frees record r, which is in no table and has no children, and the ghosts
// above it that have no other.
func (s *State) free(r uint32) {
	for {
		rec := s.recs.mut(r, &s.cuts)
		parent := rec.parent
		if rec.blob != 0 {
			s.blobs.drop(rec.blob, int(rec.size&sizeMask), &s.cuts)
		}
		s.attrs.unref(rec.attr)
		*rec = record{parent: s.recs.free}
		s.recs.free = r
		s.recs.used--
		if parent == 0 {
			return
		}
		p := s.recs.mut(parent, &s.cuts)
		p.children--
		if p.children > 0 || p.size&ghost == 0 {
			return
		}
		s.ghost.remove(p.position, parent)
		s.stats.Ghosts--
		r = parent
	}
}
