// SPDX-License-Identifier: Apache-2.0

// Before and after: as in scan.go, of which these are the strings.

package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// Text reads a string. The result is valid until reset.
func (s *Scanner) Text() ([]byte, error) {
	if !s.Take('"') {
		return nil, s.malformed("a string")
	}
	start := s.i
	for {
		switch c := s.run(); {
		case c == '"':
			s.i++
			return s.b[start : s.i-1], nil
		case c == '\\':
			return s.escaped(start)
		case c < utf8.RuneSelf:
			return nil, s.textEnds()
		}
		if err := s.multibyte(); err != nil {
			return nil, err
		}
	}
}

// textEnds refuses a string that ends at i without a quote.
func (s *Scanner) textEnds() error {
	if s.i < len(s.b) {
		return s.malformed("no control character")
	}
	return s.malformed("a quote")
}

// run skips plain ASCII and returns the byte after it: a quote, a backslash, a control
// character or one of a longer character; 0 at the end.
//
// Cost: eight bytes at a time, about 0.3 ns a byte.
func (s *Scanner) run() byte {
	const ones = 0x0101_0101_0101_0101
	b, i := s.b, s.i
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^ones*'"', x^ones*'\\'
		// The high bit of each byte that is special. A borrow can only set bits above the
		// lowest such byte, so that the lowest is right.
		hit := ((x - ones*' ') | x | (quote - ones) | (slash - ones)) & (ones << 7)
		if hit != 0 {
			s.i = i + bits.TrailingZeros64(hit)/8
			return b[s.i]
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			s.i = i
			return c
		}
	}
	s.i = i
	return 0
}

// multibyte skips one character of several bytes.
func (s *Scanner) multibyte() error {
	r, n := utf8.DecodeRune(s.b[s.i:])
	if r == utf8.RuneError && n == 1 {
		return refuse("body: not UTF-8 at byte %d", s.i)
	}
	s.i += n
	return nil
}

// escaped reads on in a string that began at start and has an escape at i.
func (s *Scanner) escaped(start int) ([]byte, error) {
	from := len(s.strs)
	s.strs = append(s.strs, s.b[start:s.i]...)
	for {
		at := s.i
		c := s.run()
		s.strs = append(s.strs, s.b[at:s.i]...)
		switch {
		case c == '"':
			s.i++
			return s.strs[from:], nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return nil, err
			}
		case c < utf8.RuneSelf:
			return nil, s.textEnds()
		default:
			at = s.i
			if err := s.multibyte(); err != nil {
				return nil, err
			}
			s.strs = append(s.strs, s.b[at:s.i]...)
		}
	}
}

// unescaped is what each one-letter escape stands for.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape decodes one escape into strs.
func (s *Scanner) escape() error {
	s.i++
	if s.i >= len(s.b) {
		return s.malformed("an escape")
	}
	c := s.b[s.i]
	if plain := unescaped[c]; plain != 0 {
		s.i++
		s.strs = append(s.strs, plain)
		return nil
	}
	if c != 'u' {
		return s.malformed("an escape")
	}
	at := s.i - 1
	s.i++
	r, err := s.hex4()
	if err != nil {
		return err
	}
	if utf16.IsSurrogate(r) {
		low := rune(-1)
		if s.i+1 < len(s.b) && s.b[s.i] == '\\' && s.b[s.i+1] == 'u' {
			s.i += 2
			if low, err = s.hex4(); err != nil {
				return err
			}
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return refuse("body: half a surrogate pair at byte %d", at)
		}
	}
	s.strs = utf8.AppendRune(s.strs, r)
	return nil
}

func (s *Scanner) hex4() (rune, error) {
	var r rune
	for range 4 {
		c := byte(0)
		if s.i < len(s.b) {
			c = s.b[s.i]
		}
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, s.malformed("a hexadecimal digit")
		}
		s.i++
	}
	return r, nil
}

// skipText reads over a string that is wanted by nobody; it keeps nothing, and
// takes half surrogate pairs, which some encoders write.
func (s *Scanner) skipText() error {
	s.i++
	for {
		switch c := s.run(); {
		case c == '"':
			s.i++
			return nil
		case c == '\\':
			s.i++
			switch {
			case s.i < len(s.b) && s.b[s.i] == 'u':
				s.i++
				if _, err := s.hex4(); err != nil {
					return err
				}
			case s.i < len(s.b) && unescaped[s.b[s.i]] != 0:
				s.i++
			default:
				return s.malformed("an escape")
			}
		case c < utf8.RuneSelf:
			return s.textEnds()
		default:
			if err := s.multibyte(); err != nil {
				return err
			}
		}
	}
}

// RawText reads a string and returns what stands between its quotes, escapes and all.
// Half surrogate pairs are taken.
func (s *Scanner) RawText() ([]byte, error) {
	if s.Space() != '"' {
		return nil, s.malformed("a string")
	}
	from := s.i + 1
	if err := s.skipText(); err != nil {
		return nil, err
	}
	return s.b[from : s.i-1], nil
}
