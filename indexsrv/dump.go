// SPDX-License-Identifier: Apache-2.0

// Before: the index, walked between two batches of a stream. After: a client,
// or another host, that replays the events.

package indexsrv

import (
	"bufio"
	"fmt"
	"strconv"

	"kindex/internal/kv"
	"kindex/shard"
)

// maxDumpBlocks bounds the blocks of one dumped event.
const maxDumpBlocks = 1_024

// dumpNode is one position of a snapshot.
type dumpNode struct {
	parent    int // index of the position above; -1 at a root
	namespace kv.Namespace
	content   kv.ContentHash
	copies    []shard.Copy // empty: a hole
	name      kv.EngineHash
}

// snapshot is one stream's content and the cursor it is exact at.
type snapshot struct {
	status StreamStatus
	nodes  []dumpNode // parents first
	holes  []kv.EngineHash
}

// snapshot copies r's content. Its stream waits meanwhile, and other streams'
// batches do while the index is walked; encoding happens after.
//
// Errors: shard.ErrUnknownHolder where r was unregistered meanwhile.
func (r *rank) snapshot(idx *Writer) (snapshot, error) {
	var s snapshot
	var err error
	r.stream.between(func(st StreamStatus) {
		s.status = st
		at := make(map[uint64]int, st.Memberships)
		s.nodes = make([]dumpNode, 0, st.Memberships)
		err = idx.Walk(r.holder, func(n *shard.Node) bool {
			parent, ok := at[n.Parent]
			if !ok {
				parent = -1
			}
			at[n.ID] = len(s.nodes)
			s.nodes = append(s.nodes, dumpNode{
				parent: parent, namespace: n.Namespace, content: n.Content,
				copies: append([]shard.Copy(nil), n.Copies...),
			})
			return true
		})
	})
	s.nameBlocks()
	return s, err
}

// nameBlocks gives every position the engine hash that its children's events
// name as their parent: one of its own, or for a hole one that the stream does
// not use.
func (s *snapshot) nameBlocks() {
	used := map[kv.EngineHash]bool{}
	hasHole := false
	for i := range s.nodes {
		n := &s.nodes[i]
		if len(n.copies) == 0 {
			hasHole = true
			continue
		}
		n.name = n.copies[0].Engine
	}
	if !hasHole {
		return
	}
	for i := range s.nodes {
		for _, c := range s.nodes[i].copies {
			used[c.Engine] = true
		}
	}
	next := uint64(0)
	for i := range s.nodes {
		n := &s.nodes[i]
		if len(n.copies) > 0 {
			continue
		}
		for n.name = madeUp(next); used[n.name]; n.name = madeUp(next) {
			next++
		}
		next++
		s.holes = append(s.holes, n.name)
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
	removed(hashes []kv.EngineHash) error // device copies
}

// runWriter cuts a snapshot into events.
type runWriter struct {
	s     *snapshot
	model kv.ModelKey
	sink  runSink

	run       dumpRun // blocks of one chain that wait to be written
	runLast   int     // node of the last
	runParent int     // node above the first; -1: none
}

// writeRuns gives sink the events that make s, of a stream of model m.
func (s *snapshot) writeRuns(m kv.ModelKey, sink runSink) error {
	w := &runWriter{s: s, model: m, sink: sink}
	for i := range s.nodes {
		n := &s.nodes[i]
		single := len(n.copies) == 1 && n.copies[0].Count == 1
		if single && w.joins(n, n.copies[0]) {
			w.add(i, n.copies[0].Engine)
			continue
		}
		if err := w.flush(); err != nil {
			return err
		}
		copies := n.copies
		if len(copies) == 0 {
			copies = []shard.Copy{{Engine: n.name, Count: 1}}
		}
		for _, c := range copies {
			for range c.Count {
				if err := w.flush(); err != nil {
					return err
				}
				w.add(i, c.Engine)
				w.runParent, w.run.tier, w.run.group = n.parent, c.Tier, c.Group
			}
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	for holes := s.holes; len(holes) > 0; {
		k := min(len(holes), maxDumpBlocks)
		if err := sink.removed(holes[:k]); err != nil {
			return err
		}
		holes = holes[k:]
	}
	return nil
}

// joins reports whether n's only copy goes on where the waiting run ends.
func (w *runWriter) joins(n *dumpNode, c shard.Copy) bool {
	return len(w.run.engines) > 0 && len(w.run.engines) < maxDumpBlocks &&
		n.parent == w.runLast && c.Tier == w.run.tier && c.Group == w.run.group
}

// add adds node i to the waiting run.
func (w *runWriter) add(i int, e kv.EngineHash) {
	w.run.engines = append(w.run.engines, e)
	w.run.contents = append(w.run.contents, w.s.nodes[i].content)
	w.runLast = i
}

// flush writes the waiting run.
func (w *runWriter) flush() error {
	if len(w.run.engines) == 0 {
		return nil
	}
	w.run.seed = w.model.Seed(w.s.nodes[w.runLast].namespace)
	w.run.parent, w.run.hasParent = 0, w.runParent >= 0
	if w.run.hasParent {
		w.run.parent = w.s.nodes[w.runParent].name
	}
	err := w.sink.stored(&w.run)
	w.run.engines, w.run.contents = w.run.engines[:0], w.run.contents[:0]
	return err
}

// dumpWriter writes events, as the field's contract has them, one after the
// other: elements of an array, or lines.
type dumpWriter struct {
	w     *bufio.Writer
	line  []byte
	lines bool // one JSON object a line, each with its model
	first bool // no event of this array yet
	label []byte

	// The stream at hand.
	rank *rank
	id   uint64 // of its next event
}

// stream writes the events that make s.
func (d *dumpWriter) stream(r *rank, s *snapshot) error {
	d.rank, d.id = r, 0
	return s.writeRuns(r.cfg.Model, d)
}

// stored writes a run as one event.
func (d *dumpWriter) stored(run *dumpRun) error {
	d.begin(run.tier)
	b := append(d.line, `"stored":{"parent_hash":`...)
	if run.hasParent {
		b = strconv.AppendUint(b, uint64(run.parent), 10)
	} else {
		b = append(b, "null"...)
	}
	if run.seed != kv.HashSeed {
		b = append(b, `,"namespace_seed":`...)
		b = strconv.AppendUint(b, run.seed, 10)
	}
	if run.group != 0 {
		b = append(b, `,"group_idx":`...)
		b = strconv.AppendUint(b, uint64(run.group), 10)
	}
	b = append(b, `,"blocks":[`...)
	for i, e := range run.engines {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"block_hash":`...)
		b = strconv.AppendUint(b, uint64(e), 10)
		b = append(b, `,"tokens_hash":`...)
		b = strconv.AppendUint(b, uint64(run.contents[i]), 10)
		b = append(b, `,"mm_extra_info":null}`...)
	}
	d.line = append(b, "]}"...)
	return d.end()
}

// removed writes the removal of made-up blocks.
func (d *dumpWriter) removed(hashes []kv.EngineHash) error {
	d.begin(kv.TierDevice)
	b := append(d.line, `"removed":{"block_hashes":[`...)
	for i, e := range hashes {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(e), 10)
	}
	d.line = append(b, "]}"...)
	return d.end()
}

// begin begins an event in line, up to its data.
func (d *dumpWriter) begin(t kv.Tier) {
	b := d.line[:0]
	switch {
	case d.lines:
		b = append(b, `{"model":`...)
		b = append(b, d.label...)
		b = append(b, ',')
	case d.first:
		b = append(b, '{')
	default:
		b = append(b, ",{"...)
	}
	d.first = false
	b = append(b, `"worker_id":`...)
	b = append(b, d.rank.worker.shown...)
	b = fmt.Appendf(b, `,"storage_tier":"%s","event":{"event_id":%d,"data":{`, t, d.id)
	d.line = b
	d.id++
}

// end ends the event in line and writes it.
func (d *dumpWriter) end() error {
	b := fmt.Appendf(d.line, `},"dp_rank":%d}}`, d.rank.number)
	if d.lines {
		b = append(b, '\n')
	}
	d.line = b
	_, err := d.w.Write(b)
	return err
}

// appendCursor appends what the stream's content is exact at.
func appendCursor(b []byte, st *StreamStatus) []byte {
	b = fmt.Appendf(b, `{"epoch":%d,"last_seq":`, st.Epoch)
	if st.HasSeq {
		b = strconv.AppendUint(b, st.LastSeq, 10)
	} else {
		b = append(b, "null"...)
	}
	// Waiting blocks are no content: with any, replaying from the cursor may
	// not give what this stream will have.
	return fmt.Appendf(b, `,"status":"%s","orphans":%d}`, st.State, st.Orphans)
}
