// SPDX-License-Identifier: Apache-2.0

// Before: a file, or another host. After: a host that takes it up.

package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// Taker is told a state's parts in their order. An error ends the reading and is
// what Read returns.
type Taker interface {
	Head(h Head) error
	// Registrations and Peers are told once each, before any stream.
	Registrations(rs []Registration) error
	Peers(urls []string) error
	// Stream may keep st.
	Stream(st *Stream) error
}

// Checked is a Taker that takes everything and keeps nothing: to learn whether a state
// is good before anything of it is used.
type Checked struct{ Streams int }

// Head implements [Taker].
func (*Checked) Head(Head) error { return nil }

// Registrations implements [Taker].
func (*Checked) Registrations([]Registration) error { return nil }

// Peers implements [Taker].
func (*Checked) Peers([]string) error { return nil }

// Stream implements [Taker].
func (c *Checked) Stream(*Stream) error {
	c.Streams++
	return nil
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// Read reads one state to its end, and tells t what is in it. What was told before an
// error is of no use: whoever applies it reads the state once with [Checked].
//
// Errors: ErrRefused where the state itself is wrong, with the reason in one line;
// else the source's, or t's.
// Cost: one stream's content in memory at a time, where t keeps none.
func Read(r io.Reader, t Taker) error {
	d := &reader{r: r, t: t, whole: xxh3.New()}
	if err := d.fileHead(); err != nil {
		return err
	}
	for !d.ended {
		if err := d.section(); err != nil {
			return err
		}
	}
	var more [1]byte
	switch n, err := io.ReadFull(r, more[:]); {
	case n > 0:
		return refused("there is more behind the end")
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// reader is one reading.
type reader struct {
	r     io.Reader
	t     Taker
	whole *xxh3.Hasher
	bytes uint64
	buf   []byte // a section

	last  kind // read so far
	ended bool

	registrations []Registration
	told          bool // the registrations and peers
	peers         []string
	streams       uint64
	seen          map[[2]int]bool // registration and rank

	stream *Stream // whose content is being read; nil: none
}

func (d *reader) full(b []byte, what string) error {
	switch _, err := io.ReadFull(d.r, b); {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return refused("it is cut short after %d bytes, in %s", d.bytes, what)
	case err != nil:
		return err
	}
	return nil
}

func (d *reader) fileHead() error {
	b := make([]byte, fileHead)
	if err := d.full(b, "its first bytes"); err != nil {
		return err
	}
	version, zero := binary.LittleEndian.Uint32(b[len(magic):]), binary.LittleEndian.Uint32(b[len(magic)+4:])
	switch {
	case string(b[:len(magic)]) != magic:
		return refused("it is no state of an index host: it begins with %q, not %q", b[:len(magic)], magic)
	case version != Version:
		return refused("its version is %d, this build reads %d", version, Version)
	case zero != 0:
		return refused("its head is damaged")
	}
	d.took(b)
	return nil
}

func (d *reader) took(b []byte) {
	_, _ = d.whole.Write(b) // a hash takes everything
	d.bytes += uint64(len(b))
}

// section reads the next section and takes it.
func (d *reader) section() error {
	d.buf = slices.Grow(d.buf[:0], sectionHead)[:sectionHead]
	if err := d.full(d.buf, "a section's head"); err != nil {
		return err
	}
	k, zero := kind(binary.LittleEndian.Uint16(d.buf)), binary.LittleEndian.Uint16(d.buf[2:])
	length := binary.LittleEndian.Uint32(d.buf[4:])
	if zero != 0 || length > MaxSection {
		return refused("the section at byte %d is damaged", d.bytes)
	}
	// The word of a damaged length is taken for no more than 64 KiB in advance.
	for rest := int(length) + sumBytes; rest > 0; {
		n := min(rest, max(64<<10, len(d.buf)))
		from := len(d.buf)
		d.buf = slices.Grow(d.buf, n)[:from+n]
		if err := d.full(d.buf[from:], "a section"); err != nil {
			return err
		}
		rest -= n
	}
	body := d.buf[:len(d.buf)-sumBytes]
	if binary.LittleEndian.Uint64(d.buf[len(body):]) != xxh3.Hash(body) {
		return refused("the checksum of the section at byte %d is wrong", d.bytes)
	}
	at, before, sum := d.bytes, d.bytes, d.whole.Sum64()
	d.took(d.buf)
	c := &cursor{b: body[sectionHead:]}
	if err := d.take(k, c, before, sum); err != nil {
		if !errors.Is(err, errFormat) {
			return err
		}
		return refused("the section at byte %d: %w", at, err)
	}
	d.last = k
	return nil
}

// follows says which sections may come after which.
var follows = map[kind][]kind{
	kindHead:          {0},
	kindRegistrations: {kindHead, kindRegistrations},
	kindPeers:         {kindHead, kindRegistrations},
	kindStream:        {kindHead, kindRegistrations, kindPeers, kindStreamEnd},
	kindContent:       {kindStream, kindContent},
	kindOrphans:       {kindStream, kindContent, kindOrphans},
	kindStreamEnd:     {kindStream, kindContent, kindOrphans},
	kindEnd:           {kindHead, kindRegistrations, kindPeers, kindStreamEnd},
}

// take takes one section. before and sum are of what came before it.
func (d *reader) take(k kind, c *cursor, before, sum uint64) error {
	if !slices.Contains(follows[k], d.last) {
		return malformed("kind %d after kind %d", k, d.last)
	}
	if k == kindStream || k == kindEnd {
		if err := d.tell(); err != nil {
			return err
		}
	}
	switch k {
	case kindHead:
		h := Head{Written: time.Unix(0, int64(c.u64())), Host: c.u64()}
		if c.bad {
			break
		}
		if err := d.t.Head(h); err != nil {
			return err
		}
	case kindRegistrations:
		d.takeRegistrations(c)
	case kindPeers:
		for !c.done() && len(d.peers) < maxPeers {
			d.peers = append(d.peers, c.text())
		}
	case kindStream:
		d.beginStream(c)
	case kindContent:
		d.takeContent(c)
	case kindOrphans:
		d.takeOrphans(c)
	case kindStreamEnd:
		return d.endStream(c)
	case kindEnd:
		bytes, whole, streams := c.u64(), c.u64(), c.uvarint()
		if !c.whole() || bytes != before || whole != sum || streams != d.streams {
			return malformed("the end is another state's")
		}
		d.ended = true
	}
	if !c.whole() {
		return malformed("kind %d is not as it must be", k)
	}
	return nil
}

// tell tells what comes before the streams, once.
func (d *reader) tell() error {
	if d.told {
		return nil
	}
	d.told, d.seen = true, map[[2]int]bool{}
	return errors.Join(d.t.Registrations(d.registrations), d.t.Peers(d.peers))
}

func (d *reader) takeRegistrations(c *cursor) {
	for !c.done() {
		var r Registration
		flags := c.u8()
		r.Number = flags == 1
		for _, text := range r.texts() {
			*text = c.text()
		}
		for _, n := range r.numbers() {
			*n = c.number()
		}
		live := c.number()
		if flags > 1 || live > maxRanks || len(d.registrations) == maxRegistrations {
			c.bad = true
			return
		}
		for i := 0; i < live && !c.bad; i++ {
			rank := c.number()
			if i > 0 && rank <= r.Live[i-1] {
				c.bad = true
			}
			r.Live = append(r.Live, rank)
		}
		d.registrations = append(d.registrations, r)
	}
}
