// SPDX-License-Identifier: Apache-2.0

// Before: fault.go, which starves a worker. After: numa, which knows the time of
// threads.

package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"kindex/numa"
)

// burnSlice is how long a thread burns and rests, together.
const burnSlice = 10 * time.Millisecond

// burner takes processors from whoever else would have them: threads that compute
// nothing, one for each processor at most, each for a share of the time. The workers of
// a fleet share it, as they would a machine: the greediest says how much.
//
// Concurrency: any goroutine.
type burner struct {
	mu      sync.Mutex
	asked   map[*Worker]float64 // share, guarded by mu
	stop    chan struct{}       // nil: nobody burns; guarded by mu
	threads sync.WaitGroup
	share   atomic.Uint64 // of a slice, in ns
	burned  atomic.Int64  // ns of processors
}

// set has a worker burn a share of the time; 0 ends it. When it returns with nobody
// left who asks, no thread burns.
func (b *burner) set(w *Worker, share float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked == nil {
		b.asked = make(map[*Worker]float64)
	}
	if b.asked[w] = share; share == 0 {
		delete(b.asked, w)
	}
	most := 0.0
	for _, s := range b.asked {
		most = max(most, s)
	}
	b.share.Store(uint64(most * float64(burnSlice)))
	switch {
	case most > 0 && b.stop == nil:
		stop := make(chan struct{})
		b.stop = stop
		for range runtime.NumCPU() {
			b.threads.Go(func() { b.burn(stop) })
		}
	case most == 0 && b.stop != nil:
		close(b.stop)
		b.stop = nil
		b.threads.Wait()
	}
}

// seconds returns how much time of processors was burned.
func (b *burner) seconds() float64 { return time.Duration(b.burned.Load()).Seconds() }

// burn is one thread's life.
func (b *burner) burn(stop <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rest := time.NewTimer(burnSlice)
	defer rest.Stop()
	state := uint64(1)
	for {
		began, cpu := time.Now(), numa.ThreadCPU()
		span := time.Duration(b.share.Load())
		for time.Since(began) < span {
			for range 1_000 {
				state = mix(state)
			}
			select {
			case <-stop:
				b.burned.Add(numa.ThreadCPU() - cpu)
				return
			default:
			}
		}
		b.burned.Add(numa.ThreadCPU() - cpu)
		rest.Reset(burnSlice - span)
		select {
		case <-rest.C:
		case <-stop:
			return
		}
	}
}
