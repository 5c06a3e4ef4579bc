// SPDX-License-Identifier: Apache-2.0

//go:build !linux || race

package shard

import "kindex/numa"

// dictMemory is a slice on the Go heap, copied when it grows.
type dictMemory struct{ words []uint64 }

// reserve has nothing to do: the heap is bounded by the arena's bound only.
func (m *dictMemory) reserve(uint64, numa.Placement) error { return nil }

// commit makes lines usable, and some more, so that few calls copy.
func (m *dictMemory) commit(lines uint64, _ bool) ([]uint64, bool) {
	words := make([]uint64, m.takes(lines)*lineWords)
	copy(words, m.words)
	m.words = words
	return words, true
}

// takes is what resident comes to, in lines, when lines are usable.
func (m *dictMemory) takes(lines uint64) uint64 { return lines + lines/16 + 64 }

// resident is the bytes taken.
func (m *dictMemory) resident() uint64 { return uint64(len(m.words)) * 8 }

// release leaves the words to the garbage collector.
func (m *dictMemory) release() {}
