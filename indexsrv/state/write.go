// SPDX-License-Identifier: Apache-2.0

// Before: a host, with its streams one by one. After: a file, or another host.

package state

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"kindex/shard"
)

// flushBytes is how long a section of a content grows before another begins.
const flushBytes = 256 << 10

// Writer writes one state. Its errors stay: whoever writes looks at Close's.
//
// Concurrency: one goroutine.
type Writer struct {
	w       io.Writer
	whole   *xxh3.Hasher
	bytes   uint64
	streams uint64
	buf     []byte // the section in work, its header first
	err     error
}

// NewWriter begins a state.
func NewWriter(w io.Writer, h Head) *Writer {
	s := &Writer{w: w, whole: xxh3.New()}
	b := binary.LittleEndian.AppendUint32([]byte(magic), Version)
	s.write(binary.LittleEndian.AppendUint32(b, 0))
	b = s.begin()
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Written.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, h.Host)
	s.end(kindHead, b)
	return s
}

// Bytes returns how many were written so far.
func (s *Writer) Bytes() uint64 { return s.bytes }

func (s *Writer) write(b []byte) {
	if s.err != nil {
		return
	}
	_, _ = s.whole.Write(b) // a hash takes everything
	s.bytes += uint64(len(b))
	_, s.err = s.w.Write(b)
}

// begin returns an empty section, to be given to end.
func (s *Writer) begin() []byte { return append(s.buf[:0], make([]byte, sectionHead)...) }

func (s *Writer) end(k kind, b []byte) {
	if len(b)-sectionHead > MaxSection && s.err == nil {
		s.err = fmt.Errorf("a section of %d bytes: at most %d are written", len(b)-sectionHead, MaxSection)
	}
	binary.LittleEndian.PutUint16(b, uint16(k))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-sectionHead))
	b = binary.LittleEndian.AppendUint64(b, xxh3.Hash(b))
	s.write(b)
	s.buf = b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// Registrations writes rs, before any stream.
func (s *Writer) Registrations(rs []Registration) {
	for len(rs) > 0 {
		b := s.begin()
		for len(rs) > 0 && len(b) < flushBytes {
			b = appendRegistration(b, &rs[0])
			rs = rs[1:]
		}
		s.end(kindRegistrations, b)
	}
}

func appendRegistration(b []byte, r *Registration) []byte {
	flags := byte(0)
	if r.Number {
		flags = 1
	}
	b = append(b, flags)
	for _, text := range r.texts() {
		b = appendText(b, *text)
	}
	for _, n := range r.numbers() {
		b = binary.AppendUvarint(b, uint64(*n))
	}
	b = binary.AppendUvarint(b, uint64(len(r.Live)))
	for _, rank := range r.Live {
		b = binary.AppendUvarint(b, uint64(rank))
	}
	return b
}

// texts and numbers are r's fields in their order.
func (r *Registration) texts() []*string {
	return []*string{&r.Instance, &r.Endpoint, &r.ReplayEndpoint, &r.Model, &r.RoutingGroup, &r.Tenant, &r.Engine, &r.Source}
}

func (r *Registration) numbers() []*int { return []*int{&r.BlockSize, &r.Rank, &r.Ranks} }

// Peers writes the addresses of other hosts, before any stream.
func (s *Writer) Peers(urls []string) {
	if len(urls) == 0 {
		return
	}
	b := s.begin()
	for _, u := range urls {
		b = appendText(b, u)
	}
	s.end(kindPeers, b)
}

// Stream writes one stream.
func (s *Writer) Stream(st *Stream) error {
	b := s.begin()
	flags := byte(0)
	if st.HasSeq {
		flags = 1
	}
	b = append(b, flags, byte(st.Faults))
	b = binary.AppendUvarint(b, uint64(st.Registration))
	b = binary.AppendUvarint(b, uint64(st.Rank))
	b = binary.AppendUvarint(b, st.Epoch)
	b = binary.AppendUvarint(b, st.LastSeq)
	b = binary.LittleEndian.AppendUint64(b, st.LastSum)
	b = appendText(b, st.Why[:min(len(st.Why), maxText)])
	b = binary.AppendUvarint(b, uint64(len(st.Memory)))
	b = binary.AppendUvarint(b, uint64(len(st.Relay)))
	s.end(kindStream, append(append(b, st.Memory...), st.Relay...))
	s.content(&st.Content)
	s.orphans(st.Content.Orphans)
	b = binary.AppendUvarint(s.begin(), uint64(len(st.Content.Hashes)))
	b = binary.AppendUvarint(b, uint64(len(st.Content.Copies)))
	b = binary.AppendUvarint(b, uint64(len(st.Content.Orphans)))
	s.end(kindStreamEnd, b)
	s.streams++
	return s.err
}

// Tags of a part of a content: what its first position lies below, and whether each
// position has one copy, all alike.
const (
	partFollows = 0 // the position before
	partRoot    = 1 // nothing: a content seed follows
	partBelow   = 2 // another position: its number follows
	partParent  = 3 // mask of these
	partAlike   = 4
)

// content writes c's positions.
func (s *Writer) content(c *shard.Content) {
	b := s.begin()
	for i, st := range c.Stretches {
		for at, end := st.First, c.End(i); at < end; {
			n, alike := alikeFrom(c, at, min(end, at+maxPart))
			tag := byte(partFollows)
			if at == st.First {
				tag = partBelow
				if st.Parent < 0 {
					tag = partRoot
				}
			}
			if alike {
				tag |= partAlike
			}
			b = append(b, tag)
			switch tag & partParent {
			case partRoot:
				b = binary.LittleEndian.AppendUint64(b, uint64(st.Namespace))
			case partBelow:
				b = binary.AppendUvarint(b, uint64(st.Parent))
			}
			b = appendPart(b, c, at, n, alike)
			at += n
			if len(b) >= flushBytes {
				s.end(kindContent, b)
				b = s.begin()
			}
		}
	}
	if len(b) > sectionHead {
		s.end(kindContent, b)
	}
}

// alikeFrom returns how many positions from at on, up to end, have one copy each, all
// alike; or, where at has none or several, how many follow before such a stretch.
func alikeFrom(c *shard.Content, at, end int) (n int, alike bool) {
	one := func(i int) (cp shard.Copy, ok bool) {
		copies := c.CopiesOf(i)
		if len(copies) != 1 || copies[0].Count != 1 {
			return cp, false
		}
		return copies[0], true
	}
	first, alike := one(at)
	for i := at + 1; i < end; i++ {
		cp, ok := one(i)
		if ok != alike || alike && (cp.Tier != first.Tier || cp.Group != first.Group) {
			return i - at, alike
		}
	}
	return end - at, alike
}

// appendPart appends n positions from at on.
func appendPart(b []byte, c *shard.Content, at, n int, alike bool) []byte {
	b = binary.AppendUvarint(b, uint64(n))
	for _, h := range c.Hashes[at : at+n] {
		b = binary.LittleEndian.AppendUint64(b, uint64(h))
	}
	if alike {
		first := c.CopiesOf(at)[0]
		b = append(b, byte(first.Tier), first.Group)
		for i := range n {
			b = binary.LittleEndian.AppendUint64(b, uint64(c.CopiesOf(at + i)[0].Engine))
		}
		return b
	}
	for i := range n {
		copies := c.CopiesOf(at + i)
		b = binary.AppendUvarint(b, uint64(len(copies)))
		for _, cp := range copies {
			b = binary.LittleEndian.AppendUint64(b, uint64(cp.Engine))
			b = append(b, byte(cp.Tier), cp.Group)
			b = binary.AppendUvarint(b, uint64(cp.Count))
		}
	}
	return b
}

// Flags of an orphan.
const (
	orphanBare   = 1 << 0
	orphanStated = 1 << 1
	orphanParent = 1 << 2
	orphanHashed = 1 << 3 // it has content hashes: no placeholder
	orphanOut    = 1 << 4 // some blocks were taken out
	orphanFlags  = 1<<5 - 1
)

// orphans writes what waits for a parent.
func (s *Writer) orphans(all []shard.Orphan) {
	b := s.begin()
	for i := range all {
		b = appendOrphan(b, &all[i])
		if len(b) >= flushBytes {
			s.end(kindOrphans, b)
			b = s.begin()
		}
	}
	if len(b) > sectionHead {
		s.end(kindOrphans, b)
	}
}

func appendOrphan(b []byte, o *shard.Orphan) []byte {
	st := &o.Store
	flags := byte(0)
	for _, f := range []struct {
		on   bool
		flag byte
	}{
		{o.Bare, orphanBare},
		{st.Stated, orphanStated},
		{st.HasParent, orphanParent},
		{len(st.Contents) > 0, orphanHashed},
		{o.Out != nil, orphanOut},
	} {
		if f.on {
			flags |= f.flag
		}
	}
	b = append(b, flags, byte(st.Tier), st.Group)
	b = binary.LittleEndian.AppendUint64(b, uint64(st.Namespace))
	b = binary.LittleEndian.AppendUint64(b, uint64(st.Parent))
	b = binary.AppendUvarint(b, uint64(len(st.Engines)))
	for _, e := range st.Engines {
		b = binary.LittleEndian.AppendUint64(b, uint64(e))
	}
	for _, h := range st.Contents {
		b = binary.LittleEndian.AppendUint64(b, uint64(h))
	}
	for _, out := range o.Out {
		bit := byte(0)
		if out {
			bit = 1
		}
		b = append(b, bit)
	}
	return b
}

// Close writes the end. A state without it is refused.
func (s *Writer) Close() error {
	b := s.begin()
	b = binary.LittleEndian.AppendUint64(b, s.bytes)
	b = binary.LittleEndian.AppendUint64(b, s.whole.Sum64())
	s.end(kindEnd, binary.AppendUvarint(b, s.streams))
	return s.err
}
