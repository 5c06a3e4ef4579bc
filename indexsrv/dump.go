// SPDX-License-Identifier: Apache-2.0

// Before: content.go, with a copy made between two batches. After: a client,
// or another host, that replays the events.

package indexsrv

import (
	"bufio"
	"fmt"
	"strconv"

	"kindex/internal/kv"
)

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
