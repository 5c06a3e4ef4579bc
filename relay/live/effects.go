// SPDX-License-Identifier: Apache-2.0

// Before: State.Apply. After: the two encoders, then the rank's history.

package live

import "kindex/internal/kv"

// Effects is what one batch changed: what a subscriber must apply that knows
// nothing of waiting stores and inherited namespaces. The zero value is ready for
// use and is used again from batch to batch.
//
// It refers to the memory of the State that filled it: it is good until that
// State's next Apply or Clear.
type Effects struct {
	list []effect
	open effect // in work; part of list from end on

	// What the effects name, in order.
	engines  []uint64
	contents []uint64  // of stores' blocks; else 0
	blobs    []blobRef // of stores' blocks; else zero
	tails    []byte    // the peer's fields of removals and clears

	chunks []*[blobChunk]byte // of the State's blobs
	hashed bool               // tokens are

	bracketed int // ghosts named so far, to tell copies
}

// effectKind is what an effect does.
type effectKind uint8

const (
	fxStore  effectKind = iota
	fxCopies            // placeholders
	fxRemove
	fxClear
)

// forms says whose form shows an effect.
type forms uint8

const (
	fxOwn forms = 1 << iota
	fxPeer
	fxBoth = fxOwn | fxPeer
)

// effect is one event to be.
type effect struct {
	kind      effectKind
	forms     forms
	hasParent bool
	place     place
	parent    uint64
	attr      *shared // of a store
	from, to  int     // of engines, contents, blobs
	tail      [2]int  // of tails
}

// blobRef is where a block's tokens are.
type blobRef struct{ ref, size uint32 }

func (fx *Effects) reset(s *State) {
	clear(fx.list) // attributes are not kept alive
	*fx = Effects{
		list: fx.list[:0], engines: fx.engines[:0], contents: fx.contents[:0], blobs: fx.blobs[:0], tails: fx.tails[:0],
		hashed: s.opts.HashTokens,
	}
}

func (fx *Effects) begin(e effect) {
	e.from = len(fx.engines)
	fx.open = e
}

// end ends the effect in work, which is nothing if it names no block.
func (fx *Effects) end() {
	fx.open.to = len(fx.engines)
	if fx.open.to > fx.open.from {
		fx.list = append(fx.list, fx.open)
	}
	fx.open.from = fx.open.to
}

func (fx *Effects) store(a *shared, f forms, hasParent bool, parent uint64) {
	fx.begin(effect{kind: fxStore, forms: f, place: a.place, attr: a, hasParent: hasParent, parent: parent})
}

func (fx *Effects) copies(at place) { fx.begin(effect{kind: fxCopies, forms: fxOwn, place: at}) }

// block names record r, which is held, as the next block of a store.
func (fx *Effects) block(s *State, r uint32) { fx.named(s, r, s.recs.at(r).engine) }

// named is block under another engine hash.
func (fx *Effects) named(s *State, r uint32, e uint64) {
	rec := s.recs.at(r)
	fx.engines = append(fx.engines, e)
	fx.contents = append(fx.contents, rec.content)
	fx.blobs = append(fx.blobs, blobRef{rec.blob, rec.size})
	fx.chunks = s.blobs.chunks
}

// skip leaves block e, which is held, out of the run in work.
func (fx *Effects) skip(e uint64) {
	o := fx.open
	fx.end()
	fx.begin(effect{kind: o.kind, forms: o.forms, place: o.place, attr: o.attr, hasParent: true, parent: e})
}

// engine names e in an effect that is no store.
func (fx *Effects) engine(e uint64) {
	fx.engines = append(fx.engines, e)
	fx.contents = append(fx.contents, 0)
	fx.blobs = append(fx.blobs, blobRef{})
}

// remove begins a removal that ev tells.
func (fx *Effects) remove(ev *kv.Event, at place) {
	e := effect{kind: fxRemove, forms: fxBoth, place: at}
	if !fx.hashed {
		p := peerAttrOf(ev)
		e.tail[0] = len(fx.tails)
		fx.tails = appendRemovedTail(fx.tails, at, &p)
		e.tail[1] = len(fx.tails)
	}
	fx.begin(e)
}

// removeLike takes engines away, stored with a. None is nothing.
func (fx *Effects) removeLike(a *shared, f forms, engines []uint64) {
	if len(engines) == 0 {
		return
	}
	e := effect{kind: fxRemove, forms: f, place: a.place}
	if !fx.hashed {
		e.tail[0] = len(fx.tails)
		fx.tails = appendRemovedTail(fx.tails, a.place, &a.peer)
		e.tail[1] = len(fx.tails)
	}
	fx.begin(e)
	for _, x := range engines {
		fx.engine(x)
	}
	fx.end()
}

func (fx *Effects) clear(ev *kv.Event) {
	e := effect{kind: fxClear, forms: fxBoth}
	if !fx.hashed && ev.Ownership != "" {
		e.tail[0] = len(fx.tails)
		fx.tails = appendText(fx.tails, tagClearedOwnership, ev.Ownership)
		e.tail[1] = len(fx.tails)
	}
	fx.list = append(fx.list, e)
}

// AppendOwn appends fx to dst as the field events of kindex.relay.v1.Batch.
func AppendOwn(dst []byte, fx *Effects) []byte {
	for i := range fx.list {
		e := &fx.list[i]
		if e.forms&fxOwn == 0 {
			continue
		}
		engines := fx.engines[e.from:e.to]
		switch e.kind {
		case fxStore:
			dst = appendOwnStored(dst, tagBatchEvents, &ownRun{
				place: e.place, seed: e.attr.seed, blockSize: e.attr.blockSize,
				hasParent: e.hasParent, parent: e.parent, engines: engines, contents: fx.contents[e.from:e.to],
			})
		case fxCopies:
			dst = appendOwnStored(dst, tagBatchEvents, &ownRun{place: e.place, engines: engines})
		case fxRemove:
			dst = appendOwnRemoved(dst, tagBatchEvents, e.place, engines)
		case fxClear:
			dst = appendOwnCleared(dst, tagBatchEvents)
		}
	}
	return dst
}

// AppendPeer appends fx to dst as the field events of smg.grpc.common.KvEventBatch.
// The events are numbered from id on; the next number is returned. A State that
// hashes tokens has no such form: nothing is appended.
func AppendPeer(dst []byte, fx *Effects, id uint64) ([]byte, uint64) {
	if fx.hashed {
		return dst, id
	}
	for i := range fx.list {
		e := &fx.list[i]
		if e.forms&fxPeer == 0 {
			continue
		}
		engines, tail := fx.engines[e.from:e.to], fx.tails[e.tail[0]:e.tail[1]]
		switch e.kind {
		case fxStore:
			dst = appendPeerStored(dst, &peerRun{
				id: id, attr: e.attr, hasParent: e.hasParent, parent: e.parent,
				engines: engines, blobs: fx.blobs[e.from:e.to], chunks: fx.chunks,
			})
		case fxRemove:
			dst = appendPeerRemoved(dst, id, engines, tail)
		case fxClear:
			dst = appendPeerCleared(dst, id, tail)
		case fxCopies:
		}
		id++
	}
	return dst, id
}
