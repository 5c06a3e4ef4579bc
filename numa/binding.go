// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"fmt"
	"sync/atomic"
)

// binding is what became of the placement of one piece of memory.
//
// Concurrency: the memory's owner changes it, anybody reads it.
type binding struct {
	state atomic.Pointer[Placed] // nil: anywhere, as asked
	// credit is how many bytes may be taken on the node before its free memory is
	// looked at again. The owner's.
	credit uint64
}

func (b *binding) set(want Placement, got Policy, why string) {
	b.state.Store(&Placed{Want: want, Policy: got, Why: why})
}

func (b *binding) placed() Placed {
	if p := b.state.Load(); p != nil {
		return *p
	}
	return Placed{}
}

const (
	// bindFloor is what a node keeps free: memory bound to a node past its end
	// meets the out-of-memory killer, and others take memory there, too. Chosen:
	// 1/64 of the node, 16 MiB at least.
	bindFloor      = 16 << 20
	bindFloorShift = 6
	// creditShift: a sixteenth of what is free above the floor is taken on one look,
	// so that several pieces of memory may grow side by side.
	creditShift = 4
)

// nodeFree reads how large node id is and how much of it is free, in bytes. Tests
// put another in its place.
var nodeFree = func(id int) (total, free uint64, err error) {
	return newSysTree("/").meminfo(fmt.Sprintf("%s/node%d/meminfo", nodeDir, id))
}

// fits reports whether step bytes more may be bound to node. why says why not.
func (b *binding) fits(node int, step uint64) (ok bool, why string) {
	if step <= b.credit {
		b.credit -= step
		return true, ""
	}
	total, free, err := nodeFree(node)
	if err != nil {
		return false, err.Error()
	}
	floor := max(bindFloor, total>>bindFloorShift)
	if free < floor+step {
		return false, fmt.Sprintf("node %d has %d MiB of %d free and keeps %d: the rest goes where there is room", node, free>>20, total>>20, floor>>20)
	}
	b.credit = max(step, (free-floor)>>creditShift) - step
	return true, ""
}
