// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"
)

// reference is the rules of the scheduler, the cache and the pool once more: one
// function for each, lists and maps of texts, no code of the model's. A cached
// block is called by all tokens up to its end, written out.
type reference struct {
	size, budget, most int
	byChunk, late      bool

	users  []int            // of each physical block
	called []string         // what each is cached as; "": nothing
	free   []int            // those without users, the one to be taken first in front
	copies map[string][]int // where a block is cached, the one cached first in front

	waiting, running, pass []*refRequest
	events                 []refEvent

	shares, preempted, evicted, shared, twins int // what occurred
}

type refRequest struct {
	id, salt  string
	tokens    []uint32
	prompt    int      // of tokens
	answer    []uint32 // all that it will give
	blocks    []int
	cachedTo  int // blocks that are cached, from the first
	done      int // tokens computed
	share     int // tokens that the pass computes
	begun     int // tokens there were when it was let in
	hit       int // tokens found cached when it was first let in
	preempted bool
	gone      bool
}

type refEvent struct {
	cleared bool
	removed bool
	parent  string
	names   []string
	tokens  []uint32
}

func newReference(c *Config) *reference {
	r := &reference{
		size: c.BlockSize, budget: c.Budget, most: c.MaxRunning, byChunk: c.AdmitByChunk, late: c.Engine == SGLang,
		users: make([]int, c.Blocks), called: make([]string, c.Blocks), copies: map[string][]int{},
	}
	for i := range c.Blocks {
		r.free = append(r.free, i)
	}
	if r.late {
		r.empty() // SGLang's begins so
	}
	return r
}

// name writes out what q's block i is called.
func (r *reference) name(q *refRequest, i int) string {
	var b strings.Builder
	b.WriteString(q.salt)
	for _, t := range q.tokens[:(i+1)*r.size] {
		fmt.Fprintf(&b, " %d", t)
	}
	return b.String()
}

func (r *reference) blocksOf(tokens int) int { return (tokens + r.size - 1) / r.size }

// take gives q blocks until it has n.
func (r *reference) take(q *refRequest, n int) {
	for len(q.blocks) < n {
		b := r.free[0]
		r.free = r.free[1:]
		if name := r.called[b]; name != "" {
			r.called[b] = ""
			r.copies[name] = slices.DeleteFunc(r.copies[name], func(x int) bool { return x == b })
			r.events = append(r.events, refEvent{removed: true, names: []string{name}})
			r.evicted++
		}
		r.users[b] = 1
		q.blocks = append(q.blocks, b)
	}
}

// giveBack takes one user from blocks, the last first.
func (r *reference) giveBack(blocks []int) {
	var front, back []int
	for _, b := range slices.Backward(blocks) {
		if r.users[b]--; r.users[b] > 0 {
			continue
		}
		if r.called[b] == "" {
			front = append(front, b)
		} else {
			back = append(back, b)
		}
	}
	r.free = slices.Concat(front, r.free, back)
}

// cache caches q's whole blocks of the first n tokens.
func (r *reference) cache(q *refRequest, n int) {
	var open *refEvent
	flush := func() {
		if open != nil {
			r.events = append(r.events, *open)
			open = nil
		}
	}
	for ; q.cachedTo < n/r.size; q.cachedTo++ {
		i := q.cachedTo
		name := r.name(q, i)
		if there := r.copies[name]; r.late && len(there) > 0 {
			flush()
			r.twins++
			if r.users[there[0]]++; r.users[there[0]] == 1 {
				r.free = slices.DeleteFunc(r.free, func(x int) bool { return x == there[0] })
			}
			r.giveBack(q.blocks[i : i+1])
			q.blocks[i] = there[0]
			continue
		}
		if len(r.copies[name]) > 0 {
			r.twins++
		}
		r.called[q.blocks[i]] = name
		r.copies[name] = append(r.copies[name], q.blocks[i])
		if open == nil {
			open = &refEvent{}
			if i > 0 {
				open.parent = r.name(q, i-1)
			}
		}
		open.names = append(open.names, name)
		open.tokens = append(open.tokens, q.tokens[i*r.size:(i+1)*r.size]...)
	}
	flush()
}

// found returns the cached blocks that q would use.
func (r *reference) found(q *refRequest) (out []int) {
	for i := 0; (i+1)*r.size <= len(q.tokens)-1; i++ {
		there := r.copies[r.name(q, i)]
		if len(there) == 0 {
			break
		}
		out = append(out, there[0])
	}
	return out
}

// schedule begins a pass and reports whether anything is computed.
func (r *reference) schedule() bool {
	r.pass = nil
	left := r.budget
	compute := func(q *refRequest, n int) {
		q.share = n
		left -= n
		r.pass = append(r.pass, q)
		if !r.late {
			r.cache(q, q.done+n)
		}
		if q.done+n < q.begun {
			r.shares++
		}
	}
	preempted := false
	for i := 0; i < len(r.running) && left > 0; i++ {
		q := r.running[i]
		n := min(len(q.tokens)-q.done, left)
		need := r.blocksOf(q.done + n)
		for need-len(q.blocks) > len(r.free) && !q.gone {
			last := r.running[len(r.running)-1]
			r.running = r.running[:len(r.running)-1]
			r.giveBack(last.blocks)
			last.blocks, last.cachedTo, last.done, last.preempted = nil, 0, 0, true
			r.waiting = append([]*refRequest{last}, r.waiting...)
			preempted = true
			r.preempted++
			if last == q {
				return len(r.pass) > 0
			}
		}
		r.take(q, need)
		compute(q, n)
	}
	for !preempted && left > 0 && len(r.waiting) > 0 && len(r.running) < r.most {
		q := r.waiting[0]
		hits := r.found(q)
		n := min(len(q.tokens)-len(hits)*r.size, left)
		must := r.blocksOf(len(q.tokens))
		if r.byChunk {
			must = r.blocksOf(len(hits)*r.size + n)
		}
		must -= len(hits)
		for _, b := range hits {
			if r.users[b] == 0 {
				must++
			}
		}
		if must > len(r.free) {
			break
		}
		for _, b := range hits {
			if r.users[b]++; r.users[b] > 1 {
				r.shared++
			}
			r.free = slices.DeleteFunc(r.free, func(x int) bool { return x == b })
		}
		q.blocks, q.cachedTo, q.done, q.begun = hits, len(hits), len(hits)*r.size, len(q.tokens)
		if !q.preempted {
			q.hit = q.done
		}
		r.take(q, r.blocksOf(q.done+n))
		r.waiting = r.waiting[1:]
		r.running = append(r.running, q)
		compute(q, n)
	}
	return len(r.pass) > 0
}

// settle ends the pass and returns who got a token.
func (r *reference) settle() (told []*refRequest) {
	for _, q := range r.pass {
		if q.gone {
			continue
		}
		q.done += q.share
		if r.late && q.done <= q.begun {
			r.cache(q, q.done)
		}
		if q.done < len(q.tokens) {
			continue
		}
		q.tokens = append(slices.Clone(q.tokens), q.answer[len(q.tokens)-q.prompt])
		told = append(told, q)
		if len(q.tokens) == q.prompt+len(q.answer) {
			r.end(q)
		}
	}
	return told
}

// end ends a request that is somewhere.
func (r *reference) end(q *refRequest) {
	if r.late && len(q.blocks) > 0 {
		r.cache(q, q.done)
	}
	r.giveBack(q.blocks)
	q.blocks, q.gone = nil, true
	is := func(x *refRequest) bool { return x == q }
	r.running = slices.DeleteFunc(slices.Clone(r.running), is)
	r.waiting = slices.DeleteFunc(slices.Clone(r.waiting), is)
}

// empty empties the cache if nobody uses it.
func (r *reference) empty() bool {
	if len(r.free) < len(r.users) {
		return false
	}
	clear(r.called)
	clear(r.copies)
	r.events = append(r.events, refEvent{cleared: true})
	return true
}
