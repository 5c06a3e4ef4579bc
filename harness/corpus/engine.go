// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"container/heap"
	"slices"
)

// engine simulates one worker. A visible block is pinned by requests or idle; idle
// ones form a list, least recently released first. What is neither visible nor free
// belongs to requests alone.
type engine struct {
	s      *simulation
	worker uint16
	alarms alarms
	made   uint64
	queue  []*request // waiting for admission, in order of arrival
	free   int        // blocks
	idle   int
	slots  []slot
	unused []uint32
}

// slot is one visible block. Slot 0 is the idle list's head.
type slot struct {
	node, pins uint32
	prev, next uint32
}

func newEngine(s *simulation, worker uint16) *engine {
	return &engine{s: s, worker: worker, free: s.p.GPUBlocks, slots: make([]slot, 1)}
}

func (e *engine) after(time uint64, what uint8, r *request) {
	heap.Push(&e.alarms, alarm{time, e.made, what, r})
	e.made++
}

func (e *engine) emit(time uint64, kind Kind, at, n uint32) {
	e.s.ops = append(e.s.ops, simOp{time: time, kind: kind, at: at, n: n, worker: e.worker})
}

// run plays the worker's requests to their ends, then forgets what is visible.
func (e *engine) run(list []uint32) {
	rows := uint32(len(e.s.rows))
	for _, i := range list {
		r := &request{number: i, base: i / rows * uint32(e.s.per), path: e.s.paths[i%rows], last: NoNode}
		r.tokens = e.s.rows[i%rows].Input * uint64(e.s.p.Length)
		r.end = r.tokens + e.s.rows[i%rows].Output
		e.after(e.s.rows[i%rows].Timestamp*1000, arrives, r)
	}
	for len(e.alarms) > 0 {
		a, ok := heap.Pop(&e.alarms).(alarm)
		if !ok {
			return
		}
		switch a.what {
		case arrives:
			e.arrive(a.time, a.req)
		case prefilled:
			e.publish(a.time, a.req)
		case blockFull:
			e.decode(a.time, a.req)
		default:
			e.release(a.req)
			e.admit(a.time)
		}
	}
	for _, sl := range e.slots[1:] {
		e.s.at[sl.node] = 0
	}
}

func (e *engine) arrive(now uint64, r *request) {
	at := NoNode
	if n := len(r.path); n > 0 {
		at = r.path[n-1] + r.base
	}
	e.emit(now, Lookup, at, uint32(len(r.path)))
	e.queue = append(e.queue, r)
	e.admit(now)
}

// admit lets requests in, in order, as long as the first one fits. One that no
// worker could ever hold is left out.
func (e *engine) admit(now uint64) {
	for len(e.queue) > 0 {
		r := e.queue[0]
		if len(r.path) > e.s.p.GPUBlocks {
			e.queue = e.queue[1:]
			continue
		}
		hits, idle := 0, 0
		for hits < len(r.path) {
			s := e.s.at[r.path[hits]+r.base]
			if s == 0 {
				break
			}
			if e.slots[s].pins == 0 {
				idle++
			}
			hits++
		}
		need := len(r.path) - hits
		if need > e.free+e.idle-idle {
			return
		}
		e.queue = e.queue[1:]
		r.hits = hits
		for _, x := range r.path[:hits] {
			e.pin(x + r.base)
			r.held = append(r.held, x+r.base)
		}
		e.evict(now, need-e.free)
		e.free -= need
		e.after(now+prefillBlock*uint64(need), prefilled, r)
	}
}

// evict takes n idle blocks, the least recently released first, in one event.
func (e *engine) evict(now uint64, n int) {
	if n <= 0 {
		return
	}
	begin := uint32(len(e.s.removed))
	for range n {
		i := e.slots[0].next
		x := e.slots[i].node
		e.unlink(i)
		e.s.removed = append(e.s.removed, x)
		e.s.at[x] = 0
		e.slots[i].node = 0
		e.unused = append(e.unused, i)
		e.free++
	}
	e.emit(now, Remove, begin, uint32(n))
}

// publish makes visible what r computed and no other request published meanwhile.
func (e *engine) publish(now uint64, r *request) {
	run := uint32(0)
	tell := func(last int) {
		if run > 0 {
			e.emit(now, Store, r.path[last]+r.base, run)
		}
		run = 0
	}
	for i := r.hits; i < len(r.path); i++ {
		x := r.path[i] + r.base
		if e.s.at[x] != 0 {
			// Another published it first: share that one, the copy is free again.
			e.pin(x)
			e.free++
			r.held = append(r.held, x)
			tell(i - 1)
			continue
		}
		e.show(x)
		r.held = append(r.held, x)
		run++
	}
	tell(len(r.path) - 1)
	if n := len(r.path); n > 0 {
		r.last = r.path[n-1] + r.base
	}
	e.proceed(now, r)
}

// proceed sets the alarm for the next block that decoding fills, or for the end.
func (e *engine) proceed(now uint64, r *request) {
	size := uint64(DefaultBlockSize)
	full := (r.tokens/size + 1) * size
	what := blockFull
	if full > r.end {
		full, what = r.end, ends
	}
	e.after(now+decodeToken*(full-r.tokens), what, r)
	r.tokens = full
}

func (e *engine) decode(now uint64, r *request) {
	if len(e.s.parents) >= maxNodes {
		e.s.over = true
	}
	if e.s.over || e.free == 0 && e.idle == 0 {
		r.full = true
	}
	if !r.full {
		e.evict(now, 1-e.free)
		e.free--
		r.last = e.s.decoded(r.last)
		e.show(r.last)
		r.held = append(r.held, r.last)
		e.emit(now, Store, r.last, 1)
	}
	e.proceed(now, r)
}

// release gives r's blocks back, the last first.
func (e *engine) release(r *request) {
	for _, x := range slices.Backward(r.held) {
		s := e.s.at[x]
		e.slots[s].pins--
		if e.slots[s].pins == 0 {
			e.link(s)
		}
	}
}

// show makes x visible, pinned once.
func (e *engine) show(x uint32) {
	var i uint32
	if n := len(e.unused); n > 0 {
		i = e.unused[n-1]
		e.unused = e.unused[:n-1]
	} else {
		e.slots = append(e.slots, slot{})
		i = uint32(len(e.slots) - 1)
	}
	e.slots[i] = slot{node: x, pins: 1}
	e.s.at[x] = i
}

func (e *engine) pin(x uint32) {
	s := e.s.at[x]
	if e.slots[s].pins == 0 {
		e.unlink(s)
	}
	e.slots[s].pins++
}

// link appends slot i to the idle list.
func (e *engine) link(i uint32) {
	last := e.slots[0].prev
	e.slots[i].prev, e.slots[i].next = last, 0
	e.slots[last].next, e.slots[0].prev = i, i
	e.idle++
}

func (e *engine) unlink(i uint32) {
	s := &e.slots[i]
	e.slots[s.prev].next, e.slots[s.next].prev = s.next, s.prev
	e.idle--
}
