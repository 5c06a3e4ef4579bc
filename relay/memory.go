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
// memory that nobody uses. Chosen: at 2,000 batches a second a collection every
// second, a hundredth of the CPU.
const (
	headroomLeast   = 2 << 20
	headroomPercent = 8
)

// givesBackAfter is how long after the last snapshot was read the memory that it took
// goes back to the system, and givesBackEvery how long it is at least between two such
// times: each is a collection.
const (
	givesBackAfter = 2 * time.Second
	givesBackEvery = 10 * time.Second
)

// memory keeps a program's heap close to what is in use.
//
// Concurrency: any goroutine.
type memory struct {
	mu      sync.Mutex // guards what follows
	over    bool
	percent int
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
	percent := headroomOf(live[0].Value.Uint64())
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
	if m.over {
		return
	}
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
