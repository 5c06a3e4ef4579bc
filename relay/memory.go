// SPDX-License-Identifier: Apache-2.0

// Before: the program, snapshots that nobody reads any more. After: the runtime.

package relay

import (
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"time"
)

// The content of a rank is most of the heap, and has no pointers: a collection is
// cheap however much there is, and what the heap may grow by before the next one is
// memory that nobody uses. A collection takes 1 ms of CPU beside 200,000 blocks; at
// 2,000 batches a second there is one or two a second.
const (
	headroomLeast   = 4 << 20
	headroomPercent = 8
)

// givesBackAfter is how long after the last snapshot was read, or after the heap has
// grown by a quarter or halved, what lies idle goes back to the system: growth leaves
// smaller tables behind. givesBackEvery is how long it is at least between two such times: each
// is a collection.
const (
	givesBackAfter = time.Second
	givesBackEvery = 10 * time.Second
)

// memory keeps a program's heap close to what is in use.
//
// Concurrency: any goroutine.
type memory struct {
	mu      sync.Mutex // guards what follows
	over    bool
	percent int
	grown   uint64 // live bytes when the heap had last grown or shrunk so much
	timer   *time.Timer
	last    time.Time // given back
}

// limitHeadroom has the garbage collector leave little room, unless GOGC is set, until
// the end of m.
func (m *memory) limitHeadroom() {
	if os.Getenv("GOGC") == "" {
		m.collected()
	}
}

// collected sets what share of the heap as it is now is left as room. It is called
// again after each collection.
func (m *memory) collected() {
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(live)
	heap := live[0].Value.Uint64()
	percent := headroomOf(heap)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	// To set it stops the program for microseconds.
	if d := percent - m.percent; d > m.percent/8 || -d > m.percent/8 {
		m.percent = percent
		debug.SetGCPercent(percent)
	}
	if heap > m.grown+m.grown/4 || heap < m.grown/2 {
		m.grown = heap
		m.later()
	}
	// An object that nobody has is found by the next collection.
	runtime.AddCleanup(new([16]byte), (*memory).collected, m)
}

// headroomOf returns the room in percent beside so many live bytes.
func headroomOf(live uint64) int {
	return int(min(max(headroomPercent, headroomLeast*100/max(live, 1)), 100))
}

// freed is told that memory which was a snapshot's is no longer used.
func (m *memory) freed() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		m.later()
	}
}

// later has memory given back soon. mu is held.
func (m *memory) later() {
	if m.timer == nil {
		m.timer = time.AfterFunc(time.Hour, m.giveBack)
	}
	m.timer.Reset(max(givesBackAfter, time.Until(m.last.Add(givesBackEvery))))
}

func (m *memory) giveBack() {
	debug.FreeOSMemory()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
}

// close ends what m does.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	if m.timer != nil {
		m.timer.Stop()
	}
}
