// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package shard

import (
	"unsafe"

	"kindex/numa"
)

// chunkLines is the number of lines in a huge page, which is what memory comes in.
const chunkLines = numa.HugePage / lineBytes

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
		a.hard = a.hard / 2 &^ (chunkLines - 1)
		a.soft = min(a.soft, a.hard-a.hard/4)
	}
}

// takenSoon has memory for the first bytes of r taken ahead, and returns how many can be
// made usable at once. Where only the owner can take memory, that is a huge page more.
func takenSoon(r *numa.Region, bytes uint64) uint64 {
	if r.Ahead(bytes) {
		return r.Taken()
	}
	return r.Committed() + numa.HugePage
}

// soon has memory for the first lines taken ahead, and returns how many can be made
// usable without waiting for long.
func (m *arenaMemory) soon(lines uint64) uint64 {
	return takenSoon(m.region, lines*lineBytes) / lineBytes
}

// taken is how many lines memory was taken for.
func (m *arenaMemory) taken() uint64 { return m.region.Taken() / lineBytes }

// ahead makes sure that the next chunks are usable.
func (a *arena) ahead(chunks uint64) bool {
	end := min(uint64(a.next)+chunks*chunkLines, uint64(a.hard))
	if end <= uint64(a.usable) {
		return true
	}
	usable, err := a.use(end)
	if err == nil {
		a.usable = usable
	}
	return err == nil
}

// forget gives the memory of lines back to the system: they read as zeros.
func (m *arenaMemory) forget(line, lines uint32) bool {
	return m.region.Discard(uint64(line)*lineBytes, uint64(lines)*lineBytes) == nil
}

// refill takes memory again for lines that were given back.
func (m *arenaMemory) refill(line, lines uint32) bool {
	return m.region.Refill(uint64(line)*lineBytes, uint64(lines)*lineBytes) == nil
}

// whole says that the chunk at line has all its memory.
func (m *arenaMemory) whole(line uint32) { m.region.AdviseHuge(uint64(line) * lineBytes) }

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
