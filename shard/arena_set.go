// SPDX-License-Identifier: Apache-2.0

// Hop before: the arena's pages.
// Hop after: none.

package shard

import (
	"math/bits"
	"slices"
)

// pageSet is a set of page numbers, none of them 0, with its least and greatest.
//
// Cost of least and greatest: a word for each 4,096 numbers.
type pageSet struct {
	words []uint64
	sums  []uint64 // which words are not 0
	n     int
}

// add adds id, which is not in the set.
func (s *pageSet) add(id uint32) {
	w := id / 64
	for int(w) >= len(s.words) {
		s.words = append(s.words, 0)
	}
	for int(w/64) >= len(s.sums) {
		s.sums = append(s.sums, 0)
	}
	s.words[w] |= 1 << (id % 64)
	s.sums[w/64] |= 1 << (w % 64)
	s.n++
}

// del takes id out, which is in the set.
func (s *pageSet) del(id uint32) {
	w := id / 64
	s.words[w] &^= 1 << (id % 64)
	if s.words[w] == 0 {
		s.sums[w/64] &^= 1 << (w % 64)
	}
	s.n--
}

func (s *pageSet) has(id uint32) bool {
	return int(id/64) < len(s.words) && s.words[id/64]>>(id%64)&1 != 0
}

// lowest returns the least number, 0 when there is none.
func (s *pageSet) lowest() uint32 {
	for i, sum := range s.sums {
		if sum != 0 {
			w := i*64 + bits.TrailingZeros64(sum)
			return uint32(w*64 + bits.TrailingZeros64(s.words[w]))
		}
	}
	return 0
}

// highest returns the greatest number, 0 when there is none.
func (s *pageSet) highest() uint32 {
	for i, sum := range slices.Backward(s.sums) {
		if sum != 0 {
			w := i*64 + 63 - bits.LeadingZeros64(sum)
			return uint32(w*64 + 63 - bits.LeadingZeros64(s.words[w]))
		}
	}
	return 0
}
