// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package shard

import (
	"unsafe"

	"kindex/numa"
)

const (
	// slabWaste is the most lines that growth may leave unused at a time.
	slabWaste = 0
	// hugeLines is the number of lines in a huge page.
	hugeLines = numa.HugePage / lineBytes
)

// arenaMemory is one mapping: lines are found by adding to its base.
type arenaMemory struct {
	base   unsafe.Pointer // of the mapping; set once
	region *numa.Region
}

// reserve takes address space for lines lines, whose memory is to lie at.
func (m *arenaMemory) reserve(lines uint64, at numa.Placement) error {
	r, err := numa.Reserve(lines*lineBytes, at)
	if err != nil {
		return err
	}
	m.region, m.base = r, r.Base()
	return nil
}

// use makes at least the first lines lines usable and returns how many are.
func (m *arenaMemory) use(lines uint64) (uint32, error) {
	if err := m.region.Commit(lines * lineBytes); err != nil {
		return 0, err
	}
	return uint32(min(m.region.Committed()/lineBytes, maxLines)), nil
}

// reserveArena takes address space for a.hard lines, or for less, halving, where
// the machine's limits do not allow it.
func (a *arena) reserveArena() error {
	for {
		err := a.reserve(uint64(a.hard), a.placement)
		if err == nil {
			return nil
		}
		if a.hard <= arenaSlackLines {
			return err
		}
		a.hard /= 2
		a.soft = min(a.soft, a.hard-a.hard/4)
	}
}

// ensure makes sure that the system gives n more lines, and some for what cannot be
// refused.
func (a *arena) ensure(n uint64) bool {
	end := (uint64(a.next)+n)*lineBytes + numa.HugePage
	return end <= a.region.Committed() || a.region.Commit(min(end, a.region.Reserved())) == nil
}

// grow makes n lines usable at next or after it, and returns the first.
func (a *arena) grow(next, n uint32) uint32 {
	end := (uint64(next) + uint64(n)) * lineBytes
	if end > uint64(a.hard)*lineBytes {
		panic("BUG: shard: arena past its address space")
	}
	if end > a.region.Committed() {
		if err := a.region.Commit(end); err != nil {
			panic("FATAL: shard: " + err.Error())
		}
	}
	return next
}

// release gives the address space back. Nobody may look at a line any more.
func (m *arenaMemory) release() { _ = m.region.Release() }

// w returns word k of what begins at line.
func (m *arenaMemory) w(line uint32, k int) *uint64 {
	return (*uint64)(unsafe.Add(m.base, uintptr(line)<<6+uintptr(k)<<3))
}

// words returns n words from word k of what begins at line.
func (m *arenaMemory) words(line uint32, k, n int) []uint64 {
	return unsafe.Slice(m.w(line, k), n)
}
