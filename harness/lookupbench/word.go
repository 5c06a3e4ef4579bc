// SPDX-License-Identifier: Apache-2.0

package lookupbench

import (
	"runtime"
	"sync"
	"sync/atomic"

	"kindex/numa"
)

// wordAsker sends a word to another core and back: what any answer over shared memory
// takes at least, on this machine and at this time.
type wordAsker struct {
	there atomic.Uint64
	_     [120]byte // words on lines of their own, two by two as they are fetched
	back  atomic.Uint64
	n     uint64
}

func (a *wordAsker) ask(int) error {
	a.n++
	a.there.Store(a.n)
	for spins := 1; a.back.Load() != a.n; spins++ {
		if spins%(1<<16) == 0 {
			runtime.Gosched() // the other one may have no core
		}
	}
	return nil
}

func (a *wordAsker) took(int) {}

func (a *wordAsker) judge() int64 { return 0 }

func (a *wordAsker) close() {}

// echo answers on the given CPU until it is stopped.
func (a *wordAsker) echo(cpu int) (stop func()) {
	var ended atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		if unpin, err := numa.LockAndPin([]int{cpu}); err == nil { // else from wherever it is
			defer unpin()
		}
		for spins := 1; !ended.Load(); spins++ {
			if n := a.there.Load(); n != a.back.Load() {
				a.back.Store(n)
			}
			if spins%(1<<16) == 0 {
				runtime.Gosched()
			}
		}
	})
	return func() {
		ended.Store(true)
		done.Wait()
	}
}
