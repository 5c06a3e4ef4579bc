// SPDX-License-Identifier: Apache-2.0

// Before: scanner, at an array of hashes. After: the query.

package jsonscan

import "encoding/binary"

// plainHashes reads integers of one to nineteen digits, signed or not, as nearly all
// hashes are, with "," or ", " between them, and stops before the comma or bracket that
// follows the last one of the kind. It reads nothing where the first is of another kind.
//
// Cost: eight digits at a time; a third of what digit by digit takes.
func plainHashes[H ~uint64](s *Scanner, dst []H) []H {
	b, i, last := s.b, s.i, s.i
	for i < len(b) {
		negative := b[i] == '-'
		if negative {
			i++
		}
		start, v := i, uint64(0)
		for i-start <= 8 && i+8 <= len(b) {
			part, ok := eightDigits(binary.LittleEndian.Uint64(b[i:]))
			if !ok {
				break
			}
			v, i = v*100_000_000+part, i+8
		}
		for ; i < len(b) && i-start < 20; i++ {
			d := b[i] - '0'
			if d > 9 {
				break
			}
			v = v*10 + uint64(d)
		}
		n := i - start
		if n == 0 || n > 19 || i == len(b) || b[start] == '0' && n > 1 || b[i] != ',' && b[i] != ']' {
			break
		}
		if negative {
			if v > 1<<63 || v == 0 {
				break
			}
			v = -v
		}
		dst, last = append(dst, H(v)), i
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

// eightDigits returns the number that eight characters spell, the first in the lowest
// byte, where all are digits.
func eightDigits(x uint64) (v uint64, ok bool) {
	const each = 0x0101_0101_0101_0101
	// A digit's high half is 3, also of the character six above it.
	if x&(0xF0*each)|(x+6*each)&(0xF0*each)>>4 != 0x33*each {
		return 0, false
	}
	// Pairs, fours, all eight: each step moves what weighs more beside what weighs less.
	x = (x & (0x0F * each)) * (10<<8 + 1) >> 8
	x = (x & 0x00FF_00FF_00FF_00FF) * (100<<16 + 1) >> 16
	return (x & 0x0000_FFFF_0000_FFFF) * (10_000<<32 + 1) >> 32, true
}
