// SPDX-License-Identifier: Apache-2.0

// Before: read.go, with a section's payload. After: the stream that it is a part of.

package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// errFormat is what a section's payload is refused with.
var errFormat = errors.New("damaged")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errFormat, fmt.Sprintf(format, args...))
}

// cursor reads a payload. What is not there reads as zeros, and bad stays set.
type cursor struct {
	b   []byte
	bad bool
}

// done reports whether there is no more to read, or no use.
func (c *cursor) done() bool { return c.bad || len(c.b) == 0 }

// whole reports whether all was read and nothing was wrong.
func (c *cursor) whole() bool { return !c.bad && len(c.b) == 0 }

func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.bad, c.b = true, nil
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) u8() byte {
	if b := c.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) uvarint() uint64 {
	n, k := binary.Uvarint(c.b)
	if k <= 0 {
		c.bad, c.b = true, nil
		return 0
	}
	c.b = c.b[k:]
	return n
}

// number is a uvarint that an int32 has.
func (c *cursor) number() int {
	n := c.uvarint()
	if n > math.MaxInt32 {
		c.bad = true
		return 0
	}
	return int(n)
}

func (c *cursor) text() string {
	n := c.number()
	if n > maxText {
		c.bad = true
		return ""
	}
	return string(c.bytes(n))
}

// blob is n bytes of the caller's own.
func (c *cursor) blob(n int) []byte {
	if n == 0 {
		return nil
	}
	return slices.Clone(c.bytes(n))
}

func (d *reader) beginStream(c *cursor) {
	st := &Stream{}
	flags := c.u8()
	st.Position = feed.Position{HasSeq: flags == 1, Faults: feed.Fault(c.u8())}
	st.Registration, st.Rank = c.number(), c.number()
	st.Epoch, st.LastSeq, st.LastSum, st.Why = c.uvarint(), c.uvarint(), c.u64(), c.text()
	memory, relay := c.number(), c.number()
	st.Memory, st.Relay = c.blob(memory), c.blob(relay)
	key := [2]int{st.Registration, st.Rank}
	if flags > 1 || st.Registration >= len(d.registrations) || d.seen[key] ||
		!slices.Contains(d.registrations[st.Registration].Live, st.Rank) {
		c.bad = true
		return
	}
	d.seen[key] = true
	d.stream = st
	d.streams++
}

// takeContent takes parts of chains.
func (d *reader) takeContent(c *cursor) {
	content := &d.stream.Content
	for !c.done() {
		tag := c.u8()
		first := len(content.Hashes)
		st := shard.Stretch{First: first, Parent: -1}
		switch tag & partParent {
		case partFollows:
			c.bad = c.bad || first == 0
		case partRoot:
			st.Namespace = kv.Namespace(c.u64())
		case partBelow:
			st.Parent = c.number()
			c.bad = c.bad || st.Parent >= first
			if !c.bad {
				st.Namespace = namespaceOf(content, st.Parent)
			}
		default:
			c.bad = true
		}
		n := c.number()
		hashes := c.bytes(8 * n)
		if c.bad || n == 0 || n > maxPart || tag > partAlike|partParent {
			c.bad = true
			return
		}
		if tag&partParent != partFollows {
			content.Stretches = append(content.Stretches, st)
		}
		for ; len(hashes) > 0; hashes = hashes[8:] {
			content.Hashes = append(content.Hashes, kv.ContentHash(binary.LittleEndian.Uint64(hashes)))
		}
		takeCopies(c, content, n, tag&partAlike != 0)
	}
}

// namespaceOf is the namespace of a position of c.
func namespaceOf(c *shard.Content, position int) kv.Namespace {
	i, ok := slices.BinarySearchFunc(c.Stretches, position, func(st shard.Stretch, p int) int { return st.First - p })
	if !ok {
		i--
	}
	return c.Stretches[i].Namespace
}

// takeCopies takes the copies of the last n positions.
func takeCopies(c *cursor, content *shard.Content, n int, alike bool) {
	if alike {
		tier, group := kv.Tier(c.u8()), c.u8()
		engines := c.bytes(8 * n)
		c.bad = c.bad || tier >= kv.LocalTiers
		for ; len(engines) > 0; engines = engines[8:] {
			content.Copies = append(content.Copies, shard.Copy{
				Engine: kv.EngineHash(binary.LittleEndian.Uint64(engines)), Tier: tier, Group: group, Count: 1,
			})
			content.Ends = append(content.Ends, uint32(len(content.Copies)))
		}
		return
	}
	for range n {
		for range c.number() {
			cp := shard.Copy{Engine: kv.EngineHash(c.u64()), Tier: kv.Tier(c.u8()), Group: c.u8()}
			count := c.uvarint()
			if c.bad || cp.Tier >= kv.LocalTiers || count == 0 || count > math.MaxUint32 {
				c.bad = true
				return
			}
			cp.Count = uint32(count)
			content.Copies = append(content.Copies, cp)
		}
		content.Ends = append(content.Ends, uint32(len(content.Copies)))
	}
}

// takeOrphans takes what waits for a parent.
func (d *reader) takeOrphans(c *cursor) {
	for !c.done() {
		var o shard.Orphan
		st := &o.Store
		flags := c.u8()
		st.Tier, st.Group = kv.Tier(c.u8()), c.u8()
		st.Namespace, st.Parent = kv.Namespace(c.u64()), kv.EngineHash(c.u64())
		n := c.number()
		engines := c.bytes(8 * n)
		var contents, out []byte
		if flags&orphanHashed != 0 {
			contents = c.bytes(8 * n)
		}
		if flags&orphanOut != 0 {
			out = c.bytes(n)
		}
		if c.bad || n == 0 || flags > orphanFlags || st.Tier >= kv.LocalTiers {
			c.bad = true
			return
		}
		o.Bare, st.Stated, st.HasParent = flags&orphanBare != 0, flags&orphanStated != 0, flags&orphanParent != 0
		for ; len(engines) > 0; engines = engines[8:] {
			st.Engines = append(st.Engines, kv.EngineHash(binary.LittleEndian.Uint64(engines)))
		}
		for ; len(contents) > 0; contents = contents[8:] {
			st.Contents = append(st.Contents, kv.ContentHash(binary.LittleEndian.Uint64(contents)))
		}
		for _, bit := range out {
			c.bad = c.bad || bit > 1
			o.Out = append(o.Out, bit == 1)
		}
		if o.Valid() != nil {
			c.bad = true
		}
		d.stream.Content.Orphans = append(d.stream.Content.Orphans, o)
	}
}

// endStream takes a stream's end, and tells the stream.
func (d *reader) endStream(c *cursor) error {
	st := d.stream
	positions, copies, orphans := c.uvarint(), c.uvarint(), c.uvarint()
	if !c.whole() || positions != uint64(len(st.Content.Hashes)) || copies != uint64(len(st.Content.Copies)) || orphans != uint64(len(st.Content.Orphans)) {
		return malformed("a stream ends with other numbers than it had")
	}
	d.stream = nil
	return d.t.Stream(st)
}
