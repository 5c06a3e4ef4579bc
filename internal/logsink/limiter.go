// SPDX-License-Identifier: Apache-2.0

package logsink

import (
	"hash/maphash"
	"sync"
	"time"
)

// Limits of [Limiter]. Chosen, not measured: a person reads every
// one of an honest mistake, and a flood is some 20 lines a second.
const (
	LineBurst, linesASecond       = 10, 1  // from one address
	allLinesBurst, allLinesSecond = 50, 20 // from all
	lineCells                     = 256    // addresses told apart, as far as they fall into other cells
)

// Limiter bounds lines about what strangers do by address and in all, in memory that
// does not grow.
//
// Concurrency: any goroutine.
type Limiter struct {
	mu    sync.Mutex
	seed  maphash.Seed
	cells [lineCells]bucket
	all   bucket
}

// bucket has room for so many lines now.
type bucket struct {
	room    float64
	last    time.Time
	skipped uint64
}

// NewLimiter returns a limiter with room for a burst.
func NewLimiter() Limiter { return Limiter{seed: maphash.MakeSeed()} }

// Allow reports whether a line about address may be written, and how many of its
// cell were not since the last one.
func (l *Limiter) Allow(address string, now time.Time) (skipped uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.cells[maphash.String(l.seed, address)%lineCells]
	c.fill(now, LineBurst, linesASecond)
	l.all.fill(now, allLinesBurst, allLinesSecond)
	if c.room < 1 || l.all.room < 1 {
		c.skipped++
		return 0, false
	}
	c.room--
	l.all.room--
	skipped, c.skipped = c.skipped, 0
	return skipped, true
}

func (b *bucket) fill(now time.Time, burst, rate float64) {
	if b.last.IsZero() {
		b.room = burst
	} else {
		b.room = min(burst, b.room+max(0, now.Sub(b.last).Seconds())*rate)
	}
	b.last = now
}

// Forgive gives all addresses their room back.
func (l *Limiter) Forgive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cells, l.all = [lineCells]bucket{}, bucket{}
}
