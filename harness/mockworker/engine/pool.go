// SPDX-License-Identifier: Apache-2.0

// Before: cache.go. After: nothing; this is the bottom.

package engine

import "slices"

// none stands for no block where a block's number is expected.
const none = -1

// block is one physical block.
type block struct {
	name  digest
	group int   // of caches, of the name
	named bool  // cached: a later request may find it by name
	refs  int32 // running sequences that use it; 0: it stands in the free queue

	before, after int32 // neighbours in the free queue
	next          int32 // the next copy of the same name; none: it is the last
}

// pool is a rank's physical blocks. Free ones stand in a queue: those without a
// name, and then the named ones, first the one that nobody used for longest. A free
// block keeps its name until it is taken.
//
// Concurrency: one goroutine at a time.
// Source: vLLM's v1/core/block_pool.py and kv_cache_utils.FreeKVCacheBlockQueue.
type pool struct {
	blocks      []block
	first, last int32
	free        int
	named       map[digest]int32 // physical copies, the one found first; the others hang from it
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n), first: none, last: none, named: make(map[digest]int32)}
	for i := range p.blocks {
		p.blocks[i].before, p.blocks[i].after, p.blocks[i].next = none, none, none
		p.push(int32(i))
	}
	return p
}

// unshift puts a block at the front of the free queue.
func (p *pool) unshift(i int32) {
	b := &p.blocks[i]
	b.before, b.after = none, p.first
	if p.first == none {
		p.last = i
	} else {
		p.blocks[p.first].before = i
	}
	p.first = i
	p.free++
}

// push puts a block at the end of the free queue.
func (p *pool) push(i int32) {
	b := &p.blocks[i]
	b.before, b.after = p.last, none
	if p.last == none {
		p.first = i
	} else {
		p.blocks[p.last].after = i
	}
	p.last = i
	p.free++
}

// pull takes a block out of the free queue.
func (p *pool) pull(i int32) {
	b := &p.blocks[i]
	if b.before == none {
		p.first = b.after
	} else {
		p.blocks[b.before].after = b.after
	}
	if b.after == none {
		p.last = b.before
	} else {
		p.blocks[b.after].before = b.before
	}
	b.before, b.after = none, none
	p.free--
}

// find returns a copy of the named block.
func (p *pool) find(d digest) (int32, bool) {
	i, ok := p.named[d]
	if !ok {
		return none, false
	}
	return i, true
}

// copies counts those of the named block.
func (p *pool) copies(d digest) (n int) {
	i, ok := p.find(d)
	for ; ok && i != none; i = p.blocks[i].next {
		n++
	}
	return n
}

// use counts one more user of a block.
func (p *pool) use(i int32) {
	if p.blocks[i].refs == 0 {
		p.pull(i)
	}
	p.blocks[i].refs++
}

// release counts one user less of each of blocks. Those that nobody uses any more
// are free: with a name they are taken again after all others, in the order given;
// without one before all others.
func (p *pool) release(blocks ...int32) {
	var nameless []int32
	for _, i := range blocks {
		b := &p.blocks[i]
		if b.refs--; b.refs > 0 {
			continue
		}
		if b.named {
			p.push(i)
		} else {
			nameless = append(nameless, i)
		}
	}
	for _, i := range slices.Backward(nameless) {
		p.unshift(i)
	}
}

// take returns the first block of the free queue, in use by one. The name that
// it loses, if it had one, is told.
//
// Shape: something must be free.
func (p *pool) take() (i int32, evicted digest, group int, was bool) {
	i = p.first
	p.use(i)
	if b := &p.blocks[i]; b.named {
		evicted, group, was = b.name, b.group, true
		p.forget(i)
	}
	return i, evicted, group, was
}

// give names a block of a group.
func (p *pool) give(i int32, d digest, group int) {
	b := &p.blocks[i]
	b.name, b.group, b.named, b.next = d, group, true, none
	at, ok := p.named[d]
	if !ok {
		p.named[d] = i
		return
	}
	for p.blocks[at].next != none {
		at = p.blocks[at].next
	}
	p.blocks[at].next = i
}

// forget takes a block's name away.
func (p *pool) forget(i int32) {
	b := &p.blocks[i]
	next := b.next
	b.named, b.next = false, none
	at := p.named[b.name]
	switch {
	case at == i && next == none:
		delete(p.named, b.name)
	case at == i:
		p.named[b.name] = next
	default:
		for p.blocks[at].next != i {
			at = p.blocks[at].next
		}
		p.blocks[at].next = next
	}
}

// forgetAll takes every name away.
func (p *pool) forgetAll() {
	for i := range p.blocks {
		p.blocks[i].named, p.blocks[i].next = false, none
	}
	clear(p.named)
}
