// SPDX-License-Identifier: Apache-2.0

// Before: env.go, which has processes. After: judge.go, rig.go and watch.go, which hold
// times against rules.

package drill

import (
	"context"
	"os"
	"sync"
	"time"

	"kindex/harness/proc"
)

const (
	waitEvery = 50 * time.Millisecond
	// mostWaited bounds what a rule's time may grow by, in times of itself: what takes
	// longer is no answer to an operator, whatever the machine does.
	mostWaited = 4
)

// waits is how long a drill's programs, this one among them, stood ready to run and had
// no CPU, because others had it: what a rule about a program must not count. A program
// that sleeps or waits for an answer is not ready.
//
// It is the kernel's own count of each thread. Of every interval the thread that waited
// longest counts: work that goes from thread to thread waits with the one that has it.
//
// Concurrency: any goroutine. A nil one says 0.
type waits struct {
	mu     sync.Mutex
	pids   map[int]bool
	before map[int]map[int]time.Duration // by process and thread
	seen   []waited
}

// waited is one interval.
type waited struct {
	from, to time.Time
	most     time.Duration
}

func newWaits() *waits {
	return &waits{pids: map[int]bool{os.Getpid(): true}, before: map[int]map[int]time.Duration{}}
}

// watch samples until ctx ends.
func (w *waits) watch(ctx context.Context) {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for {
		w.sample()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// add has a process counted.
func (w *waits) add(pid int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids[pid] = true
}

// sample ends an interval.
func (w *waits) sample() {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := time.Duration(0)
	for pid := range w.pids {
		now, err := proc.Waited(pid)
		if err != nil { // it has ended
			delete(w.pids, pid)
			delete(w.before, pid)
			continue
		}
		for thread, d := range now {
			if was, ok := w.before[pid][thread]; ok {
				most = max(most, d-was)
			}
		}
		w.before[pid] = now
	}
	at := time.Now()
	if n := len(w.seen); n > 0 {
		w.seen = append(w.seen, waited{w.seen[n-1].to, at, most})
	} else {
		w.seen = append(w.seen, waited{at, at, 0})
	}
}

// of returns how long that was between two instants, up to now.
func (w *waits) of(from, to time.Time) time.Duration {
	if w == nil {
		return 0
	}
	w.sample()
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := 0.0
	for i := range w.seen {
		s := &w.seen[i]
		whole := s.to.Sub(s.from)
		if part := earlier(s.to, to).Sub(later(s.from, from)); part > 0 && whole > 0 {
			sum += float64(s.most) * float64(part) / float64(whole)
		}
	}
	return min(time.Duration(sum), max(to.Sub(from), 0))
}

// allows returns how long a rule's time is between two instants: longer by what the
// programs waited for a CPU.
func (w *waits) allows(limit time.Duration, from, to time.Time) time.Duration {
	return limit + min(w.of(from, to), mostWaited*max(limit, 0))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
