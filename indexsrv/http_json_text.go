// SPDX-License-Identifier: Apache-2.0

// Before and after: as in http_json.go, of which these are the strings.

package indexsrv

import (
	"unicode/utf16"
	"unicode/utf8"
)

// text reads a string. The result is valid until reset.
func (s *scanner) text() ([]byte, error) {
	if !s.take('"') {
		return nil, s.malformed("a string")
	}
	start := s.i
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[start : s.i-1], nil
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return nil, s.malformed("no control character")
		case c < utf8.RuneSelf:
			s.i++
		default:
			if err := s.multibyte(); err != nil {
				return nil, err
			}
		}
	}
	return nil, s.malformed("a quote")
}

// multibyte skips one character of several bytes.
func (s *scanner) multibyte() error {
	r, n := utf8.DecodeRune(s.b[s.i:])
	if r == utf8.RuneError && n == 1 {
		return refuse(ErrInvalid, "body: not UTF-8 at byte %d", s.i)
	}
	s.i += n
	return nil
}

// escaped reads on in a string that began at start and has an escape at i.
func (s *scanner) escaped(start int) ([]byte, error) {
	from := len(s.strs)
	s.strs = append(s.strs, s.b[start:s.i]...)
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.strs[from:], nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return nil, err
			}
		case c < ' ':
			return nil, s.malformed("no control character")
		default:
			at := s.i
			if c < utf8.RuneSelf {
				s.i++
			} else if err := s.multibyte(); err != nil {
				return nil, err
			}
			s.strs = append(s.strs, s.b[at:s.i]...)
		}
	}
	return nil, s.malformed("a quote")
}

// unescaped is what each one-letter escape stands for.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape decodes one escape into strs.
func (s *scanner) escape() error {
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
			return refuse(ErrInvalid, "body: half a surrogate pair at byte %d", at)
		}
	}
	s.strs = utf8.AppendRune(s.strs, r)
	return nil
}

func (s *scanner) hex4() (rune, error) {
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
func (s *scanner) skipText() error {
	s.i++
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return nil
		case c < ' ':
			return s.malformed("no control character")
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
			s.i++
		default:
			if err := s.multibyte(); err != nil {
				return err
			}
		}
	}
	return s.malformed("a quote")
}
