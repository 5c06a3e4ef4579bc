// SPDX-License-Identifier: Apache-2.0

// Before: the host, or a benchmark. After: lanes, which it starts and stops.

package lanes

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Options describe a pool.
type Options struct {
	// Nodes are the groups of lanes and shards; shards are numbered through, those
	// of the first node first.
	Nodes []Node
	// Queue bounds the jobs of one worker, the running one included; default 8.
	Queue int
}

// Node is one group of lanes and the shards that they write.
type Node struct {
	ID     int   // a name: the memory node's number
	Shards int   // at least 1
	Lanes  int   // at least 1
	CPUs   []int // lock each lane to its thread and pin it to these; none: plain goroutines
}

// Pool is all lanes of a process.
//
// Users: New; Add for each worker; at the end Close.
//
// Concurrency: any goroutine.
type Pool struct {
	nodes    []*node
	turns    []*Turn // by shard
	homes    []*node // by shard
	queue    int
	running  sync.WaitGroup
	stopping atomic.Bool

	mu      sync.Mutex
	workers map[*Worker]struct{}
	closed  bool
}

// New starts the lanes.
//
// Errors: options that cannot be right; a lane that cannot be pinned.
func New(o Options) (*Pool, error) {
	if o.Queue == 0 {
		o.Queue = 8
	}
	if o.Queue < 1 {
		return nil, fmt.Errorf("lanes: a queue of %d jobs: it must have room for 1 or more", o.Queue)
	}
	if len(o.Nodes) == 0 {
		return nil, errors.New("lanes: no nodes")
	}
	p := &Pool{queue: o.Queue, workers: map[*Worker]struct{}{}}
	for _, on := range o.Nodes {
		if on.Shards < 1 || on.Lanes < 1 {
			return nil, fmt.Errorf("lanes: node %d has %d shards and %d lanes: it must have 1 or more of each", on.ID, on.Shards, on.Lanes)
		}
		n := &node{id: on.ID}
		for range on.Shards {
			p.turns = append(p.turns, new(Turn))
			p.homes = append(p.homes, n)
		}
		for i := range on.Lanes {
			n.lanes = append(n.lanes, &lane{pool: p, node: n, number: i, cpus: on.CPUs, wake: make(chan struct{}, 1)})
		}
		p.nodes = append(p.nodes, n)
	}
	started := make(chan error)
	var err error
	for _, n := range p.nodes {
		for _, l := range n.lanes {
			p.running.Add(1)
			go l.main(started)
			if e := <-started; e != nil && err == nil {
				err = fmt.Errorf("lanes: node %d: %w", n.id, e)
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Shards returns the number of shards.
func (p *Pool) Shards() int { return len(p.turns) }

// Turn returns the turn of a shard, for whoever else must write it, or see it
// unwritten.
func (p *Pool) Turn(shard int) *Turn { return p.turns[shard] }

// NodeOf returns the number of the node that a shard belongs to.
func (p *Pool) NodeOf(shard int) int { return p.homes[shard].id }

// Add begins a worker whose jobs are applied to shard. It runs on the lane of that
// shard's node where the fewest workers are at home, until another steals it.
//
// Errors: ErrClosed.
func (p *Pool) Add(shard int) (*Worker, error) {
	n := p.homes[shard]
	w := &Worker{pool: p, node: n, shard: shard, turn: p.turns[shard], queue: make([]Job, p.queue)}
	w.room.L, w.ended.L = &w.mu, &w.mu
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	w.home = slices.MinFunc(n.lanes, func(a, b *lane) int { return int(a.workers.Load() - b.workers.Load()) })
	w.home.workers.Add(1)
	p.workers[w] = struct{}{}
	return w, nil
}

func (p *Pool) remove(w *Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.workers, w)
}

// all returns the workers now.
func (p *Pool) all() []*Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	ws := make([]*Worker, 0, len(p.workers))
	for w := range p.workers {
		ws = append(ws, w)
	}
	return ws
}

// Drain waits until all that was submitted before has ended. It returns the
// PanicErrors of workers whose jobs do not run any more.
func (p *Pool) Drain() error {
	ws := p.all()
	until := make([]uint64, len(ws))
	for i, w := range ws {
		w.mu.Lock()
		until[i] = w.put
		w.mu.Unlock()
	}
	var errs []error
	for i, w := range ws {
		w.mu.Lock()
		errs = append(errs, w.until(until[i]))
		w.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Close closes all workers, and stops the lanes once what was submitted has
// ended. It may be called more than once. The error is Drain's.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	var errs []error
	for _, w := range p.all() {
		errs = append(errs, w.Close())
	}
	p.stopping.Store(true)
	for _, n := range p.nodes {
		for _, l := range n.lanes {
			l.rouse(idle, waiting)
		}
	}
	p.running.Wait()
	return errors.Join(errs...)
}

// LaneStats counts what one lane has done.
type LaneStats struct {
	Node, Lane int
	Pinned     bool
	Workers    int // at home here now
	Queued     int // their jobs, the running ones included

	Jobs       uint64 // ended
	Batches    uint64 // applied
	Aside      uint64 // put aside because the shard's turn was taken
	Stolen     uint64 // workers taken over from another lane
	PushedBack uint64 // submissions that met a full queue
}

// Stats returns one entry for each lane, node by node.
//
// Cost: a lock of each worker; for metrics.
func (p *Pool) Stats() []LaneStats {
	queued := map[*lane]int{}
	for _, w := range p.all() {
		l, jobs := w.queued()
		queued[l] += jobs
	}
	var all []LaneStats
	for _, n := range p.nodes {
		for _, l := range n.lanes {
			all = append(all, LaneStats{
				Node: n.id, Lane: l.number, Pinned: len(l.cpus) > 0,
				Workers: int(l.workers.Load()), Queued: queued[l],
				Jobs: l.jobs.Load(), Batches: l.batches.Load(), Aside: l.putAside.Load(),
				Stolen: l.stolen.Load(), PushedBack: l.pushedBack.Load(),
			})
		}
	}
	return all
}
