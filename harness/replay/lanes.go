// SPDX-License-Identifier: Apache-2.0

// Hop before: the front, with events in the corpus's order.
// Hop after: the index, one shard's events from one lane only.

package replay

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"kindex/harness/corpus"
	"kindex/numa"
)

// Lanes are the threads that apply events to a target.
//
// Concurrency: put, flush, drain and Stop are the front's, one goroutine.
type Lanes struct {
	t      *Target
	queues []*queue
	gate   chan struct{}
	wg     sync.WaitGroup

	mu  sync.Mutex
	cpu int64 // ns, of lanes that ended
	err error
}

// NewLanes starts lanes that wait for Open. Each queue takes room events.
//
// Errors: more lanes than shards, since a shard has one writer.
func NewLanes(t *Target, lanes, room int) (*Lanes, error) {
	if lanes < 1 || lanes > t.Index.Shards() {
		return nil, fmt.Errorf("%d lanes for %d shards: a shard has one writer, so give 1 lane to as many as there are shards", lanes, t.Index.Shards())
	}
	l := &Lanes{t: t, gate: make(chan struct{})}
	for i := range lanes {
		q := newQueue(room)
		l.queues = append(l.queues, q)
		var cpus []int
		if len(t.Pins) > 0 {
			cpus = t.Pins[i%len(t.Pins)]
		}
		l.wg.Add(1)
		go l.run(q, cpus)
	}
	return l, nil
}

// Open lets the lanes begin.
func (l *Lanes) Open() { close(l.gate) }

func (l *Lanes) queueOf(s *corpus.Step) *queue { return l.queues[l.t.ShardOf(s.Worker)%len(l.queues)] }

// run is one lane, on cpus where there are any.
func (l *Lanes) run(q *queue, cpus []int) {
	defer l.wg.Done()
	var err error
	unpin := runtime.UnlockOSThread
	if len(cpus) > 0 {
		unpin, err = numa.LockAndPin(cpus)
	}
	if len(cpus) == 0 || err != nil {
		runtime.LockOSThread()
		unpin = runtime.UnlockOSThread
	}
	defer unpin()
	<-l.gate
	a := newApplier(l.t)
	began := numa.ThreadCPU()
	for {
		one, two := q.take()
		if len(one) == 0 {
			break
		}
		for _, steps := range [...][]*corpus.Step{one, two} {
			for len(steps) > 0 {
				n := min(len(steps), batchMost)
				for _, s := range steps[:n] {
					if e := a.apply(s); e != nil && err == nil {
						err = e
					}
				}
				q.done(n)
				steps = steps[n:]
			}
		}
	}
	ended := numa.ThreadCPU()
	l.mu.Lock()
	l.cpu += ended - began
	l.err = errors.Join(l.err, err)
	l.mu.Unlock()
}

// put gives an event to its lane, which may get it only at the next flush.
func (l *Lanes) put(s *corpus.Step) { l.queueOf(s).put(s) }

// flush publishes what was put.
func (l *Lanes) flush() {
	for _, q := range l.queues {
		q.publish()
	}
}

// drain waits until everything put is applied.
func (l *Lanes) drain() {
	for _, q := range l.queues {
		q.publish()
	}
	for _, q := range l.queues {
		q.await(0)
	}
}

// Stop ends the lanes once their queues are empty and returns the CPU time that they
// took, in nanoseconds, and the first error of the index. Called right after drain it
// counts a few microseconds of a lane that finds nothing more.
func (l *Lanes) Stop() (int64, error) {
	for _, q := range l.queues {
		q.end()
	}
	l.wg.Wait()
	return l.cpu, l.err
}

// clock reads the monotonic clock at half the price of time.Now.
var clockBase = time.Now()

func clock() int64 { return int64(time.Since(clockBase)) }
