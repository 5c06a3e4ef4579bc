// SPDX-License-Identifier: Apache-2.0

package enginehash

import "encoding/binary"

// The opcodes of Python's pickle protocol 5 that occur.
const (
	opProto           = 0x80
	opFrame           = 0x95
	opStop            = '.'
	opNone            = 'N'
	opMark            = '('
	opTuple           = 't'
	opTuple1          = 0x85 // 2 and 3 follow
	opEmptyTuple      = ')'
	opMemoize         = 0x94
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opShortBinUnicode = 0x8c
	opBinUnicode      = 'X'
	opShortBinBytes   = 'C'
	opBinBytes        = 'B'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinInt          = 'J'
	opLong1           = 0x8a
)

// frameAt is where the body begins: after the protocol and the frame's header.
const frameAt = 2 + 1 + 8

// pickler writes Python's pickles of a block's tuple. Every string, bytes and
// tuple takes the next memo slot as it is written; an object that was written
// before becomes a reference to its slot.
type pickler struct {
	buf  []byte
	memo int
	mm   int   // slot of the word of items; -1: not written yet
	ids  []int // slots of the identifiers of the keys written so far
}

// block returns the pickle of a block's tuple, valid until the next call.
func (p *pickler) block(above []byte, b *Block) []byte {
	if cap(p.buf) < frameAt {
		p.buf = make([]byte, 0, 512)
	}
	p.buf, p.memo, p.mm, p.ids = p.buf[:frameAt], 0, -1, p.ids[:0]
	p.blob(above)
	p.begin(len(b.Tokens))
	p.ints(b.Tokens)
	p.end(len(b.Tokens))
	if b.Lookahead == nil {
		p.keys(b)
	} else {
		p.begin(1 + len(b.Lookahead))
		p.keys(b)
		p.ints(b.Lookahead)
		p.end(1 + len(b.Lookahead))
	}
	p.end(3)
	return p.framed()
}

// framed ends the pickle. Its frame's length counts the stop.
func (p *pickler) framed() []byte {
	p.buf = append(p.buf, opStop)
	p.buf[0], p.buf[1], p.buf[2] = opProto, 5, opFrame
	binary.LittleEndian.PutUint64(p.buf[3:], uint64(len(p.buf)-frameAt))
	return p.buf
}

func (p *pickler) keys(b *Block) {
	if len(b.Keys) == 0 {
		p.buf = append(p.buf, opNone)
		return
	}
	p.begin(len(b.Keys))
	for i := range b.Keys {
		p.key(b, i)
	}
	p.end(len(b.Keys))
}

func (p *pickler) key(b *Block, i int) {
	k := &b.Keys[i]
	switch k.Kind {
	case KeyLoRA:
		p.text(k.word())
		p.id(b, i)
		p.text(k.Path)
		p.end(3)
	case KeyItem:
		if p.mm < 0 {
			p.mm = p.memo
			p.text(k.word())
		} else {
			p.get(p.mm)
		}
		p.id(b, i)
		p.int(k.Offset)
		p.end(3)
	case KeySalt:
		p.text(k.word())
		p.id(b, i)
		p.end(2)
	case KeyEmbeds:
		p.text(k.word())
		p.blob(k.Blob)
		p.end(2)
		p.ids = append(p.ids, -1)
	case KeyBareText:
		p.id(b, i)
	case KeyBareItem:
		p.id(b, i)
		p.int(k.Offset)
		p.end(2)
	case KeyBareBytes:
		p.blob(k.Blob)
		p.ids = append(p.ids, -1)
	case KeyBareNumber:
		p.int(k.Offset)
		p.ids = append(p.ids, -1)
	}
}

// id writes the identifier of key i, or a reference to an equal one of the same
// kind where they are one object.
func (p *pickler) id(b *Block, i int) {
	k := &b.Keys[i]
	if b.Shared {
		for j, slot := range p.ids {
			if slot >= 0 && b.Keys[j].Kind == k.Kind && b.Keys[j].Name == k.Name {
				p.get(slot)
				p.ids = append(p.ids, slot)
				return
			}
		}
	}
	p.ids = append(p.ids, p.memo)
	p.text(k.Name)
}

func (p *pickler) memoize() {
	p.buf = append(p.buf, opMemoize)
	p.memo++
}

func (p *pickler) get(slot int) {
	if slot < 256 {
		p.buf = append(p.buf, opBinGet, byte(slot))
		return
	}
	p.buf = binary.LittleEndian.AppendUint32(append(p.buf, opLongBinGet), uint32(slot))
}

// begin begins a tuple of n; its items follow, then end.
func (p *pickler) begin(n int) {
	if n > 3 {
		p.buf = append(p.buf, opMark)
	}
}

func (p *pickler) end(n int) {
	switch {
	case n == 0: // the one empty tuple is not memoized
		p.buf = append(p.buf, opEmptyTuple)
		return
	case n > 3:
		p.buf = append(p.buf, opTuple)
	default:
		p.buf = append(p.buf, byte(opTuple1-1+n))
	}
	p.memoize()
}

func (p *pickler) text(s string) {
	if len(s) < 256 {
		p.buf = append(p.buf, opShortBinUnicode, byte(len(s)))
	} else {
		p.buf = binary.LittleEndian.AppendUint32(append(p.buf, opBinUnicode), uint32(len(s)))
	}
	p.buf = append(p.buf, s...)
	p.memoize()
}

func (p *pickler) blob(b []byte) {
	if len(b) < 256 {
		p.buf = append(p.buf, opShortBinBytes, byte(len(b)))
	} else {
		p.buf = binary.LittleEndian.AppendUint32(append(p.buf, opBinBytes), uint32(len(b)))
	}
	p.buf = append(p.buf, b...)
	p.memoize()
}

func (p *pickler) ints(v []uint32) {
	b := p.buf
	for _, t := range v {
		switch {
		case t < 1<<8:
			b = append(b, opBinInt1, byte(t))
		case t < 1<<16:
			b = append(b, opBinInt2, byte(t), byte(t>>8))
		case t < 1<<31:
			b = append(b, opBinInt, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
		default:
			b = append(b, opLong1, 5, byte(t), byte(t>>8), byte(t>>16), byte(t>>24), 0)
		}
	}
	p.buf = b
}

func (p *pickler) int(v int64) {
	if v >= 0 && v < 1<<32 {
		p.ints([]uint32{uint32(v)})
		return
	}
	if v >= -1<<31 && v < 0 {
		p.buf = binary.LittleEndian.AppendUint32(append(p.buf, opBinInt), uint32(v))
		return
	}
	n := 5 // as many bytes as the number and its sign need
	for n < 8 && v>>(8*n-1) != 0 && v>>(8*n-1) != -1 {
		n++
	}
	p.buf = append(p.buf, opLong1, byte(n))
	p.buf = append(p.buf, binary.LittleEndian.AppendUint64(nil, uint64(v))[:n]...)
}
