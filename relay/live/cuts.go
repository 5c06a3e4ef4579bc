// SPDX-License-Identifier: Apache-2.0

// Before: State.Cut, Cut.Close. After: slab.go and blob.go, which keep what open
// cuts read.

package live

import (
	"math"
	"sync"
	"sync/atomic"
)

// cuts are the cuts of one State that are open. Cuts are numbered from 1.
//
// Concurrency: made is the State's; the rest anybody's. A cut that closes while
// the State works is seen late at worst, so that something is kept once too often.
type cuts struct {
	made   uint64        // how many so far
	newest atomic.Uint64 // highest number open; 0: none
	oldest atomic.Uint64 // lowest number open; math.MaxUint64: none

	mu   sync.Mutex
	open []*Cut
}

// begin opens c unless limit are open.
func (cs *cuts) begin(c *Cut, limit int) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.open) >= limit {
		return false
	}
	cs.made++
	c.number = cs.made
	cs.open = append(cs.open, c)
	cs.publish()
	return true
}

func (cs *cuts) end(c *Cut) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for i, o := range cs.open {
		if o == c {
			cs.open = append(cs.open[:i], cs.open[i+1:]...)
			break
		}
	}
	cs.publish()
}

func (cs *cuts) publish() {
	var newest, oldest uint64 = 0, math.MaxUint64
	for _, o := range cs.open {
		newest, oldest = max(newest, o.number), min(oldest, o.number)
	}
	cs.newest.Store(newest)
	cs.oldest.Store(oldest)
}

// pin counts n bytes that are kept for the newest cut, and perhaps older ones.
func (cs *cuts) pin(n uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if k := len(cs.open); k > 0 {
		cs.open[k-1].pinned += n
	}
}

// stats returns how many cuts are open and what memory is kept for them alone.
func (cs *cuts) stats() (open int, bytes uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, o := range cs.open {
		bytes += o.pinned
	}
	return len(cs.open), bytes
}
