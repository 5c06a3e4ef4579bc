// SPDX-License-Identifier: Apache-2.0

package wire

// Before this file: a payload as a socket delivered it. After it: decode.go,
// which asks for one value after the other.

import (
	"encoding/binary"
	"math"
)

// The msgpack formats, by first byte.
// Source: github.com/msgpack/msgpack, spec.md.
const (
	fixMap   = 0x80
	fixArray = 0x90
	fixStr   = 0xa0
	nilByte  = 0xc0
	unused   = 0xc1
	bin8     = 0xc4
	ext8     = 0xc7
	float32b = 0xca
	float64b = 0xcb
	uint8b   = 0xcc
	uint16b  = 0xcd
	uint32b  = 0xce
	uint64b  = 0xcf
	int8b    = 0xd0
	int16b   = 0xd1
	int32b   = 0xd2
	int64b   = 0xd3
	fixExt1  = 0xd4
	str8     = 0xd9
	array16  = 0xdc
	array32  = 0xdd
	map16    = 0xde
	map32    = 0xdf
	fixNeg   = 0xe0
)

// reader is a cursor over one payload.
//
// Two kinds of failure are told apart. A value of another type than asked for:
// the method returns false and the cursor's place means nothing, so the caller
// must rewind. Bytes that are no msgpack at all (cut short, the byte that no
// format uses, a length beyond the end): the same, and err is set for good.
//
// No method allocates, except when it sets err. A length is compared with the
// bytes that are left before it is returned, so that whoever allocates by it
// allocates no more than the payload can hold.
type reader struct {
	buf []byte
	pos int
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = malformed(format, args...)
	}
	r.pos = len(r.buf)
}

func (r *reader) left() int { return len(r.buf) - r.pos }

// next returns the first byte of the next value and steps over it.
func (r *reader) next() (byte, bool) {
	if r.pos >= len(r.buf) {
		r.fail("payload ends at byte %d, where a value must begin", len(r.buf))
		return 0, false
	}
	c := r.buf[r.pos]
	r.pos++
	return c, true
}

// take returns the next n bytes and steps over them.
func (r *reader) take(n int) ([]byte, bool) {
	if n > r.left() {
		r.fail("a value of %d bytes at byte %d, but %d bytes are left", n, r.pos, r.left())
		return nil, false
	}
	b := r.buf[r.pos : r.pos+n]
	r.pos += n
	return b, true
}

// uint reads a big-endian unsigned integer of 1, 2, 4 or 8 bytes.
func (r *reader) uint(width int) (uint64, bool) {
	b, ok := r.take(width)
	if !ok {
		return 0, false
	}
	switch width {
	case 1:
		return uint64(b[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), true
	}
	return binary.BigEndian.Uint64(b), true
}

// null steps over nil if nil comes next.
func (r *reader) null() bool {
	if r.pos < len(r.buf) && r.buf[r.pos] == nilByte {
		r.pos++
		return true
	}
	return false
}

// count reads a length of the given width and checks it: each of the n items
// to come takes at least perItem bytes.
func (r *reader) count(width, perItem int) (int, bool) {
	at := r.pos - 1
	v, ok := r.uint(width)
	if !ok {
		return 0, false
	}
	return r.checked(v, perItem, at)
}

func (r *reader) checked(v uint64, perItem, at int) (int, bool) {
	if v > uint64(r.left()/perItem) {
		r.fail("a length of %d at byte %d, but %d bytes are left", v, at, r.left())
		return 0, false
	}
	return int(v), true
}

// array reads an array's header and returns its number of elements.
func (r *reader) array() (int, bool) {
	c, ok := r.next()
	switch {
	case !ok:
		return 0, false
	case c&0xf0 == fixArray:
		return r.checked(uint64(c&0x0f), 1, r.pos-1)
	case c == array16:
		return r.count(2, 1)
	case c == array32:
		return r.count(4, 1)
	}
	return 0, false
}

// object reads a map's header and returns its number of pairs.
func (r *reader) object() (int, bool) {
	c, ok := r.next()
	switch {
	case !ok:
		return 0, false
	case c&0xf0 == fixMap:
		return r.checked(uint64(c&0x0f), 2, r.pos-1)
	case c == map16:
		return r.count(2, 2)
	case c == map32:
		return r.count(4, 2)
	}
	return 0, false
}

// text reads a string; the bytes alias the payload and may be no UTF-8.
func (r *reader) text() ([]byte, bool) {
	c, ok := r.next()
	var n int
	switch {
	case !ok:
		return nil, false
	case c&0xe0 == fixStr:
		n = int(c & 0x1f)
	case c >= str8 && c <= str8+2:
		n, ok = r.count(1<<(c-str8), 1)
	default:
		return nil, false
	}
	if !ok {
		return nil, false
	}
	return r.take(n)
}

// binary reads a byte string, aliasing the payload.
func (r *reader) binary() ([]byte, bool) {
	c, ok := r.next()
	if !ok || c < bin8 || c > bin8+2 {
		return nil, false
	}
	n, ok := r.count(1<<(c-bin8), 1)
	if !ok {
		return nil, false
	}
	return r.take(n)
}

// integer reads any integer format. neg tells that v is the two's complement
// of a negative number.
func (r *reader) integer() (v uint64, neg, ok bool) {
	c, ok := r.next()
	switch {
	case !ok:
		return 0, false, false
	case c < fixMap:
		return uint64(c), false, true
	case c >= fixNeg:
		return uint64(int64(int8(c))), true, true
	case c >= uint8b && c <= uint64b:
		v, ok = r.uint(1 << (c - uint8b))
		return v, false, ok
	case c >= int8b && c <= int64b:
		width := 1 << (c - int8b)
		v, ok = r.uint(width)
		shift := uint(64 - 8*width)
		s := int64(v<<shift) >> shift
		return uint64(s), s < 0, ok
	}
	return 0, false, false
}

// int64 reads an integer that fits an int64.
func (r *reader) int64() (int64, bool) {
	v, neg, ok := r.integer()
	if !ok || (!neg && v > math.MaxInt64) {
		return 0, false
	}
	return int64(v), true
}

// natural reads an integer from 0 to 2^31-1.
func (r *reader) natural() (int, bool) {
	v, neg, ok := r.integer()
	if !ok || neg || v > math.MaxInt32 {
		return 0, false
	}
	return int(v), true
}

// number reads a float or an integer.
func (r *reader) number() (float64, bool) {
	if r.pos < len(r.buf) {
		switch r.buf[r.pos] {
		case float32b:
			r.pos++
			v, ok := r.uint(4)
			return float64(math.Float32frombits(uint32(v))), ok
		case float64b:
			r.pos++
			v, ok := r.uint(8)
			return math.Float64frombits(v), ok
		}
	}
	v, neg, ok := r.integer()
	if neg {
		return float64(int64(v)), ok
	}
	return float64(v), ok
}

// skip steps over one value, whatever it is and however deep it nests. It
// counts the values that are still to come instead of recursing, and gives up
// as soon as they cannot fit into the bytes left.
func (r *reader) skip() bool {
	for todo := 1; todo > 0; todo-- {
		c, ok := r.next()
		if !ok {
			return false
		}
		kind := skips[c]
		switch kind.how {
		case skipBytes:
			_, ok = r.take(int(kind.n))
		case skipSized:
			var n int
			if n, ok = r.count(int(kind.n), 1); ok {
				_, ok = r.take(n + int(kind.more))
			}
		case skipFixed:
			todo += int(kind.n)
		case skipItems:
			var n int
			n, ok = r.count(int(kind.n), int(kind.more))
			todo += n * int(kind.more)
		case skipNone:
			r.fail("byte 0x%02x at %d begins no value", c, r.pos-1)
			ok = false
		}
		if !ok {
			return false
		}
		if todo-1 > r.left() {
			r.fail("%d values to come at byte %d, but %d bytes are left", todo-1, r.pos, r.left())
			return false
		}
	}
	return true
}

// The ways to step over a value, once its first byte is known.
const (
	skipBytes = iota // n bytes follow
	skipSized        // a length of n bytes, then that many bytes and more
	skipFixed        // n values follow
	skipItems        // a count of n bytes, then more values for each
	skipNone         // no value
)

type skipKind struct{ how, n, more uint8 }

var skips = func() (t [256]skipKind) {
	for c := range t {
		switch b := uint8(c); {
		case b < fixMap, b >= fixNeg:
			t[c] = skipKind{skipBytes, 0, 0}
		case b < fixArray:
			t[c] = skipKind{skipFixed, 2 * (b & 0x0f), 0}
		case b < fixStr:
			t[c] = skipKind{skipFixed, b & 0x0f, 0}
		case b < nilByte:
			t[c] = skipKind{skipBytes, b & 0x1f, 0}
		case b == unused:
			t[c] = skipKind{skipNone, 0, 0}
		case b < bin8: // nil, false, true
			t[c] = skipKind{skipBytes, 0, 0}
		case b < ext8: // bin
			t[c] = skipKind{skipSized, 1 << (b - bin8), 0}
		case b < float32b: // ext: one more byte for its type
			t[c] = skipKind{skipSized, 1 << (b - ext8), 1}
		case b == float32b, b == float64b:
			t[c] = skipKind{skipBytes, 4 << (b - float32b), 0}
		case b < int8b:
			t[c] = skipKind{skipBytes, 1 << (b - uint8b), 0}
		case b < fixExt1:
			t[c] = skipKind{skipBytes, 1 << (b - int8b), 0}
		case b < str8:
			t[c] = skipKind{skipBytes, 1<<(b-fixExt1) + 1, 0}
		case b < array16:
			t[c] = skipKind{skipSized, 1 << (b - str8), 0}
		case b < map16:
			t[c] = skipKind{skipItems, 2 << (b - array16), 1}
		default:
			t[c] = skipKind{skipItems, 2 << (b - map16), 2}
		}
	}
	return t
}()
