// SPDX-License-Identifier: Apache-2.0

// Before: rank.go and model.go. After: nothing.

package engine

import (
	"context"
	"sync"
	"time"
)

// clock is where a rank has its time from.
type clock interface {
	now() time.Time
	// until waits for a time, or for ctx's end or something on wake, and reports
	// whether it has come. A nil wake never comes.
	until(ctx context.Context, t time.Time, wake <-chan struct{}) bool
}

// wallClock is the machine's.
type wallClock struct{}

func (wallClock) now() time.Time { return time.Now() }

func (wallClock) until(ctx context.Context, t time.Time, wake <-chan struct{}) bool {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-wake:
		return false
	case <-ctx.Done():
		return false
	}
}

// virtualClock goes on only when somebody waits: at once.
//
// Concurrency: any goroutine.
type virtualClock struct {
	mu sync.Mutex
	t  time.Time // guarded by mu
}

func newVirtualClock() *virtualClock { return &virtualClock{t: time.Unix(0, 0)} }

func (c *virtualClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *virtualClock) until(ctx context.Context, t time.Time, _ <-chan struct{}) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.t) {
		c.t = t
	}
	return ctx.Err() == nil
}
