// SPDX-License-Identifier: Apache-2.0

// Hop before: the front, with one event at a time.
// Hop after: a lane's thread, with all that wait.

package replay

import (
	"sync/atomic"

	"kindex/harness/corpus"
)

// MaxWaiting is how many events may wait in all queues together.
const MaxWaiting = 4_096

// batchMost is how many events are published at once at most.
const batchMost = 64

// spins is how often a lane looks for an event before it sleeps: some microseconds.
const spins = 2_000

// queue is a ring of events with one front and one lane.
type queue struct {
	slots []*corpus.Step
	mask  uint64

	// The front's.
	next uint64 // slots written
	seen uint64 // of head, some time ago
	room uint64 // how many may wait

	_         [64]byte // the counters lie on lines of their own
	tail      atomic.Uint64
	closed    atomic.Bool
	laneSleep atomic.Bool
	_         [64]byte
	head      atomic.Uint64
	frontWant atomic.Uint64 // the front sleeps until head is here; 0: it does not
	_         [64]byte

	wakeLane, wakeFront chan struct{}
}

// newQueue returns a queue in which room events may wait, rounded up to a power of two.
func newQueue(room int) *queue {
	size := batchMost
	for size < room {
		size *= 2
	}
	return &queue{
		slots: make([]*corpus.Step, size), mask: uint64(size - 1), room: uint64(size),
		wakeLane: make(chan struct{}, 1), wakeFront: make(chan struct{}, 1),
	}
}

// put writes one event and publishes it when a batch is full.
func (q *queue) put(s *corpus.Step) {
	if q.next-q.seen >= q.room {
		if q.seen = q.head.Load(); q.next-q.seen >= q.room {
			q.publish()
			q.await(q.room / 2)
			q.seen = q.head.Load()
		}
	}
	q.slots[q.next&q.mask] = s
	q.next++
	if q.next-q.tail.Load() >= batchMost {
		q.publish()
	}
}

// publish hands over what was put.
func (q *queue) publish() {
	if q.tail.Load() == q.next {
		return
	}
	q.tail.Store(q.next)
	q.wake()
}

func (q *queue) wake() {
	if q.laneSleep.Load() && q.laneSleep.CompareAndSwap(true, false) {
		q.wakeLane <- struct{}{}
	}
}

// await sleeps until at most waiting events wait.
func (q *queue) await(waiting uint64) {
	if q.next <= waiting {
		return
	}
	want := q.next - waiting
	for q.head.Load() < want {
		q.frontWant.Store(want)
		if q.head.Load() >= want && q.frontWant.CompareAndSwap(want, 0) {
			return
		}
		<-q.wakeFront
	}
}

// drain publishes everything and sleeps until all is applied.
func (q *queue) drain() {
	q.publish()
	q.await(0)
}

// end tells the lane that nothing follows.
func (q *queue) end() {
	q.publish()
	q.closed.Store(true)
	q.wake()
}

// take returns the events that wait, as up to two stretches of the ring; none at the end.
func (q *queue) take() (a, b []*corpus.Step) {
	head := q.head.Load()
	for n := 0; ; n++ {
		if tail := q.tail.Load(); tail != head {
			from, to := head&q.mask, tail&q.mask
			if from < to {
				return q.slots[from:to], nil
			}
			return q.slots[from:], q.slots[:to]
		}
		if q.closed.Load() {
			if q.tail.Load() == head {
				return nil, nil
			}
			continue
		}
		if n < spins {
			continue
		}
		q.laneSleep.Store(true)
		if q.tail.Load() == head && !q.closed.Load() {
			<-q.wakeLane
		} else if !q.laneSleep.CompareAndSwap(true, false) {
			<-q.wakeLane // the front saw the flag: its token is on the way
		}
		n = 0
	}
}

// done says that n events of those taken are applied.
func (q *queue) done(n int) {
	head := q.head.Add(uint64(n))
	if want := q.frontWant.Load(); want != 0 && head >= want && q.frontWant.CompareAndSwap(want, 0) {
		q.wakeFront <- struct{}{}
	}
}
