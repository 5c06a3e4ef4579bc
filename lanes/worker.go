// SPDX-License-Identifier: Apache-2.0

// Before: a stream, or a benchmark, with jobs. After: a lane.

package lanes

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Job is a piece of one worker's work. The pool calls its methods one at a time
// and never again once Prepare has returned false, so a job may be used anew.
//
// Both must end in bounded time: other workers wait.
type Job interface {
	// Prepare does what needs no shard and reports whether something is to be
	// applied. If so Apply comes next and then Prepare again; else the job ends.
	Prepare() bool
	// Apply applies what Prepare has made ready, with the turn of the worker's
	// shard, perhaps after other workers have run on the lane.
	Apply()
}

// Conditions that who submits meets.
var (
	// ErrFull refuses a job that would have to wait for room.
	ErrFull = errors.New("lanes: the worker's queue is full")
	// ErrClosed refuses a job of a worker, or in a pool, that is closed.
	ErrClosed = errors.New("lanes: closed")
)

// PanicError is what a worker ends with whose job panicked. What the job was
// writing may be half written.
type PanicError struct {
	Value any // what it panicked with; nil: it ended its goroutine
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "lanes: a job ended its goroutine"
	}
	return fmt.Sprintf("lanes: a job panicked: %v", e.Value)
}

// Worker is one stream's place in a pool.
//
// Concurrency: any goroutine. Jobs of several submitters run in the order in
// which they got into the queue.
type Worker struct {
	pool  *Pool
	node  *node
	shard int
	turn  *Turn

	mu       sync.Mutex
	room     sync.Cond // half of the queue is free, or the end
	roomers  int       // who waits for it
	ended    sync.Cond // the job numbered awaited has ended, or the end
	awaited  uint64    // the first that somebody waits for; 0: nobody does
	queue    []Job     // ring
	head, n  int
	put      uint64 // jobs ever submitted
	done     uint64 // and ended
	busy     bool   // on a lane, on its list, or on the way there
	home     *lane  // where it last ran, or begins
	closed   bool   // takes no more
	detached bool   // no longer the pool's
	err      error  // a job panicked

	// The lane's that runs it, or whose list it is on.
	next  *Worker
	aside Job // prepared, not applied yet
}

// Shard returns the number of the shard that w's jobs are applied to.
func (w *Worker) Shard() int { return w.shard }

// Node returns the number of the node that w runs on.
func (w *Worker) Node() int { return w.node.id }

// Submit puts j into w's queue, once there is room.
//
// Errors: ErrClosed, or w's PanicError; then j never runs.
func (w *Worker) Submit(j Job) error {
	w.mu.Lock()
	_, err := w.submit(j)
	return err
}

// Do is Submit and the wait until j has ended. Where lanes are plain goroutines
// and one is idle, the caller runs j itself in that lane's place: two changes of
// goroutine cost more than most bursts.
func (w *Worker) Do(j Job) error {
	w.mu.Lock()
	if !w.busy && w.err == nil && !w.closed {
		if l := w.home.borrow(); l != nil {
			w.add(j)
			w.moveTo(l)
			w.mu.Unlock()
			return w.inPlace(l, j)
		}
	}
	number, err := w.submit(j)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.until(number)
}

// TrySubmit is Submit without a wait: a full queue is ErrFull.
func (w *Worker) TrySubmit(j Job) error {
	w.mu.Lock()
	if w.n == len(w.queue) && !w.closed && w.err == nil {
		w.home.pushedBack.Add(1)
		w.mu.Unlock()
		return ErrFull
	}
	_, err := w.submit(j)
	return err
}

// submit puts j into the queue, returns its number, and gives mu back, which the
// caller holds.
func (w *Worker) submit(j Job) (number uint64, err error) {
	if w.n == len(w.queue) {
		w.home.pushedBack.Add(1)
		for w.n == len(w.queue) && !w.closed && w.err == nil {
			w.roomers++
			w.room.Wait()
			w.roomers--
		}
	}
	if w.err != nil || w.closed {
		err = w.err
		w.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		return 0, err
	}
	begin := !w.busy
	number = w.add(j)
	home := w.home
	w.mu.Unlock()
	if begin {
		home.push(w)
		home.rouseFor()
	}
	return number, nil
}

// add puts j into the queue, which has room, and returns its number. mu is held.
func (w *Worker) add(j Job) (number uint64) {
	w.queue[(w.head+w.n)%len(w.queue)] = j
	w.n++
	w.put++
	w.busy = true
	return w.put
}

// moveTo makes l the lane that w is at home on. mu is held.
func (w *Worker) moveTo(l *lane) {
	if w.home != l {
		w.home.workers.Add(-1)
		l.workers.Add(1)
		l.stolen.Add(1)
		w.home = l
	}
}

// inPlace runs j, w's only job, in the place of l, which was borrowed for it.
func (w *Worker) inPlace(l *lane, j Job) (err error) {
	var holding *Turn
	ended := false
	defer func() {
		if !ended {
			err = &PanicError{Value: recover(), Stack: debug.Stack()}
			if holding != nil {
				holding.Give()
			}
			w.fail(err)
		}
		l.giveBack()
	}()
	for j.Prepare() {
		w.turn.Take()
		holding = w.turn
		j.Apply()
		holding = nil
		w.turn.Give()
		l.batches.Add(1)
	}
	ended = true
	l.jobs.Add(1)
	if w.pop() != nil { // submitted meanwhile
		l.push(w)
	}
	return nil
}

// until waits until the first number jobs have ended. mu is held.
func (w *Worker) until(number uint64) error {
	for w.done < number && w.err == nil {
		if w.awaited == 0 || number < w.awaited {
			w.awaited = number
		}
		w.ended.Wait()
	}
	return w.err
}

// Fence waits until all that was submitted before has ended. It returns the
// PanicError of a worker whose jobs do not run any more.
func (w *Worker) Fence() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.until(w.put)
}

// Close takes w out of the pool, once all that was submitted has ended. It may
// be called more than once. The error is Fence's.
func (w *Worker) Close() error {
	w.mu.Lock()
	w.closed = true
	w.room.Broadcast()
	err := w.until(w.put)
	detach := !w.detached
	w.detached = true
	home := w.home
	w.mu.Unlock()
	if detach {
		home.workers.Add(-1)
		w.pool.remove(w)
	}
	return err
}

// begin returns the job to run next on l, of a worker taken from a list.
func (w *Worker) begin(l *lane) Job {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moveTo(l)
	return w.queue[w.head]
}

// pop takes the job just run out of the queue and returns the next one; nil:
// there is none, and w is on no lane any more.
func (w *Worker) pop() Job {
	w.mu.Lock()
	w.queue[w.head] = nil
	w.head = (w.head + 1) % len(w.queue)
	w.n--
	w.done++
	next := w.queue[w.head]
	if w.n == 0 {
		next, w.busy = nil, false
	}
	if w.roomers > 0 && w.n <= len(w.queue)/2 {
		w.room.Broadcast() // not for each job: to wake somebody costs more than to run most
	}
	if w.awaited != 0 && w.done >= w.awaited {
		w.awaited = 0 // who waits for a later one says so again
		w.ended.Broadcast()
	}
	w.mu.Unlock()
	return next
}

// fail ends w: what is queued never runs.
func (w *Worker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	clear(w.queue)
	w.done += uint64(w.n)
	w.n, w.head, w.busy, w.aside = 0, 0, false, nil
	w.room.Broadcast()
	w.ended.Broadcast()
}

// queued is how many jobs wait or run, and where.
func (w *Worker) queued() (l *lane, jobs int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.home, w.n
}

// counters are a lane's.
type counters struct {
	jobs, batches, putAside, stolen, pushedBack atomic.Uint64
}
