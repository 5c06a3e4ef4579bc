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

// dumpWriter writes events, as the field's contract has them, one after the
// other: elements of an array, or lines.
type dumpWriter struct {
	w     *bufio.Writer
	line  []byte
	lines bool // one JSON object a line, each with its model
	first bool // no event of this array yet
	label []byte

	// The stream at hand.
	rank  *rank
	id    uint64 // of its next event
	model kv.ModelKey

	// Blocks of one chain that wait to be written as one event.
	run       []dumpBlock
	runLast   int // node of the last
	runParent int // node above the first; -1: none
	runTier   kv.Tier
	runGroup  uint8
}

type dumpBlock struct {
	engine  kv.EngineHash
	content kv.ContentHash
}

// stream writes the events that make s.
func (d *dumpWriter) stream(r *rank, s *snapshot) error {
	d.rank, d.id, d.model = r, 0, r.cfg.Model
	for i := range s.nodes {
		n := &s.nodes[i]
		single := len(n.copies) == 1 && n.copies[0].Count == 1
		if single && d.joins(n, n.copies[0]) {
			d.run = append(d.run, dumpBlock{n.copies[0].Engine, n.content})
			d.runLast = i
			continue
		}
		if err := d.flush(s); err != nil {
			return err
		}
		copies := n.copies
		if len(copies) == 0 {
			copies = []shard.Copy{{Engine: n.name, Count: 1}}
		}
		for _, c := range copies {
			for range c.Count {
				if err := d.flush(s); err != nil {
					return err
				}
				d.run = append(d.run, dumpBlock{c.Engine, n.content})
				d.runLast, d.runParent, d.runTier, d.runGroup = i, n.parent, c.Tier, c.Group
			}
		}
	}
	if err := d.flush(s); err != nil {
		return err
	}
	for holes := s.holes; len(holes) > 0; {
		k := min(len(holes), maxDumpBlocks)
		if err := d.removed(holes[:k]); err != nil {
			return err
		}
		holes = holes[k:]
	}
	return nil
}

// joins reports whether n's only copy goes on where the waiting run ends.
func (d *dumpWriter) joins(n *dumpNode, c shard.Copy) bool {
	return len(d.run) > 0 && len(d.run) < maxDumpBlocks &&
		n.parent == d.runLast && c.Tier == d.runTier && c.Group == d.runGroup
}

// flush writes the waiting run as one event.
func (d *dumpWriter) flush(s *snapshot) error {
	if len(d.run) == 0 {
		return nil
	}
	d.begin(d.runTier)
	b := append(d.line, `"stored":{"parent_hash":`...)
	if d.runParent < 0 {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendUint(b, uint64(s.nodes[d.runParent].name), 10)
	}
	if seed := d.model.Seed(s.nodes[d.runLast].namespace); seed != kv.HashSeed {
		b = append(b, `,"namespace_seed":`...)
		b = strconv.AppendUint(b, seed, 10)
	}
	if d.runGroup != 0 {
		b = append(b, `,"group_idx":`...)
		b = strconv.AppendUint(b, uint64(d.runGroup), 10)
	}
	b = append(b, `,"blocks":[`...)
	for i, blk := range d.run {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"block_hash":`...)
		b = strconv.AppendUint(b, uint64(blk.engine), 10)
		b = append(b, `,"tokens_hash":`...)
		b = strconv.AppendUint(b, uint64(blk.content), 10)
		b = append(b, `,"mm_extra_info":null}`...)
	}
	d.line = append(b, "]}"...)
	d.run = d.run[:0]
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
