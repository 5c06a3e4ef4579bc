// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// A dump is lines of JSON, as GET /dump?format=ndjson has them: one that begins a
// stream, then its events.

// Bounds of a dump's line. Chosen, not measured: a host's have at most 1,024 blocks.
const (
	maxLine       = 4 << 20
	maxLineBlocks = 1 << 16
)

// headLine begins a stream.
type headLine struct {
	Model     string                            `json:"model"`
	BlockSize int                               `json:"block_size"`
	Streams   map[string]map[string]*lineCursor `json:"streams"`
}

type lineCursor struct {
	Epoch   uint64  `json:"epoch"`
	LastSeq *uint64 `json:"last_seq"`
	Status  string  `json:"status"`
	Orphans uint64  `json:"orphans"`
}

// eventLine is one event.
type eventLine struct {
	Model  string             `json:"model"`
	Worker lookup.ExplainedID `json:"worker_id"`
	Tier   string             `json:"storage_tier"`
	Event  lineEvent          `json:"event"`
}

type lineEvent struct {
	ID   uint64   `json:"event_id"`
	Data lineData `json:"data"`
	Rank int      `json:"dp_rank"`
}

type lineData struct {
	Stored  *lineStored  `json:"stored,omitempty"`
	Removed *lineRemoved `json:"removed,omitempty"`
}

type lineStored struct {
	Parent *uint64     `json:"parent_hash"`
	Seed   *uint64     `json:"namespace_seed,omitempty"`
	Group  uint8       `json:"group_idx,omitempty"`
	Blocks []lineBlock `json:"blocks"`
}

type lineBlock struct {
	Block  uint64 `json:"block_hash"`
	Tokens uint64 `json:"tokens_hash"`
	Extra  any    `json:"mm_extra_info"`
}

type lineRemoved struct {
	Blocks []uint64 `json:"block_hashes"`
}

// anyLine is either.
type anyLine struct {
	headLine
	Worker lookup.ExplainedID `json:"worker_id"`
	Tier   string             `json:"storage_tier"`
	Event  *lineEvent         `json:"event"`
}

// tierOf returns the tier of that name.
func tierOf(name string) (kv.Tier, bool) {
	for i, t := range lookup.Tiers {
		if t == name {
			return kv.Tier(i), true
		}
	}
	return 0, false
}

// readDump gives into what the dump r says. An error is of kind, and names the line.
func readDump(r *bufio.Reader, kind error, into dumpSink) error {
	d := dumpReader{into: into}
	for n := 1; ; n++ {
		line, err := readLine(r)
		ended := errors.Is(err, io.EOF)
		if len(bytes.TrimSpace(line)) > 0 && (err == nil || ended) {
			err = d.line(line)
		}
		if ended && (err == nil || errors.Is(err, io.EOF)) {
			return d.flush()
		}
		if err != nil {
			return lookup.Refuse(kind, "dump, line %d: %v", n, err)
		}
	}
}

// readLine reads one line, its end included.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("must be at most %d bytes", maxLine)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// dumpReader reads a dump's lines in order.
type dumpReader struct {
	into  dumpSink
	at    *streamHead // nil: none yet
	label string
	told  bool // into has at
}

func (d *dumpReader) line(b []byte) error {
	var l anyLine
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("must be a line of kindex dump, or of GET /dump?format=ndjson: %w", err)
	}
	if l.Streams != nil {
		if err := d.flush(); err != nil {
			return err
		}
		return d.begin(&l.headLine)
	}
	switch {
	case l.Event == nil:
		return errors.New("must be a stream's head, with streams, or an event")
	case d.at == nil:
		return errors.New("an event before the head of its stream")
	case l.Model != d.label || l.Worker.Text != d.at.Instance.Text || l.Event.Rank != d.at.Rank:
		return errors.New("an event of another stream than the head before it")
	}
	d.at.Instance = l.Worker
	if err := d.flush(); err != nil {
		return err
	}
	switch data := l.Event.Data; {
	case data.Stored != nil && data.Removed == nil:
		return d.stored(l.Tier, data.Stored)
	case data.Removed != nil && data.Stored == nil && len(data.Removed.Blocks) <= maxLineBlocks:
		return d.into.removed(enginesOf(data.Removed.Blocks))
	}
	return errors.New("an event must have stored, or removed")
}

// flush tells into of a stream: whether its instance's id is a number its first
// event says, where it has any.
func (d *dumpReader) flush() error {
	if d.at == nil || d.told {
		return nil
	}
	d.told = true
	return d.into.head(d.at)
}

func (d *dumpReader) begin(l *headLine) error {
	h := &streamHead{BlockSize: l.BlockSize}
	n := 0
	for instance, ranks := range l.Streams {
		for number, c := range ranks {
			rank, err := strconv.Atoi(number)
			if err != nil || rank < 0 || c == nil {
				return fmt.Errorf("streams: rank %.50q must be a number with a cursor", number)
			}
			h.Instance = lookup.ExplainedID{Text: instance}
			h.Rank, h.Epoch, h.LastSeq, h.Status, h.Orphans = rank, c.Epoch, c.LastSeq, c.Status, c.Orphans
			n++
		}
	}
	if n != 1 || h.BlockSize < 1 {
		return errors.New("a head must have one stream and a block_size of 1 or more")
	}
	var err error
	if h.Tenant, h.Model, h.Group, err = lookup.ParseModelLabel(l.Model); err != nil {
		return err
	}
	d.at, d.label, d.told = h, l.Model, false
	return nil
}

func (d *dumpReader) stored(tier string, s *lineStored) error {
	r := &storedRun{group: s.Group, parent: s.Parent, seed: kv.HashSeed}
	t, ok := tierOf(tier)
	if !ok {
		return fmt.Errorf("storage_tier %.50q must be one of %s", tier, strings.Join(lookup.Tiers[:], ", "))
	}
	if len(s.Blocks) == 0 || len(s.Blocks) > maxLineBlocks {
		return fmt.Errorf("stored: must have 1 to %d blocks", maxLineBlocks)
	}
	r.tier = t
	if s.Seed != nil {
		r.seed = *s.Seed
	}
	for _, b := range s.Blocks {
		r.engines = append(r.engines, kv.EngineHash(b.Block))
		r.contents = append(r.contents, kv.ContentHash(b.Tokens))
	}
	return d.into.stored(r)
}

// dumpWriter writes a dump.
type dumpWriter struct {
	w     *bufio.Writer
	at    *streamHead
	label string
	id    uint64
	heads int
}

func (d *dumpWriter) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("BUG: cli: a dump's line is no JSON: %w", err)
	}
	_, err = d.w.Write(append(b, '\n'))
	return err
}

func (d *dumpWriter) head(h *streamHead) error {
	d.at, d.label, d.id = h, lookup.ModelLabel(h.Tenant, h.Model, h.Group), 0
	d.heads++
	return d.write(headLine{d.label, h.BlockSize, map[string]map[string]*lineCursor{
		h.Instance.Text: {strconv.Itoa(h.Rank): {h.Epoch, h.LastSeq, h.Status, h.Orphans}},
	}})
}

func (d *dumpWriter) event(t kv.Tier, data lineData) error {
	d.id++
	return d.write(eventLine{d.label, d.at.Instance, lookup.Tiers[t], lineEvent{d.id - 1, data, d.at.Rank}})
}

func (d *dumpWriter) stored(r *storedRun) error {
	s := &lineStored{Parent: r.parent, Group: r.group}
	if r.seed != kv.HashSeed {
		s.Seed = &r.seed
	}
	for i, e := range r.engines {
		s.Blocks = append(s.Blocks, lineBlock{Block: uint64(e), Tokens: uint64(r.contents[i])})
	}
	return d.event(r.tier, lineData{Stored: s})
}

func (d *dumpWriter) removed(engines []kv.EngineHash) error {
	m := &lineRemoved{}
	for _, e := range engines {
		m.Blocks = append(m.Blocks, uint64(e))
	}
	return d.event(kv.TierDevice, lineData{Removed: m})
}
