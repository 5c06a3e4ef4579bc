// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Model is one model that a server knows workers of.
type Model struct {
	Number              uint64 // never another's
	Tenant, Name, Group string
	BlockSize           int // tokens
}

// Holder is one rank of one instance of a model.
type Holder struct {
	Holder   uint32 // never another's
	Rank     int
	Model    uint64
	Order    uint64 // of the instance's registration
	Instance string
	Number   bool // the instance's id was given as an integer
}

// Table is what the numbers in requests and replies mean. It only ever changes as a
// whole; versions grow within one generation.
type Table struct {
	Version uint64
	Models  []Model  // ascending by number
	Holders []Holder // ascending by holder
}

// Of a table frame: its version (u64), 1 for a whole table or 0 for what changed (u8),
// models that are gone, models that are new, holders that are gone, holders that are
// new, each a count (u32) and so many entries. Texts are a length (u32) and bytes.

// delta appends what leads from old to t; from nothing where old is nil.
func (t *Table) delta(b []byte, old *Table) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, t.Version)
	whole := byte(0)
	if old == nil {
		whole, old = 1, &Table{}
	}
	b = append(b, whole)
	b = appendChanges(b, old.Models, t.Models, func(m *Model) uint64 { return m.Number }, func(b []byte, m *Model) []byte {
		b = le.AppendUint64(b, m.Number)
		b = le.AppendUint32(b, uint32(m.BlockSize))
		return appendText(appendText(appendText(b, m.Tenant), m.Name), m.Group)
	})
	return appendChanges(b, old.Holders, t.Holders, func(h *Holder) uint64 { return uint64(h.Holder) }, func(b []byte, h *Holder) []byte {
		b = le.AppendUint64(b, uint64(h.Holder))
		b = le.AppendUint32(b, uint32(h.Rank))
		b = le.AppendUint64(b, h.Model)
		b = le.AppendUint64(b, h.Order)
		number := byte(0)
		if h.Number {
			number = 1
		}
		return appendText(append(b, number), h.Instance)
	})
}

// appendChanges appends which of old are gone and which of now are new; both are
// ascending by key, and what a key stands for never changes.
func appendChanges[T any](b []byte, old, now []T, key func(*T) uint64, entry func([]byte, *T) []byte) []byte {
	le := binary.LittleEndian
	pass := func(from, but []T, entry func([]byte, *T) []byte) {
		at, n, k := len(b), uint32(0), 0
		b = le.AppendUint32(b, 0)
		for i := range from {
			for k < len(but) && key(&but[k]) < key(&from[i]) {
				k++
			}
			if k < len(but) && key(&but[k]) == key(&from[i]) {
				continue
			}
			b = entry(b, &from[i])
			n++
		}
		le.PutUint32(b[at:], n)
	}
	pass(old, now, func(b []byte, e *T) []byte { return le.AppendUint64(b, key(e)) })
	pass(now, old, entry)
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

// Change is a table frame, taken apart.
type Change struct {
	Version     uint64
	Whole       bool // what was known before is void
	GoneModels  []uint64
	Models      []Model
	GoneHolders []uint64
	Holders     []Holder
}

// maxText bounds one text of a table, in bytes.
const maxText = 1 << 20

var errTable = errors.New("shm: the server's table cannot be read")

// parseChange reads a table frame.
func parseChange(b []byte) (*Change, error) {
	r := reader{b: b}
	c := &Change{Version: r.u64(), Whole: r.u8() != 0}
	for range r.count(8) {
		c.GoneModels = append(c.GoneModels, r.u64())
	}
	for range r.count(24) {
		m := Model{Number: r.u64(), BlockSize: int(r.u32())}
		m.Tenant, m.Name, m.Group = r.text(), r.text(), r.text()
		if m.BlockSize < 1 {
			r.bad = true
		}
		c.Models = append(c.Models, m)
	}
	for range r.count(8) {
		c.GoneHolders = append(c.GoneHolders, r.u64())
	}
	for range r.count(33) {
		n := r.u64()
		if n > 1<<32-1 {
			r.bad = true
		}
		h := Holder{Holder: uint32(n), Rank: int(int32(r.u32())), Model: r.u64(), Order: r.u64(), Number: r.u8() != 0}
		h.Instance = r.text()
		c.Holders = append(c.Holders, h)
	}
	if r.bad || len(r.b) > 0 {
		return nil, errTable
	}
	return c, nil
}

// reader takes numbers and texts off the front of b.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) text() string {
	n := r.u32()
	if n > maxText {
		r.bad = true
		return ""
	}
	return string(r.take(int(n)))
}

// count reads how many entries follow, of at least least bytes each.
func (r *reader) count(least int) int {
	n := int(r.u32())
	if n > len(r.b)/least {
		r.bad = true
		return 0
	}
	return n
}

// String says how much c changes, for a log.
func (c *Change) String() string {
	return fmt.Sprintf("version %d: models +%d -%d, holders +%d -%d", c.Version, len(c.Models), len(c.GoneModels), len(c.Holders), len(c.GoneHolders))
}
