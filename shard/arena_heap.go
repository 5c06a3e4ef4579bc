// SPDX-License-Identifier: Apache-2.0

//go:build !linux || race

package shard

import "fmt"

// Slabs of the heap arena. A piece never spans two slabs that were made apart.
const (
	slabLines = 1 << 12 // 256 KiB
	slabWaste = slabLines
	heapLines = 1 << 25 // 2 GiB at most
)

// arenaMemory is slabs on the Go heap, where the race detector sees them.
type arenaMemory struct {
	// slabs holds per slabLines lines the words from there to the end of what was
	// made at once. Its length is fixed; the writer sets an element before any
	// line in it is published, and never again.
	slabs     [][]uint64
	committed uint32
}

// reserve bounds the arena to what a heap can carry.
func (a *arena) reserve() error {
	if a.hard > heapLines {
		a.hard = heapLines
		a.soft = min(a.soft, a.hard-a.hard/4)
	}
	a.slabs = make([][]uint64, a.hard/slabLines+1)
	return nil
}

// ensure is for systems that may refuse memory: the Go heap ends the process.
func (a *arena) ensure(uint64) bool { return true }

// grow makes n lines usable at next or after it, and returns the first.
func (a *arena) grow(next, n uint32) uint32 {
	if next+n <= a.committed {
		return next
	}
	start := a.committed
	slabs := (n + slabLines - 1) / slabLines
	if start == 0 {
		slabs = n/slabLines + 1 // line 0 means none
	}
	if int(start/slabLines+slabs) > len(a.slabs) {
		panic(fmt.Sprintf("BUG: shard: arena past its %d lines", a.hard))
	}
	words := make([]uint64, int(slabs)*slabLines*lineWords)
	for i := range slabs {
		a.slabs[start/slabLines+i] = words[int(i)*slabLines*lineWords:]
	}
	a.committed = start + slabs*slabLines
	return max(start, 1)
}

// release leaves the slabs to the garbage collector.
func (m *arenaMemory) release() {}

// w returns word k of what begins at line.
func (m *arenaMemory) w(line uint32, k int) *uint64 {
	return &m.slabs[line/slabLines][int(line%slabLines)*lineWords+k]
}

// words returns n words from word k of what begins at line.
func (m *arenaMemory) words(line uint32, k, n int) []uint64 {
	from := int(line%slabLines)*lineWords + k
	return m.slabs[line/slabLines][from : from+n : from+n]
}
