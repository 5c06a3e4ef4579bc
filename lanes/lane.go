// SPDX-License-Identifier: Apache-2.0

// Before: workers with jobs. After: the shard, whose turn the lane takes.

package lanes

import (
	"runtime/debug"
	"sync"
	"sync/atomic"

	"kindex/numa"
)

const (
	// maxAside bounds the workers that a lane puts aside because their shard's
	// turn is taken. Chosen: enough that the turn, once had, is used for several.
	maxAside = 8
	// quantum is how many jobs of one worker run before others get their turn.
	quantum = 4
)

// What a lane's goroutine does. Whoever changes it to awake sends a token.
const (
	awake   int32 = iota
	idle          // sleeps until there is a worker, or the end
	waiting       // the same, or until a turn is given that workers aside need
	stuck         // sleeps until such a turn is given: no more can be put aside
	lent          // sleeps while a submitter runs its own job in the lane's place
)

// node is the lanes and turns that belong together.
type node struct {
	id    int
	lanes []*lane
	idle  atomic.Int32 // lanes in state idle or waiting
}

// lane is one goroutine and its list of ready workers.
type lane struct {
	pool   *Pool
	node   *node
	number int // within its node
	cpus   []int

	mu          sync.Mutex // guards the list
	first, last *Worker
	ready       atomic.Int32 // length of the list
	state       atomic.Int32
	wake        chan struct{}
	workers     atomic.Int32 // at home here

	_ [64]byte // others look at what is above, the lane writes what is below

	counters

	// The goroutine's own.
	aside   []*Worker // prepared, not applied yet: their turn was taken
	resumed []*Worker // applied, to go on with
	current *Worker
	holding *Turn
}

// push puts w at the end of l's list.
func (l *lane) push(w *Worker) {
	l.mu.Lock()
	w.next = nil
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	l.ready.Add(1)
	l.mu.Unlock()
}

// pop takes the first worker of l's list; nil: it is empty.
func (l *lane) pop() *Worker {
	if l.ready.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	w := l.first
	if w != nil {
		if l.first = w.next; l.first == nil {
			l.last = nil
		}
		w.next = nil
		l.ready.Add(-1)
	}
	l.mu.Unlock()
	return w
}

// steal takes a whole worker that waits for another lane of the node.
func (l *lane) steal() *Worker {
	n := len(l.node.lanes)
	for i := 1; i < n; i++ {
		if w := l.node.lanes[(l.number+i)%n].pop(); w != nil {
			return w
		}
	}
	return nil
}

// rouseFor wakes a lane for a worker just pushed to l: l itself if it is idle,
// else one that will steal.
func (l *lane) rouseFor() {
	if l.node.idle.Load() == 0 || l.rouse(idle, waiting) {
		return
	}
	n := len(l.node.lanes)
	for i := 1; i < n; i++ {
		if l.node.lanes[(l.number+i)%n].rouse(idle, waiting) {
			return
		}
	}
}

// rouse wakes l if it is in one of the states.
func (l *lane) rouse(from ...int32) bool {
	for _, state := range from {
		if l.leave(state, awake) {
			l.wake <- struct{}{}
			return true
		}
	}
	return false
}

// enter goes to a state; leave goes from one to another, unless somebody else has.
func (l *lane) enter(state int32) {
	l.state.Store(state)
	if state == idle || state == waiting {
		l.node.idle.Add(1)
	}
}

func (l *lane) leave(state, to int32) bool {
	if l.state.Load() != state || !l.state.CompareAndSwap(state, to) {
		return false
	}
	if state == idle || state == waiting {
		l.node.idle.Add(-1)
	}
	return true
}

// sleep waits until there is something to do.
//
// Who pushes a worker or gives a turn looks for sleepers afterwards, and who goes
// to sleep looks for workers and turns afterwards: one of the two sees the other.
func (l *lane) sleep() {
	state := idle
	switch {
	case len(l.aside) >= maxAside:
		state = stuck
	case len(l.aside) > 0:
		state = waiting
	}
	l.enter(state)
	if state != stuck && (l.node.hasReady() || l.pool.stopping.Load()) || l.turnFree() {
		l.rouse(state)
	}
	<-l.wake
}

// turnFree asks for the turns that workers aside need, and reports whether one
// of them is free now.
func (l *lane) turnFree() bool {
	for _, w := range l.aside {
		w.turn.ask(l)
		if w.turn.Try() {
			w.turn.Give()
			return true
		}
	}
	return false
}

// borrow takes the place of an idle lane, l first, for a submitter that will run
// its own job; nil: there is none.
func (l *lane) borrow() *lane {
	if l.node.idle.Load() == 0 || len(l.cpus) > 0 {
		return nil
	}
	n := len(l.node.lanes)
	for i := range n {
		if b := l.node.lanes[(l.number+i)%n]; b.leave(idle, lent) {
			return b
		}
	}
	return nil
}

// giveBack ends what borrow began.
func (l *lane) giveBack() {
	l.enter(idle)
	if l.node.hasReady() || l.pool.stopping.Load() {
		l.rouse(idle)
	}
}

func (n *node) hasReady() bool {
	for _, l := range n.lanes {
		if l.ready.Load() > 0 {
			return true
		}
	}
	return false
}

// main is the lane's goroutine. It tells started whether it could be pinned.
func (l *lane) main(started chan<- error) {
	defer l.pool.running.Done()
	if len(l.cpus) > 0 {
		unpin, err := numa.LockAndPin(l.cpus)
		if err == nil {
			defer unpin()
		}
		if started != nil {
			started <- err
		}
		if err != nil && started != nil {
			return
		}
	} else if started != nil {
		started <- nil
	}
	for !l.guarded() {
	}
}

// guarded serves until the pool stops (true) or a job fails.
func (l *lane) guarded() (ended bool) {
	defer func() {
		if ended {
			return
		}
		v := recover()
		l.failed(&PanicError{Value: v, Stack: debug.Stack()})
		if v == nil { // the job ended this goroutine: another takes its place
			l.pool.running.Add(1)
			go l.main(nil)
		}
	}()
	l.serve()
	return true
}

// failed ends the worker whose job failed.
func (l *lane) failed(err *PanicError) {
	if l.holding != nil {
		l.holding.Give()
		l.holding = nil
	}
	if l.current == nil {
		panic(err) // a bug of this package
	}
	l.current.fail(err)
	l.current = nil
}

// serve runs workers until the pool stops and none is left.
func (l *lane) serve() {
	for {
		if n := len(l.resumed); n > 0 {
			w := l.resumed[n-1]
			l.resumed = l.resumed[:n-1]
			l.run(w, w.aside)
			continue
		}
		if len(l.aside) > 0 && l.settle() {
			continue
		}
		if len(l.aside) >= maxAside {
			l.sleep()
			continue
		}
		w := l.pop()
		if w == nil {
			w = l.steal()
		}
		switch {
		case w != nil:
			if l.ready.Load() > 0 {
				l.rouseFor()
			}
			l.run(w, w.begin(l))
		case len(l.aside) == 0 && l.pool.stopping.Load():
			return
		default:
			l.sleep()
		}
	}
}

// run runs w's jobs, beginning or going on with job.
func (l *lane) run(w *Worker, job Job) {
	l.current = w
	for left := quantum; ; {
		if job.Prepare() {
			if !w.turn.Try() {
				w.aside = job
				l.aside = append(l.aside, w)
				l.putAside.Add(1)
				break
			}
			l.holding = w.turn
			job.Apply()
			l.holding = nil
			w.turn.Give()
			l.batches.Add(1)
			continue
		}
		w.aside = nil
		l.jobs.Add(1)
		if job = w.pop(); job == nil {
			break
		}
		if left--; left == 0 {
			l.push(w)
			break
		}
	}
	l.current = nil
}

// settle applies what is aside for the first turn that is free. It reports
// whether there was one.
func (l *lane) settle() bool {
	var turn *Turn
	for _, w := range l.aside {
		if w.turn.Try() {
			turn = w.turn
			break
		}
	}
	if turn == nil {
		return false
	}
	l.holding = turn
	for i := 0; i < len(l.aside); {
		w := l.aside[i]
		if w.turn != turn {
			i++
			continue
		}
		l.aside = append(l.aside[:i], l.aside[i+1:]...)
		l.current = w
		w.aside.Apply()
		l.current = nil
		l.batches.Add(1)
		l.resumed = append(l.resumed, w)
	}
	l.holding = nil
	turn.Give()
	return true
}
