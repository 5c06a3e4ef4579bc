// SPDX-License-Identifier: Apache-2.0

// Before: whoever counts the index's blocks, about once a second. After: decisions,
// which give a share of the requests to who warms up.

package policy

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
)

// WarmUp is how workers with little in their cache are brought up: ones that have less
// than Ratio of the fleet's level, which is the median of who has any. Where the level
// is below Blocks this holds only for young ones: known for less than Age, and grown by
// less than Blocks since.
type WarmUp struct {
	Misses int // one miss in so many goes to them; 0: none
	Hits   int // one hit in so many; 0: none
	Ratio  float64
	Age    time.Duration
	Blocks uint64
}

// DefaultWarmUp returns the defaults.
func DefaultWarmUp() WarmUp {
	return WarmUp{Misses: 4, Hits: 8, Ratio: 0.5, Age: time.Minute, Blocks: 1024}
}

// Levels knows how many cached blocks holders have, and so who warms up.
//
// Concurrency: Set one at a time or not, readers any time. Between two calls of Set
// nothing changes.
type Levels struct {
	warm WarmUp

	mu    sync.Mutex
	seen  map[string]map[*fleet.Holder]sight // by model
	table atomic.Pointer[map[string]*warming]
}

// sight is when a holder was first seen or came back with less than half of what it
// had, what it had least since, and what it had last.
type sight struct {
	at          int64
	least, last uint64
}

// warming is one model's holders that warm up.
type warming struct {
	level   uint64
	holders []*fleet.Holder
}

// NewLevels returns an empty table.
func NewLevels(w WarmUp) *Levels {
	return &Levels{warm: w, seen: map[string]map[*fleet.Holder]sight{}}
}

// Set takes what the holders of pool have at the time now: blocks has one entry for
// each of Pool.Holders, in that order. Others of the model are forgotten. Cost:
// O(n log n), and it allocates: for once a second, not for a request.
func (l *Levels) Set(pool *fleet.Pool, now int64, blocks []uint64) {
	if len(blocks) != len(pool.Holders) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.seen[pool.Model]
	seen := make(map[*fleet.Holder]sight, len(blocks))
	some := make([]uint64, 0, len(blocks))
	for i, h := range pool.Holders {
		s, ok := old[h]
		if !ok || blocks[i] < s.last/2 {
			s = sight{now, blocks[i], blocks[i]}
		}
		s.least, s.last = min(s.least, blocks[i]), blocks[i]
		seen[h] = s
		if blocks[i] > 0 {
			some = append(some, blocks[i])
		}
	}
	l.seen[pool.Model] = seen
	w := &warming{}
	if len(some) > 0 {
		slices.Sort(some)
		w.level = some[len(some)/2]
	}
	for i, h := range pool.Holders {
		if l.warms(seen[h], now, blocks[i], w.level) {
			w.holders = append(w.holders, h)
		}
	}
	l.publish(pool.Model, w)
}

// warms reports whether a holder with so many blocks warms up.
func (l *Levels) warms(s sight, now int64, blocks, level uint64) bool {
	if level == 0 || float64(blocks) >= l.warm.Ratio*float64(level) {
		return false
	}
	young := now-s.at < int64(l.warm.Age) && blocks-s.least < l.warm.Blocks
	return young || level >= l.warm.Blocks
}

// Forget drops a model that is served no more.
func (l *Levels) Forget(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, model)
	l.publish(model, nil)
}

// publish replaces one model's entry; nil: none.
func (l *Levels) publish(model string, w *warming) {
	next := map[string]*warming{}
	if old := l.table.Load(); old != nil {
		maps.Copy(next, *old)
	}
	delete(next, model)
	if w != nil && len(w.holders) > 0 {
		next[model] = w
	}
	l.table.Store(&next)
}

// Warming returns the holders of a model that warm up. Not to be changed.
func (l *Levels) Warming(model string) []*fleet.Holder {
	if l == nil {
		return nil
	}
	t := l.table.Load()
	if t == nil || len(*t) == 0 {
		return nil
	}
	if w := (*t)[model]; w != nil {
		return w.holders
	}
	return nil
}
