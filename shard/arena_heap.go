// SPDX-License-Identifier: Apache-2.0

//go:build !linux || race

package shard

import (
	"fmt"

	"kindex/numa"
)

const (
	slabLines  = 1 << 10 // 64 KiB
	chunkLines = 4 * slabLines
	heapLines  = 1 << 25 // 2 GiB at most
)

// arenaMemory is slabs on the Go heap, where the race detector sees them.
type arenaMemory struct {
	// slabs holds per slabLines lines the words from there to the end of what was
	// made at once. Its length is fixed; the writer sets an element before any
	// line in it is published, and never again.
	slabs     [][]uint64
	committed uint32
}

// reserve bounds m to lines.
func (m *arenaMemory) reserve(lines uint64, _ numa.Placement) error {
	m.slabs = make([][]uint64, lines/slabLines+1)
	return nil
}

// use makes at least the first lines lines usable, what is missing in one piece,
// and returns how many are.
func (m *arenaMemory) use(lines uint64) (uint32, error) {
	start := int(m.committed / slabLines)
	slabs := int((lines+slabLines-1)/slabLines) - start
	if start+slabs > len(m.slabs) {
		return 0, fmt.Errorf("past the %d lines reserved", len(m.slabs)*slabLines)
	}
	if slabs > 0 {
		words := make([]uint64, slabs*slabLines*lineWords)
		for i := range slabs {
			m.slabs[start+i] = words[i*slabLines*lineWords:]
		}
		m.committed += uint32(slabs) * slabLines
	}
	return m.committed, nil
}

// reserveArena bounds the arena to what a heap can carry.
func (a *arena) reserveArena() error {
	if a.hard > heapLines {
		a.hard = heapLines
		a.soft = min(a.soft, a.hard-a.hard/4)
	}
	return a.reserve(uint64(a.hard), a.placement)
}

// soon is how many of lines can be made usable without copying.
func (m *arenaMemory) soon(lines uint64) uint64 { return lines }

// taken is how many lines there are.
func (m *arenaMemory) taken() uint64 { return uint64(m.committed) }

// ahead is for systems that may refuse memory: the Go heap ends the process. What
// is made at once is one piece, so that chunks are made when they are wanted.
func (a *arena) ahead(uint64) bool { return true }

// forget writes zeros where others may be reading.
func (m *arenaMemory) forget(line, lines uint32) bool {
	for ; lines > 0; line, lines = line+1, lines-1 {
		for k := range lineWords {
			storeWord(m.w(line, k), 0)
		}
	}
	return true
}

// refill has nothing to take: the heap keeps what reads as zeros.
func (m *arenaMemory) refill(uint32, uint32) bool { return true }

// whole is for huge pages, which the heap has none of.
func (m *arenaMemory) whole(uint32) {}

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
