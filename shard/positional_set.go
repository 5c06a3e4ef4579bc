// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"math/bits"
	"slices"
)

// inlineSlots is how many slots a set keeps in place: most positions have few
// holders.
const inlineSlots = 4

// slotSet is a set of slots: up to inlineSlots in place, then a sorted list,
// then a bitset once that is no larger than the list.
//
// Concurrency: none of its own. Cost: has is O(log n) in a list and O(1) in a
// bitset; add and remove move up to n*2 bytes in a list.
type slotSet struct {
	more   *slotMore
	n      uint32
	inline [inlineSlots]slot // sorted, while more is nil
}

// slotMore is what a set of more than inlineSlots keeps: either list or bits.
type slotMore struct {
	list []slot
	bits []uint64
}

// listWins reports whether n slots up to top take less room as a list: 2 bytes
// each against a bit for every slot up to top.
func listWins(n uint32, top slot) bool { return n <= 32 || n*16 < uint32(top) }

func (t *slotSet) has(s slot) bool {
	if t.more == nil {
		return slices.Contains(t.inline[:t.n], s)
	}
	if t.more.bits != nil {
		w := int(s >> 6)
		return w < len(t.more.bits) && t.more.bits[w]>>(s&63)&1 != 0
	}
	_, ok := slices.BinarySearch(t.more.list, s)
	return ok
}

// add reports whether s was not yet there.
func (t *slotSet) add(s slot) bool {
	if t.has(s) {
		return false
	}
	switch {
	case t.more == nil && t.n < inlineSlots:
		i := int(t.n)
		for ; i > 0 && t.inline[i-1] > s; i-- {
			t.inline[i] = t.inline[i-1]
		}
		t.inline[i] = s
	case t.more == nil:
		list := append(make([]slot, 0, 2*inlineSlots), t.inline[:]...)
		t.more = &slotMore{list: list}
		t.addToList(s)
	case t.more.bits != nil:
		t.setBit(s)
	default:
		t.addToList(s)
	}
	t.n++
	return true
}

func (t *slotSet) addToList(s slot) {
	m := t.more
	i, _ := slices.BinarySearch(m.list, s)
	m.list = slices.Insert(m.list, i, s)
	if top := m.list[len(m.list)-1]; !listWins(uint32(len(m.list)), top) {
		list := m.list
		m.list, m.bits = nil, make([]uint64, int(top>>6)+1)
		for _, have := range list {
			m.bits[have>>6] |= 1 << (have & 63)
		}
	}
}

func (t *slotSet) setBit(s slot) {
	m := t.more
	if w := int(s >> 6); w >= len(m.bits) {
		m.bits = append(m.bits, make([]uint64, w+1-len(m.bits))...)
	}
	m.bits[s>>6] |= 1 << (s & 63)
}

// remove takes out s, which is there.
func (t *slotSet) remove(s slot) {
	t.n--
	m := t.more
	switch {
	case m == nil:
		i := slices.Index(t.inline[:t.n+1], s)
		copy(t.inline[i:t.n], t.inline[i+1:t.n+1])
		return
	case m.bits != nil:
		m.bits[s>>6] &^= 1 << (s & 63)
	default:
		i, _ := slices.BinarySearch(m.list, s)
		m.list = slices.Delete(m.list, i, i+1)
	}
	switch {
	case t.n <= inlineSlots/2: // half, so that a set at the border does not flip at each call
		kept := t.slots()
		t.more = nil
		copy(t.inline[:], kept)
	case m.bits != nil && t.n <= 16:
		*m = slotMore{list: t.slots()}
	}
}

// slots returns the set's slots in order, in a slice of its own.
func (t *slotSet) slots() []slot {
	switch {
	case t.more == nil:
		return slices.Clone(t.inline[:t.n])
	case t.more.bits == nil:
		return slices.Clone(t.more.list)
	}
	dst := make([]slot, 0, t.n)
	for w, word := range t.more.bits {
		for ; word != 0; word &= word - 1 {
			dst = append(dst, slot(w*64+bits.TrailingZeros64(word)))
		}
	}
	return dst
}

// appendTo appends the set's slots, each at depth 1.
func (t *slotSet) appendTo(dst []slotDepth) []slotDepth {
	switch {
	case t.more == nil:
		for _, s := range t.inline[:t.n] {
			dst = append(dst, slotDepth{s, 1})
		}
	case t.more.bits == nil:
		for _, s := range t.more.list {
			dst = append(dst, slotDepth{s, 1})
		}
	default:
		for w, word := range t.more.bits {
			for ; word != 0; word &= word - 1 {
				dst = append(dst, slotDepth{slot(w*64 + bits.TrailingZeros64(word)), 1})
			}
		}
	}
	return dst
}

// bytes returns what the set keeps outside itself.
func (t *slotSet) bytes() uint64 {
	if t.more == nil {
		return 0
	}
	return moreBytes + uint64(cap(t.more.list))*2 + uint64(cap(t.more.bits))*8
}

// check panics when the set's count or order is wrong. Tests only.
func (t *slotSet) check() {
	all := t.slots()
	if uint32(len(all)) != t.n || !slices.IsSorted(all) {
		panic("slot set: wrong count or order")
	}
	if t.n > 0 && all[0] == 0 {
		panic("slot set: holds slot 0")
	}
}
