// SPDX-License-Identifier: Apache-2.0

// Before: the index, copied between two batches of a stream, or a state file. After:
// a dump, or an empty holder.

package indexsrv

import (
	"kindex/internal/kv"
	"kindex/shard"
)

// Content copies what h holds, a piece in each turn of its shard. Nothing is stored,
// removed or cleared for h meanwhile: its stream is frozen.
//
// Errors: shard.ErrUnknownHolder.
func (w *Writer) Content(h shard.Holder) (*shard.Content, error) {
	var r *shard.ContentReader
	err := w.in(h, func(idx shard.Index) (err error) { r, err = shard.ReadContent(idx, h); return err })
	if err != nil {
		return nil, err
	}
	r.Prepare()
	c := &shard.Content{}
	for more := true; more; {
		err = w.in(h, func(shard.Index) error { more = r.Next(c); return nil })
	}
	return c, err
}

// snapshot is one stream's content and where it is exact.
type snapshot struct {
	status  StreamStatus
	at      *Resume // nil: no other stream could go on from there
	content *shard.Content
}

// snapshot copies r's content. Its stream waits meanwhile; others of its shard wait
// for a piece at most.
//
// Errors: shard.ErrUnknownHolder where r was unregistered meanwhile.
func (r *rank) snapshot(idx *Writer) (s snapshot, err error) {
	r.stream.freeze(func(st StreamStatus, at *Resume) {
		s.status, s.at = st, at
		s.content, err = idx.Content(r.holder)
	})
	return s, err
}

// maxDumpBlocks bounds the blocks of one event of a content.
const maxDumpBlocks = 1_024

// dumpRun is one copy of each block of a chain: one event.
type dumpRun struct {
	tier      kv.Tier
	group     uint8
	parent    kv.EngineHash // of the first block
	hasParent bool
	seed      uint64 // of the namespace
	engines   []kv.EngineHash
	contents  []kv.ContentHash
}

// runSink takes a stream's events, in order. What it is given is valid during the
// call.
type runSink interface {
	stored(run *dumpRun) error
	removed(hashes []kv.EngineHash) error // copies where runWriter.hole says
}

// runWriter makes of a content events that give it, in order, in an empty index:
// parents first; a hole is stored under a made-up hash and removed at the end.
type runWriter struct {
	c     *shard.Content
	model kv.ModelKey
	sink  runSink
	// again, where it is set, is told of n more copies of a block just stored; else
	// they are stored one by one.
	again func(c shard.Copy, n uint32) error
	// hole says where the copies of holes lie for a while.
	hole shard.Copy

	names map[int]kv.EngineHash // of holes
	holes []kv.EngineHash

	run     dumpRun // blocks of one chain that wait to be written
	runLast int     // position of the last
}

// writeRuns gives sink the events that make s, of a stream of model m.
func (s *snapshot) writeRuns(m kv.ModelKey, sink runSink) error {
	w := &runWriter{c: s.content, model: m, sink: sink}
	return w.write()
}

// write writes all events.
func (w *runWriter) write() error {
	w.nameHoles()
	for i, st := range w.c.Stretches {
		parent := st.Parent
		for at := st.First; at < w.c.End(i); at++ {
			if err := w.position(at, parent, st.Namespace); err != nil {
				return err
			}
			parent = at
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	for holes := w.holes; len(holes) > 0; {
		k := min(len(holes), maxDumpBlocks)
		if err := w.sink.removed(holes[:k]); err != nil {
			return err
		}
		holes = holes[k:]
	}
	return nil
}

// position makes the events of one position.
func (w *runWriter) position(at, parent int, ns kv.Namespace) error {
	copies := w.c.CopiesOf(at)
	if len(copies) == 1 && copies[0].Count == 1 && w.joins(parent, copies[0]) {
		w.add(at, copies[0].Engine)
		return nil
	}
	if len(copies) == 0 {
		hole := w.hole
		hole.Engine, hole.Count = w.names[at], 1
		copies = []shard.Copy{hole}
	}
	for _, c := range copies {
		times := c.Count
		if w.again != nil {
			times = 1
		}
		for range times {
			if err := w.flush(); err != nil {
				return err
			}
			w.run.tier, w.run.group, w.run.seed = c.Tier, c.Group, w.model.Seed(ns)
			if w.run.hasParent = parent >= 0; w.run.hasParent {
				w.run.parent = w.name(parent)
			}
			w.add(at, c.Engine)
		}
		if c.Count > times {
			if err := w.flush(); err != nil {
				return err
			}
			if err := w.again(c, c.Count-times); err != nil {
				return err
			}
		}
	}
	return nil
}

// joins reports whether a position's only copy goes on where the waiting event ends.
func (w *runWriter) joins(parent int, c shard.Copy) bool {
	n := len(w.run.engines)
	return n > 0 && n < maxDumpBlocks && parent == w.runLast && c.Tier == w.run.tier && c.Group == w.run.group
}

func (w *runWriter) add(at int, engine kv.EngineHash) {
	w.run.engines = append(w.run.engines, engine)
	w.run.contents = append(w.run.contents, w.c.Hashes[at])
	w.runLast = at
}

func (w *runWriter) flush() error {
	if len(w.run.engines) == 0 {
		return nil
	}
	err := w.sink.stored(&w.run)
	w.run = dumpRun{engines: w.run.engines[:0], contents: w.run.contents[:0]}
	return err
}

// name is the engine hash by which those below name a position: one of its own, or
// for a hole one that the stream does not use.
func (w *runWriter) name(at int) kv.EngineHash {
	if copies := w.c.CopiesOf(at); len(copies) > 0 {
		return copies[0].Engine
	}
	return w.names[at]
}

func (w *runWriter) nameHoles() {
	for at := range w.c.Ends {
		if len(w.c.CopiesOf(at)) == 0 {
			if w.names == nil {
				w.names = map[int]kv.EngineHash{}
			}
			w.names[at] = 0
		}
	}
	if w.names == nil {
		return
	}
	used := make(map[kv.EngineHash]bool, len(w.c.Copies))
	for i := range w.c.Copies {
		used[w.c.Copies[i].Engine] = true
	}
	next := uint64(0)
	for at := range w.c.Ends {
		if len(w.c.CopiesOf(at)) > 0 {
			continue
		}
		name := madeUp(next)
		for ; used[name]; name = madeUp(next) {
			next++
		}
		next++
		w.names[at] = name
		w.holes = append(w.holes, name)
	}
}

// madeUp returns the i-th made-up engine hash (the mixer of splitmix64, which
// maps no two numbers to one).
func madeUp(i uint64) kv.EngineHash {
	z := i + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return kv.EngineHash(z ^ z>>31)
}
