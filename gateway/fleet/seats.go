// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math/bits"
	"slices"
)

// seatMap gives seats: the lowest free one each time, so that tables stay short.
type seatMap struct {
	words []uint64 // a bit for each seat that is taken
	taken int
}

func (m *seatMap) take() int {
	m.taken++
	for i, w := range m.words {
		if free := ^w; free != 0 {
			bit := bits.TrailingZeros64(free)
			m.words[i] |= 1 << bit
			return i*64 + bit
		}
	}
	m.words = append(m.words, 1)
	return (len(m.words) - 1) * 64
}

func (m *seatMap) give(seat int) {
	m.taken--
	m.words[seat/64] &^= 1 << (seat % 64)
}

// top returns a number above every seat that is taken.
func (m *seatMap) top() int {
	for i, w := range slices.Backward(m.words) {
		if w != 0 {
			return i*64 + bits.Len64(w)
		}
	}
	return 0
}
