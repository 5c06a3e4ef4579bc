// SPDX-License-Identifier: Apache-2.0

// Before: State.Apply (operations). After: Effects, and cut.go.

package live

import (
	"kindex/internal/kv"
	"kindex/internal/livedigest"
	"kindex/relay/normal"
)

// told is a store in work: the operation, and what its event says besides.
type told struct {
	engines   []kv.EngineHash
	contents  []kv.ContentHash // under attr.seed; none: a placeholder
	blocks    kv.Blocks
	keys      [][]kv.ExtraKey // as the event has them, by block; nil: none
	parent    uint64
	hasParent bool
	stated    bool
	attr      attr // under the namespace that the event says
	// foreign is the LoRA name that the event says where the parent's is another:
	// among the keys it names nothing of the block's. Set once the parent is known.
	foreign string
}

// tell makes s.told of op.
func (s *State) tell(b *kv.Batch, op *normal.Op) {
	t := &s.told
	*t = told{
		engines: op.Engines, contents: op.Contents, blocks: op.Blocks,
		parent: uint64(op.Parent), hasParent: op.HasParent, stated: op.Stated,
		attr: attr{place: placeOf(op.Tier, op.Group), seed: op.Seed, lora: op.LoRA, salt: op.Salt, blockSize: op.Blocks.BlockSize},
	}
	if s.opts.HashTokens {
		return
	}
	ev := eventOf(b, op)
	t.attr.peer = peerAttrOf(ev)
	if ev.Extra != nil && len(op.Contents) > 0 && op.From+len(op.Engines) <= len(ev.Extra) {
		t.keys = ev.Extra[op.From : op.From+len(op.Engines)]
	}
}

// storeOrWait applies t, and what waited for its blocks, or lets it wait.
func (s *State) storeOrWait(t *told) {
	if t.hasParent && s.held.find(&s.recs, t.parent) == 0 {
		s.wait(newOrphan(t, t.parent))
		return
	}
	s.stored = s.stored[:0]
	s.store(t, nil)
	s.settle()
}

// settle applies the stores that wait for those of s.stored, in the order they
// came, then theirs.
func (s *State) settle() {
	for i := 0; i < len(s.stored) && s.room.live > 0; i++ {
		for _, o := range s.room.take(s.stored[i]) {
			if len(o.contents) == 0 {
				s.placeholders(&o.told)
			} else {
				s.store(&o.told, o.out)
			}
		}
	}
}

// store applies t, whose parent is held, without the blocks that out marks.
func (s *State) store(t *told, out []bool) {
	a, contents := t.attr, t.contents
	var cur uint32
	position := livedigest.Root(a.seed)
	if t.hasParent {
		cur = s.held.find(&s.recs, t.parent)
		if cur == 0 {
			return // its block was refused or moved while it waited
		}
		r := s.recs.at(cur)
		position = r.position
		if p := s.attrs.list[r.attr]; p.seed != a.seed {
			if t.stated {
				s.stats.Contradictions++
			}
			if t.blocks.Len() > 0 {
				s.contents = t.blocks.AppendHashes(s.contents[:0], p.seed)
				contents = s.contents
			}
			if p.lora != a.lora {
				t.foreign = a.lora
			}
			a.seed, a.lora, a.salt = p.seed, p.lora, p.salt
		}
	}
	n := len(t.engines)
	for n > 0 && isOut(out, n-1) {
		n-- // nothing lies below a hole at the end
	}
	if !s.fits(t, &a, contents[:n], out, position) {
		return
	}
	s.warm += s.held.touch(&s.recs, t.engines)
	num := s.attrs.intern(&a)
	w := walk{s: s, t: t, attr: num, cur: cur, position: position}
	s.fx.store(s.attrs.list[num], fxBoth, t.hasParent, t.parent)
	for i := range n {
		w.position = livedigest.Child(w.position, contents[i])
		if isOut(out, i) {
			w.hole(i, contents[i])
		} else {
			w.block(i, contents[i])
		}
	}
	w.unpin()
	s.fx.end()
	s.fx.removeLike(s.attrs.list[num], fxBoth, w.named)
	s.attrs.unref(num)
}

func isOut(out []bool, i int) bool { return out != nil && out[i] }

// fits reports whether the limits have room for the first blocks of t, which have
// these contents below position. If not, what t would have moved goes, so that
// nothing is counted that is not there.
func (s *State) fits(t *told, a *attr, contents []kv.ContentHash, out []bool, position uint64) bool {
	n := len(contents)
	ok := s.blobs.used+s.attrs.bytes <= s.opts.MaxBytes && len(s.blobs.chunks) < maxChunks && a.text() <= maxText
	if used, most := uint64(s.recs.used), uint64(s.opts.MaxBlocks); ok && used+uint64(n) > most {
		ok = used+s.missing(t, contents, out, position) <= most
	}
	if !s.opts.HashTokens {
		ok = ok && t.blobBound() <= maxBlob
	}
	if ok {
		return true
	}
	s.stats.Refused += uint64(n)
	for _, e := range t.engines[:n] {
		if r := s.held.find(&s.recs, uint64(e)); r != 0 {
			s.evict(r)
		}
	}
	return false
}

// missing counts the blocks of t that need a record: those whose position has
// neither the block itself nor a ghost. Another copy of what is held needs none.
func (s *State) missing(t *told, contents []kv.ContentHash, out []bool, position uint64) (n uint64) {
	for i, c := range contents {
		position = livedigest.Child(position, c)
		if s.ghost.find(&s.recs, position) != 0 {
			continue
		}
		if r := s.held.find(&s.recs, uint64(t.engines[i])); isOut(out, i) || r == 0 || s.recs.at(r).position != position {
			n++
		}
	}
	return n
}

// walk is a store on its way down a chain.
type walk struct {
	s        *State
	t        *told
	attr     uint32
	cur      uint32 // record of the block before; 0 at a root
	position uint64 // of the block in work
	pinned   uint32 // a ghost counted as a child's parent until the child is there
	named    []uint64
}

// block stores block i.
func (w *walk) block(i int, c kv.ContentHash) {
	s, e := w.s, uint64(w.t.engines[i])
	r := s.held.find(&s.recs, e)
	if r != 0 && s.recs.at(r).position == w.position {
		if s.addCopy(r, w.attr) {
			s.fx.block(s, r)
		} else {
			s.fx.skip(e)
		}
	} else {
		old := r
		r = s.enter(w, i, e, c)
		if old != 0 {
			s.held.replace(e, old, r)
			s.stats.Moved++
			s.drop(old)
		} else {
			s.held.insert(e, r)
			s.stats.Blocks++
		}
		s.fx.block(s, r)
	}
	if s.room.live > 0 {
		s.stored = append(s.stored, e)
	}
	w.cur = r
	w.unpin()
}

// enter makes a record for block i: a new one, or the ghost of its position, held
// again. It does not list it by engine hash.
func (s *State) enter(w *walk, i int, e uint64, c kv.ContentHash) uint32 {
	s.attrs.ref(w.attr)
	s.stats.Copies++
	if g := s.ghost.find(&s.recs, w.position); g != 0 {
		s.ghost.remove(w.position, g)
		s.stats.Ghosts--
		r := s.recs.mut(g, &s.cuts)
		s.attrs.unref(r.attr)
		r.engine, r.attr, r.size = e, w.attr, r.size&^ghost|held
		return g
	}
	n := s.newRecord(w, i, c)
	r := s.recs.mut(n, &s.cuts)
	r.engine, r.attr = e, w.attr
	r.size |= held
	return n
}

// newRecord returns a record for block i below w.cur, with its blob but neither
// held nor a ghost.
func (s *State) newRecord(w *walk, i int, c kv.ContentHash) uint32 {
	n := s.recs.free
	if n != 0 {
		s.recs.free = s.recs.at(n).parent
	} else {
		n = s.recs.fresh(&s.cuts)
	}
	s.recs.used++
	r := record{position: w.position, content: uint64(c), parent: w.cur}
	if !s.opts.HashTokens {
		r.blob, r.size = s.putBlob(w.t, i)
	}
	*s.recs.mut(n, &s.cuts) = r
	if w.cur != 0 {
		s.recs.mut(w.cur, &s.cuts).children++
	}
	return n
}

// hole passes block i, which is not held, by way of a ghost. Whoever applies the
// effects must name it: it gets an engine hash of its own for that time.
func (w *walk) hole(i int, c kv.ContentHash) {
	s := w.s
	g := s.ghost.find(&s.recs, w.position)
	if g == 0 {
		g = s.newRecord(w, i, c)
		r := s.recs.mut(g, &s.cuts)
		r.attr = w.attr
		r.size |= ghost
		s.attrs.ref(w.attr)
		s.ghost.insert(w.position, g)
		s.stats.Ghosts++
	}
	s.recs.mut(g, &s.cuts).children++ // until unpin
	w.unpin()
	w.pinned, w.cur = g, g
	e := s.freshEngine()
	w.named = append(w.named, e)
	s.fx.named(s, g, e)
}

// unpin lets go of the ghost that w held on to.
func (w *walk) unpin() {
	if w.pinned == 0 {
		return
	}
	r := w.s.recs.mut(w.pinned, &w.s.cuts)
	r.children--
	if r.children == 0 && r.size&ghost != 0 {
		w.s.bury(w.pinned)
	}
	w.pinned = 0
}

// addCopy adds a copy of record r, and reports false when it has too many.
func (s *State) addCopy(r, a uint32) bool {
	at, more := s.attrs.place[a], s.recs.at(r).more
	for n := more; n != 0; {
		nd := s.nodes.at(n)
		if s.attrs.place[nd.attr] == at {
			if nd.count >= maxCopies-1 {
				s.stats.CopiesCapped++
				return false
			}
			s.nodes.mut(n, &s.cuts).count++
			s.stats.Copies++
			return true
		}
		n = nd.next
	}
	n := s.nodes.free
	if n != 0 {
		s.nodes.free = s.nodes.at(n).next
	} else {
		n = s.nodes.fresh(&s.cuts)
	}
	s.nodes.used++
	*s.nodes.mut(n, &s.cuts) = node{attr: a, count: 1, next: more}
	s.recs.mut(r, &s.cuts).more = n
	s.attrs.ref(a)
	s.stats.Copies++
	return true
}
