// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// taker takes a region's memory on a goroutine of its own, which lives as long as
// there is some to take: a huge page is zeroed in 0.1 to 0.3 ms, and takes up to 5
// ms in a virtual machine whose host has to find it first, which is nothing for a
// writer to do that others wait for.
//
// Where memory lies near the thread that touches it first, because the kernel may
// not be told anything else, the owner takes it itself.
type taker struct {
	mu      sync.Mutex
	moved   *sync.Cond    // taken, err or running changed; on mu
	taken   atomic.Uint64 // bytes, a prefix; written under mu
	goal    uint64        // bytes, a prefix that is wanted
	err     error         // why there is no more, until the next try
	running bool
}

// Ahead asks for memory for the first bytes before they are to be usable, and
// waits for nothing. It returns false where only Commit can take it.
//
// Concurrency: the owner's.
func (r *Region) Ahead(bytes uint64) bool {
	if r.touchPlaces() {
		return false
	}
	bytes = min(roundUp(bytes, HugePage), r.reserved)
	if bytes <= r.taken.Load() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want(bytes)
	return true
}

// Taken returns the size of the prefix that memory was taken for, Committed at
// least. Any goroutine.
func (r *Region) Taken() uint64 { return r.taken.Load() }

// Refill takes memory for n bytes at off of the usable prefix, multiples of a page,
// that were given back by Discard.
//
// Errors: the kernel's when it has no memory.
func (r *Region) Refill(off, n uint64) error {
	fill := func() error { return populate(r.at(off), n) }
	if r.touchPlaces() {
		return fill()
	}
	return aside(fill)
}

// aside calls fn on another goroutine and waits for it: what the kernel does
// meanwhile is not time that the caller's thread has used.
func aside(fn func() error) error {
	done := make(chan error)
	go func() { done <- fn() }()
	return <-done
}

// touchPlaces reports whether memory lies where the thread that touches it first is.
func (r *Region) touchPlaces() bool {
	p := r.state.Load()
	return p != nil && p.Policy == PolicyFirstTouch
}

// await takes memory for the first bytes, by others' hands where that is possible.
func (r *Region) await(bytes uint64) error {
	if bytes <= r.taken.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running && (r.touchPlaces() || bytes <= lazyPrefix) {
		for r.taken.Load() < bytes {
			if err := r.takePage(r.taken.Load()); err != nil {
				return err
			}
			r.taken.Add(HugePage)
		}
		return nil
	}
	for r.want(bytes); r.taken.Load() < bytes; {
		if !r.running {
			return r.err
		}
		r.moved.Wait()
	}
	return nil
}

// want raises the goal and starts the goroutine. Under mu.
func (r *Region) want(bytes uint64) {
	r.goal = max(r.goal, bytes)
	if r.running || r.base == nil {
		return
	}
	if r.moved == nil {
		r.moved = sync.NewCond(&r.mu)
	}
	r.err, r.running = nil, true
	go r.takeAll()
}

// takeAll takes one huge page after another up to the goal.
func (r *Region) takeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.taken.Load() < r.goal && r.err == nil {
		off := r.taken.Load()
		r.mu.Unlock()
		err := r.takePage(off)
		r.mu.Lock()
		if err != nil {
			r.err, r.goal = err, off
			break
		}
		r.taken.Store(off + HugePage)
		r.moved.Broadcast()
	}
	r.running = false
	r.moved.Broadcast()
}

// rest stops taking and waits for what is under way.
func (r *Region) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.goal = 0; r.running; {
		r.moved.Wait()
	}
}

// takePage makes the huge page at off usable and takes memory for it, but for the
// first ones.
func (r *Region) takePage(off uint64) error {
	if err := unix.Mprotect(unsafe.Slice((*byte)(r.at(off)), HugePage), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("numa: usable memory at %d: %w", off, err)
	}
	if off < lazyPrefix {
		return nil
	}
	if err := r.take(r.at(off), HugePage, r.reserved-off); err != nil {
		return fmt.Errorf("numa: memory at %d: %w", off, err)
	}
	return nil
}
