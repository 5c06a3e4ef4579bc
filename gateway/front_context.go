// SPDX-License-Identifier: Apache-2.0

// Before: a client's hang-up, or front_rescue.go, which gives up a try. After:
// everything that works for the request.

package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// requestContext is the context of one request: it ends when the client hangs up, or
// the request has ended. It is a [context.Context] that costs little while nothing
// happens: what is to be done at its end is kept in it, and there is a channel only
// where somebody waits for one.
type requestContext struct {
	ended atomic.Bool
	stuck atomic.Bool // the client takes nothing: the worker is not waited for

	mu    sync.Mutex
	given bool    // it ended because its try was given up; guarded by mu
	at    waiting // guarded by mu
	done  chan struct{}
	after []*afterwards
	room  [2]*afterwards
}

type afterwards struct{ f func() }

// Deadline implements [context.Context]: there is none.
func (*requestContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements [context.Context]: there are none.
func (*requestContext) Value(any) any { return nil }

// Err implements [context.Context].
func (c *requestContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// Done implements [context.Context].
func (c *requestContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended.Load() {
			close(c.done)
		}
	}
	return c.done
}

// AfterFunc has f called once the context ends: what package context looks for. f must
// not take long. Unlike [context.AfterFunc] it does so in the goroutine that ends the
// context; where it has ended, in one of its own, for callers may hold locks that f
// takes.
func (c *requestContext) AfterFunc(f func()) (stop func() bool) {
	a := &afterwards{f}
	c.mu.Lock()
	ended := c.ended.Load()
	if !ended {
		if c.after == nil {
			c.after = c.room[:0]
		}
		c.after = append(c.after, a)
	}
	c.mu.Unlock()
	if ended {
		go f()
		return func() bool { return false }
	}
	return func() bool { return c.forget(a) }
}

func (c *requestContext) forget(a *afterwards) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, b := range c.after {
		if a == b {
			last := len(c.after) - 1
			c.after[i] = c.after[last]
			c.after[last] = nil
			c.after = c.after[:last]
			return true
		}
	}
	return false
}

// end ends the context, once.
func (c *requestContext) end() {
	c.mu.Lock()
	c.endLocked()
}

// endLocked is end of a context whose mu is held; it gives that back.
func (c *requestContext) endLocked() {
	if c.ended.Swap(true) {
		c.mu.Unlock()
		return
	}
	if c.done != nil {
		close(c.done)
	}
	after := c.after
	c.after = nil
	c.mu.Unlock()
	for _, a := range after {
		a.f()
	}
}
