// SPDX-License-Identifier: Apache-2.0

// Before: lanes with a batch ready, dumps, the registry. After: the shard.

package lanes

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Turn is the right to write one shard.
//
// Concurrency: any goroutine. Turns are given in no order, but nobody waits for
// ever.
type Turn struct {
	mu    sync.Mutex
	waits atomic.Uint64

	// Lanes that sleep until the turn is free. A lane asks and then tries once
	// more, who gives looks for askers afterwards: one of the two sees the other.
	asking atomic.Int32
	askMu  sync.Mutex
	askers []*lane
}

// Take waits for the turn.
func (t *Turn) Take() {
	if !t.mu.TryLock() {
		t.waits.Add(1)
		t.mu.Lock()
	}
}

// Try takes the turn if nobody has it.
func (t *Turn) Try() bool { return t.mu.TryLock() }

// Give gives it back. The taker need not be the giver.
func (t *Turn) Give() {
	t.mu.Unlock()
	if t.asking.Load() > 0 {
		t.rouse()
	}
}

// ask has l woken when the turn is given next.
func (t *Turn) ask(l *lane) {
	t.askMu.Lock()
	defer t.askMu.Unlock()
	if !slices.Contains(t.askers, l) {
		t.askers = append(t.askers, l)
		t.asking.Add(1)
	}
}

// rouse wakes those who asked.
func (t *Turn) rouse() {
	t.askMu.Lock()
	defer t.askMu.Unlock()
	for i, l := range t.askers {
		t.askers[i] = nil
		l.rouse(waiting, stuck)
	}
	t.askers = t.askers[:0]
	t.asking.Store(0)
}

// Waits counts the takers that had to wait; lanes, which do something else
// meanwhile, are not among them.
func (t *Turn) Waits() uint64 { return t.waits.Load() }
