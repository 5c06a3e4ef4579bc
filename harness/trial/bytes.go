// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"kindex/numa"
)

// Bytes is the memory of this process, seen from outside the index.
type Bytes struct {
	Placed   int64 `json:"placed"`   // outside the Go heap: usable parts of regions, and blocks
	Heap     int64 `json:"go_heap"`  // live after a collection
	Resident int64 `json:"resident"` // what the kernel counts; 0 where it does not say
}

// BytesNow collects garbage, gives free heap back to the system and reads what is left.
//
// Cost: some milliseconds and more with the heap's size; not to be called while
// anything is timed.
func BytesNow() Bytes {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := numa.Used()
	b := Bytes{Placed: int64(u.Committed + u.Blocks), Heap: int64(m.HeapAlloc)}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if f := strings.Fields(string(text)); len(f) > 1 {
			pages, _ := strconv.ParseInt(f[1], 10, 64)
			b.Resident = pages * int64(os.Getpagesize())
		}
	}
	return b
}

// Since returns what was added after before.
func (b Bytes) Since(before Bytes) Bytes {
	return Bytes{Placed: b.Placed - before.Placed, Heap: b.Heap - before.Heap, Resident: b.Resident - before.Resident}
}

// All is placed memory and the Go heap together.
func (b Bytes) All() int64 { return b.Placed + b.Heap }
