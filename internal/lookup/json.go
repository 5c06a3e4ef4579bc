// SPDX-License-Identifier: Apache-2.0

package lookup

import "unicode/utf8"

// AppendJSONString appends t as a JSON string: what is no UTF-8 becomes U+FFFD, control
// characters escapes.
func AppendJSONString[T string | []byte](dst []byte, t T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(t); {
		c := t[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
			i++
		case c < ' ' || c == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			i++
		case c < utf8.RuneSelf:
			dst = append(dst, c)
			i++
		default:
			r, n := utf8.DecodeRuneInString(string(t[i:min(i+utf8.UTFMax, len(t))]))
			dst = utf8.AppendRune(dst, r) // U+FFFD for what is no UTF-8
			i += n
		}
	}
	return append(dst, '"')
}
