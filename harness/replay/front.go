// SPDX-License-Identifier: Apache-2.0

// Hop before: the corpus, in order.
// Hop after: the lanes' queues, and the index for lookups.

package replay

import (
	"time"

	"kindex/harness/corpus"
	"kindex/internal/kv"
)

// front issues operations. One goroutine, locked to its thread.
type front struct {
	t       *Target
	l       *Lanes
	buf     []kv.Match
	start   int64    // of the window, by clock
	service []uint32 // ns of each lookup
	late    []uint32 // ns from each lookup's deadline to its end
}

// flatOut issues one operation after the other. A lookup does not wait for the events
// before it, but they are on their way.
func (f *front) flatOut(steps []corpus.Step) {
	for i := range steps {
		s := &steps[i]
		if s.Kind != corpus.Lookup {
			f.l.put(s)
			continue
		}
		f.l.flush()
		f.lookup(s)
	}
}

func (f *front) lookup(s *corpus.Step) int64 {
	began := clock()
	f.buf = f.t.Lookup(s, f.buf)
	ended := clock()
	f.service = append(f.service, nanos(ended-began))
	return ended
}

// open issues every operation at its deadline.
func (f *front) open(steps []corpus.Step, window int64) {
	if len(steps) == 0 {
		return
	}
	scale := float64(window) / float64(max(steps[len(steps)-1].Due, 1))
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	now := clock()
	for i := range steps {
		s := &steps[i]
		due := f.start + int64(float64(s.Due)*scale)
		if now < due {
			// Nothing that was put waits for what is not due yet.
			f.l.flush()
			waitUntil(due, timer)
		}
		if s.Kind == corpus.Lookup {
			f.l.flush()
			now = f.lookup(s)
			f.late = append(f.late, nanos(now-due))
			continue
		}
		f.l.put(s)
		now = clock()
	}
}

// What waitUntil leaves to spinning: a sleeping thread wakes up late.
const (
	sleepFrom = 2_000_000 // ns
	wakeEarly = 1_000_000 // ns
)

// waitUntil returns when due has come. It sleeps through long waits and spins through
// short ones.
func waitUntil(due int64, timer *time.Timer) {
	for {
		now := clock()
		if now >= due {
			return
		}
		if due-now > sleepFrom {
			timer.Reset(time.Duration(due - now - wakeEarly))
			<-timer.C
		}
	}
}
