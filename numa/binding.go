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
	state           atomic.Pointer[Placed] // nil: anywhere, as asked
	checked, remote atomic.Uint64          // bytes
	// credit is how many bytes may be taken on the node before its free memory is
	// looked at again. The owner's.
	credit uint64
}

func (b *binding) set(want Placement, got Policy, why string) {
	b.state.Store(&Placed{Want: want, Policy: got, Why: why})
}

func (b *binding) placed() Placed {
	p := b.state.Load()
	if p == nil {
		return Placed{}
	}
	out := *p
	out.Checked, out.Remote = b.checked.Load(), b.remote.Load()
	return out
}

const (
	// A node keeps free, above the marks at which the kernel begins to reclaim,
	// 1/64 of its memory, 32 MiB at least: memory bound to a node past its end meets
	// the out-of-memory killer, and others take memory there, too. Chosen.
	keepLeast = 32 << 20
	keepShift = 6
	// creditShift: a sixteenth of what is free above that is taken on one look, so
	// that several pieces of memory may grow side by side. Chosen.
	creditShift = 4
)

// room is a node's memory, in bytes.
type room struct{ total, free, keep uint64 }

// nodeRoom looks at node id. Tests put another in its place.
var nodeRoom = func(id int) (room, error) { return newSysTree("/").room(id) }

func (s sysTree) room(id int) (room, error) {
	total, free, err := s.meminfo(fmt.Sprintf("%s/node%d/meminfo", nodeDir, id))
	if err != nil {
		return room{}, err
	}
	marks, err := s.watermarks(id)
	if err != nil {
		marks = total >> (keepShift - 1) // nobody says: more than kernels choose by themselves
	}
	return room{total, free, max(keepLeast, total>>keepShift) + marks}, nil
}

// fits reports whether step bytes more may be bound to node. why says why not.
func (b *binding) fits(node int, step uint64) (ok bool, why string) {
	if step <= b.credit {
		b.credit -= step
		return true, ""
	}
	r, err := nodeRoom(node)
	if err != nil {
		return false, err.Error()
	}
	if r.free < r.keep+step {
		return false, fmt.Sprintf("node %d has %d MiB of %d free and keeps %d: the rest goes where there is room", node, r.free>>20, r.total>>20, r.keep>>20)
	}
	b.credit = max(step, (r.free-r.keep)>>creditShift) - step
	return true, ""
}
