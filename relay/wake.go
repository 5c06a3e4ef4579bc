// SPDX-License-Identifier: Apache-2.0

// Before: Rank. After: Subscription.

package relay

import (
	"sync"
	"sync/atomic"
)

// waker wakes everybody who waits for an engine's news. Waking costs one load
// where nobody waits, and closes one channel where somebody does.
//
// Concurrency: any goroutine.
type waker struct {
	armed atomic.Bool
	mu    sync.Mutex
	ch    chan struct{}
}

// arm returns the channel that the next wake closes. What is looked at after arm
// and is not there yet will be woken for.
func (w *waker) arm() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
		w.armed.Store(true)
	}
	return w.ch
}

// wake is called after the news can be seen.
func (w *waker) wake() {
	if !w.armed.Load() {
		return
	}
	w.mu.Lock()
	ch := w.ch
	w.ch = nil
	w.armed.Store(false)
	w.mu.Unlock()
	if ch != nil {
		close(ch)
	}
}
