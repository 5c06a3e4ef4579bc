// SPDX-License-Identifier: Apache-2.0

package logsink

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Limits of [Changes]. Chosen, not measured.
const (
	changeBurst  = 10               // lines at once
	changePeriod = 10 * time.Second // one more each
)

// Changes logs what becomes of one thing, such as a stream: each change as it comes,
// unless there are so many that they would fill the log. Then one line a period is
// written, that of the newest change, with how many were left out before it: the
// last change is always told, late at worst.
//
// Concurrency: any goroutine. It never waits for the log's writer longer than the
// logger does.
type Changes struct {
	log *slog.Logger

	mu      sync.Mutex // guards what follows
	room    int        // lines that may be written at once
	since   time.Time  // room was counted
	left    int        // changes not told, the newest among them
	newest  change
	timer   *time.Timer // nil: none was needed yet
	waiting bool        // the timer runs
	closed  bool
}

type change struct {
	level slog.Level
	text  string
	args  []any
}

// NewChanges returns the changes of one thing that log names.
func NewChanges(log *slog.Logger) *Changes {
	return &Changes{log: log, room: changeBurst, since: time.Now()}
}

// Tell logs one change, or leaves it out.
func (c *Changes) Tell(level slog.Level, text string, args ...any) {
	if !c.log.Enabled(context.Background(), level) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if n := int(now.Sub(c.since) / changePeriod); n > 0 {
		c.room = min(c.room+n, changeBurst)
		c.since = c.since.Add(time.Duration(n) * changePeriod)
	}
	c.left++
	c.newest = change{level, text, args}
	switch {
	case c.room > 0 && !c.waiting:
		c.write()
	case !c.waiting && !c.closed:
		c.waiting = true
		wait := c.since.Add(changePeriod).Sub(now)
		if c.timer == nil {
			c.timer = time.AfterFunc(wait, c.late)
		} else {
			c.timer.Reset(wait)
		}
	}
}

// write tells the newest change. mu is held.
func (c *Changes) write() {
	args := c.newest.args
	if c.left > 1 {
		args = append(slices.Clip(args), "changes_left_out", c.left-1)
	}
	c.room--
	c.left = 0
	c.log.Log(context.Background(), c.newest.level, c.newest.text, args...)
}

// late tells the newest change that found no room.
func (c *Changes) late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = false
	if c.closed || c.left == 0 {
		return
	}
	c.room, c.since = 1, time.Now()
	c.write()
}

// Close ends it: what waits is not told any more.
func (c *Changes) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
