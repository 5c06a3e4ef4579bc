// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package shard

import (
	"unsafe"

	"kindex/numa"
)

// dictMemory is the dictionary's mapping, of which a prefix is in use: what grows
// does not move.
type dictMemory struct{ region *numa.Region }

// reserve takes address space for lines, or for less, halving, where the machine's
// limits do not allow it.
func (m *dictMemory) reserve(lines uint64, p numa.Placement) (err error) {
	for ; lines > 0; lines /= 2 {
		if m.region, err = numa.Reserve(lines*lineBytes, p); err == nil {
			return nil
		}
	}
	return err
}

// commit makes lines usable, all of them when that is urgent, else those that memory
// was taken for already, and has the others taken ahead. It returns what is usable,
// or false when the machine has no more.
func (m *dictMemory) commit(lines uint64, urgent bool) ([]uint64, bool) {
	bytes := lines * lineBytes
	if !urgent {
		bytes = min(bytes, takenSoon(m.region, bytes))
	}
	if err := m.region.Commit(bytes); err != nil {
		return nil, false
	}
	return unsafe.Slice((*uint64)(m.region.Base()), m.region.Committed()/8), true
}

// resident is the bytes taken, or 0 while so few are usable that only those
// touched count.
func (m *dictMemory) resident() uint64 {
	if n := m.region.Taken(); n > numa.HugePage {
		return n
	}
	return 0
}

// takes is what resident comes to, in lines, when lines are usable.
func (m *dictMemory) takes(lines uint64) uint64 {
	const huge = numa.HugePage / lineBytes
	if lines <= huge {
		return lines
	}
	return (lines + huge - 1) / huge * huge
}

// release gives the address space back.
func (m *dictMemory) release() { _ = m.region.Release() }
