// SPDX-License-Identifier: Apache-2.0

// Before: an HTTP handler, with a request's body. After: the query, the
// registration or the call that the body describes.

package jsonscan

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"

	"kindex/internal/lookup"
)

const (
	// MaxNesting bounds how deep unknown values may be nested.
	MaxNesting = 64
	// MaxNameBytes bounds what TextField and IDField read.
	MaxNameBytes = 512
)

// Scanner reads one JSON text from front to back, without building values: the
// integer arrays of a query, thousands of tokens long, go straight into slices.
// It accepts exactly the JSON of RFC 8259 in UTF-8, nested no deeper than
// MaxNesting, and names the field in every refusal.
//
// Concurrency: one goroutine. Cost: no allocation but in refusals.
type Scanner struct {
	b    []byte
	i    int
	strs []byte // strings that had escapes, decoded
	deep int    // levels allowed
}

// Reset begins a text, nested no deeper than MaxNesting.
func (s *Scanner) Reset(b []byte) { s.ResetDeep(b, MaxNesting) }

// ResetDeep begins a text, nested no deeper than so many levels.
func (s *Scanner) ResetDeep(b []byte, levels int) {
	s.b, s.i, s.strs, s.deep = b, 0, s.strs[:0], levels
}

// Offset returns how far the text was read.
func (s *Scanner) Offset() int { return s.i }

// Seek goes on at an offset that was passed before.
func (s *Scanner) Seek(offset int) { s.i = offset }

// Kept returns the bytes of memory that the scanner keeps for strings.
func (s *Scanner) Kept() int { return cap(s.strs) }

// Colon skips the colon between a member's name and its value.
func (s *Scanner) Colon() error {
	if !s.Take(':') {
		return s.malformed("a colon")
	}
	return nil
}

// End refuses what is not white space after the value.
func (s *Scanner) End() error {
	if s.Space(); s.i < len(s.b) {
		return s.malformed("the end")
	}
	return nil
}

func refuse(format string, args ...any) error {
	return lookup.Refuse(lookup.ErrInvalid, format, args...)
}

// malformed says where the text stops being JSON.
func (s *Scanner) malformed(want string) error {
	if s.i >= len(s.b) {
		return refuse("body: not JSON: it ends where %s must follow", want)
	}
	return refuse("body: not JSON at byte %d: %s must stand there, not %q", s.i, want, s.b[s.i])
}

// Space skips white space and returns the byte after it, or 0 at the end. A NUL
// byte is never part of JSON outside of strings, so 0 is refused everywhere.
func (s *Scanner) Space() byte {
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// Take skips c if it comes next, white space aside.
func (s *Scanner) Take(c byte) bool {
	if s.Space() != c {
		return false
	}
	s.i++
	return true
}

// Field is one member that an object may have.
type Field struct {
	Name     string
	Required bool
	Read     func(name string) error // reads the value, which is not null
}

// Object reads the whole text as one object with the given fields. Unknown
// members are skipped, null is as if absent, and a field given twice is refused.
func (s *Scanner) Object(fields []Field) error {
	if len(fields) > 64 {
		panic("BUG: jsonscan: over 64 fields")
	}
	if !s.Take('{') {
		if s.Space() == 0 && s.i >= len(s.b) {
			return refuse("body: is empty: it must be a JSON object")
		}
		return s.notAnObject()
	}
	var met, given uint64
	for first := true; ; first = false {
		done, err := s.Next(first, '}')
		if err != nil {
			return err
		}
		if done {
			break
		}
		key, err := s.Text()
		if err != nil {
			return err
		}
		if err := s.Colon(); err != nil {
			return err
		}
		f := fieldOf(fields, key)
		if f < 0 {
			if err := s.Skip(MaxNesting - 1); err != nil {
				return err
			}
			continue
		}
		if met&(1<<f) != 0 {
			return refuse("%s: is given twice", fields[f].Name)
		}
		met |= 1 << f
		if s.Space() == 'n' {
			if err := s.Literal("null"); err != nil {
				return err
			}
			continue
		}
		given |= 1 << f
		if err := fields[f].Read(fields[f].Name); err != nil {
			return err
		}
	}
	if err := s.End(); err != nil {
		return err
	}
	for f := range fields {
		if fields[f].Required && given&(1<<f) == 0 {
			return refuse("%s: is missing", fields[f].Name)
		}
	}
	return nil
}

// notAnObject tells JSON of another kind from what is no JSON at all.
func (s *Scanner) notAnObject() error {
	if err := s.Skip(MaxNesting); err != nil {
		return err
	}
	return refuse("body: must be a JSON object")
}

func fieldOf(fields []Field, key []byte) int {
	for f := range fields {
		if string(key) == fields[f].Name {
			return f
		}
	}
	return -1
}

// Next moves to the next member of an object or array, or past its end.
func (s *Scanner) Next(first bool, end byte) (done bool, err error) {
	switch c := s.Space(); {
	case c == end:
		s.i++
		return true, nil
	case first:
		return false, nil
	case c == ',':
		s.i++
		return false, nil
	}
	return false, s.malformed(`"," or "` + string(rune(end)) + `"`)
}

// Literal reads one word: true, false or null.
func (s *Scanner) Literal(word string) error {
	if len(s.b)-s.i >= len(word) && string(s.b[s.i:s.i+len(word)]) == word {
		s.i += len(word)
		return nil
	}
	return s.malformed(word)
}

// Skip reads over one value of any kind, nested no deeper than depth.
func (s *Scanner) Skip(depth int) error {
	switch c := s.Space(); {
	case c == '{' || c == '[':
		if depth == 0 {
			return refuse("body: nested deeper than %d levels", s.deep)
		}
		return s.skipNested(c, depth-1)
	case c == '"':
		return s.skipText()
	case c == 't':
		return s.Literal("true")
	case c == 'f':
		return s.Literal("false")
	case c == 'n':
		return s.Literal("null")
	case c == '-' || '0' <= c && c <= '9':
		_, _, err := s.Number()
		return err
	}
	return s.malformed("a value")
}

func (s *Scanner) skipNested(open byte, depth int) error {
	end := open + 2 // '{' and '}', '[' and ']' stand two apart
	s.i++
	for first := true; ; first = false {
		done, err := s.Next(first, end)
		if done || err != nil {
			return err
		}
		if open == '{' {
			if s.Space() != '"' {
				return s.malformed("a string")
			}
			if err := s.skipText(); err != nil {
				return err
			}
			if err := s.Colon(); err != nil {
				return err
			}
		}
		if err := s.Skip(depth); err != nil {
			return err
		}
	}
}

// Number reads over one number. Where it is a plain integer that fits 64 bits,
// magnitude has it, and whole is true.
func (s *Scanner) Number() (magnitude uint64, whole bool, err error) {
	if s.b[s.i] == '-' {
		s.i++
	}
	start := s.i
	whole = true
	for ; s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9'; s.i++ {
		d := uint64(s.b[s.i] - '0')
		if magnitude > (math.MaxUint64-d)/10 {
			whole = false // too large; it is still a number
			continue
		}
		magnitude = magnitude*10 + d
	}
	if s.i == start {
		return 0, false, s.malformed("a digit")
	}
	if s.b[start] == '0' && s.i > start+1 {
		s.i = start + 1
		return 0, false, s.malformed("no digit after a leading 0")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		whole = false
		if err := s.digits(); err != nil {
			return 0, false, err
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		whole = false
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if err := s.digits(); err != nil {
			return 0, false, err
		}
	}
	return magnitude, whole, nil
}

// digits reads over one or more digits.
func (s *Scanner) digits() error {
	start := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	if s.i == start {
		return s.malformed("a digit")
	}
	return nil
}

// Integer reads an integer as its two's complement, which must be minus
// magnitude lo to hi. ok is false where the value is something else; it is
// read over all the same.
func (s *Scanner) Integer(lo, hi uint64) (v uint64, ok bool, err error) {
	c := s.Space()
	if c != '-' && (c < '0' || c > '9') {
		return 0, false, s.Skip(MaxNesting - 2)
	}
	m, whole, err := s.Number()
	switch {
	case err != nil || !whole:
		return 0, false, err
	case c == '-':
		return -m, m <= lo && m > 0, nil
	}
	return m, m <= hi, nil
}

// IntField reads an integer field from 0 or more.
func (s *Scanner) IntField(name string, lo, hi uint64) (uint64, error) {
	v, ok, err := s.Integer(0, hi)
	if err == nil && (!ok || v < lo) {
		err = refuse("%s: must be an integer from %d to %d", name, lo, hi)
	}
	return v, err
}

// TextField reads a string field.
func (s *Scanner) TextField(name string) ([]byte, error) {
	if s.Space() != '"' {
		if err := s.Skip(MaxNesting - 1); err != nil {
			return nil, err
		}
		return nil, refuse("%s: must be a string", name)
	}
	t, err := s.Text()
	if err == nil && len(t) > MaxNameBytes {
		return nil, refuse("%s: must be at most %d bytes", name, MaxNameBytes)
	}
	return t, err
}

// Array begins an array field.
func (s *Scanner) Array(name, of string) error {
	if s.Take('[') {
		return nil
	}
	if err := s.Skip(MaxNesting - 1); err != nil {
		return err
	}
	return refuse("%s: must be an array of %s", name, of)
}

// AppendTokens reads an array of integers from 0 to 2^32-1 onto dst.
//
// Cost: measured by BenchmarkQueryBody; the fast path takes what encoders write.
func (s *Scanner) AppendTokens(name string, dst []uint32) ([]uint32, error) {
	if err := s.Array(name, "integers"); err != nil {
		return dst, err
	}
	for first := true; ; first = false {
		done, err := s.Next(first, ']')
		if done || err != nil {
			return dst, err
		}
		s.Space()
		was := len(dst)
		if dst = s.plainTokens(dst); len(dst) > was {
			continue
		}
		v, ok, err := s.Integer(0, math.MaxUint32)
		if err != nil {
			return dst, err
		}
		if !ok {
			return dst, refuse("%s[%d]: must be an integer from 0 to %d", name, len(dst), uint32(math.MaxUint32))
		}
		dst = append(dst, uint32(v))
	}
}

// plainTokens reads integers of one to seven digits, as nearly all are, with "," or
// ", " between them, and stops before the comma or bracket that follows the last one of
// the kind. It reads nothing where the first is of another kind.
//
// Cost: a number's digits are read at once, out of eight bytes.
func (s *Scanner) plainTokens(dst []uint32) []uint32 {
	const each = 0x0101_0101_0101_0101
	b, i, last := s.b, s.i, s.i
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:])
		// What is no digit has a bit here; the lowest is right, since no digit carries.
		x ^= '0' * each
		other := (x + 0x76*each | x) & (0x80 * each)
		if other == 0 {
			break // eight digits or more
		}
		n := bits.TrailingZeros64(other) / 8
		if n == 0 || b[i] == '0' && n > 1 || b[i+n] != ',' && b[i+n] != ']' {
			break
		}
		// The digits, moved behind zeros: pairs, fours, all eight.
		x <<= 64 - 8*n
		x = x * (10<<8 + 1) >> 8
		x = (x & 0x00FF_00FF_00FF_00FF) * (100<<16 + 1) >> 16
		x = (x & 0x0000_FFFF_0000_FFFF) * (10_000<<32 + 1) >> 32
		i += n
		dst, last = append(dst, uint32(x)), i
		if b[i] == ']' {
			break
		}
		if i++; i < len(b) && b[i] == ' ' {
			i++
		}
	}
	s.i = last
	return dst
}

// AppendHashes reads an array of 64-bit hashes, signed or unsigned, onto dst.
func AppendHashes[H ~uint64](s *Scanner, name string, dst []H) ([]H, error) {
	if err := s.Array(name, "integers"); err != nil {
		return dst, err
	}
	for first := true; ; first = false {
		done, err := s.Next(first, ']')
		if done || err != nil {
			return dst, err
		}
		s.Space()
		was := len(dst)
		if dst = plainHashes(s, dst); len(dst) > was {
			continue
		}
		v, ok, err := s.Integer(1<<63, math.MaxUint64)
		if err != nil {
			return dst, err
		}
		if !ok {
			return dst, refuse("%s[%d]: must be a 64-bit integer, signed or unsigned", name, len(dst))
		}
		dst = append(dst, H(v))
	}
}

// IDField reads an instance id, a string or an integer; its text is valid until
// reset.
func (s *Scanner) IDField(name string) (text []byte, number bool, err error) {
	if s.Space() == '"' {
		text, err = s.TextField(name)
		if err == nil && len(text) == 0 {
			err = refuse("%s: must not be empty", name)
		}
		return text, false, err
	}
	v, ok, err := s.Integer(0, math.MaxUint64)
	if err == nil && !ok {
		err = refuse("%s: must be a string or an integer from 0 to %d", name, uint64(math.MaxUint64))
	}
	if err != nil {
		return nil, false, err
	}
	from := len(s.strs)
	s.strs = strconv.AppendUint(s.strs, v, 10)
	return s.strs[from:], true, nil
}
