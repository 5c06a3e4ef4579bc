// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"
)

// reference is the rules of the scheduler and the cache once more: one function for
// each, lists and maps of texts, no code of the model's. A cached block is called by
// its group and all tokens up to its end, written out, with those after it that its
// name covers too. reference_tier_test.go has the tiers below the device.
type reference struct {
	size, budget, most int
	byChunk, late      bool
	ahead, dense       int
	pairs              bool
	windows            []int // tokens; 0: all, the main group, which is the last

	users  []int            // of each physical block
	called []string         // what each is cached as; "": nothing
	free   []int            // those without users, the one to be taken first in front
	copies map[string][]int // where a block is cached, the one cached first in front
	up     map[string]string

	tiers  []*refTier
	policy int // asks after which a block is copied; 0: as it is stored; below 0: as it is lost
	copied [][]refUnit
	asks   map[string]int
	units  map[string]refUnit // of each block that was cached

	waiting, running, pass []*refRequest
	events, told           []refEvent
	fence                  int // events that were told in earlier batches

	shares, preempted, evicted, shared, twins, slid, loaded, lowered, dropped int // what occurred
}

type refRequest struct {
	id, salt  string
	tokens    []uint32
	prompt    int      // of tokens
	answer    []uint32 // all that it will give
	blocks    [][]int  // of each group; below 0: slid out of the window
	cachedTo  []int    // blocks of each group that were looked at for being cached, from the first
	done      int      // tokens computed
	share     int      // tokens that the pass computes
	names     []string // of its blocks, as far as they were needed
	begun     int      // tokens there were when it was let in
	hit       int      // tokens found cached when it was first let in
	junction  int      // tokens that only the main group had
	preempted bool
	gone      bool
}

type refEvent struct {
	cleared bool
	removed bool
	tier    string
	group   int
	parent  string
	names   []string
	tokens  []uint32
	second  []uint32
	ahead   [][]uint32
	bare    bool // the blocks' names alone
}

func newReference(c *Config) *reference {
	r := &reference{
		size: c.BlockSize, budget: c.Budget, most: c.MaxRunning, byChunk: c.AdmitByChunk, late: c.Engine == SGLang,
		ahead: c.Lookahead, pairs: c.Bigram, dense: c.Retention, windows: slices.Clone(c.Windows),
		users: make([]int, c.Blocks), called: make([]string, c.Blocks), copies: map[string][]int{}, up: map[string]string{}, asks: map[string]int{}, units: map[string]refUnit{},
	}
	if r.pairs {
		r.ahead = 1
	}
	if !c.WindowOnly {
		r.windows = append(r.windows, 0)
	}
	for i := range c.Blocks {
		r.free = append(r.free, i)
	}
	r.lower(c)
	if r.late {
		r.empty() // SGLang's begins so
	}
	return r
}

// name writes out what q's block i is called.
func (r *reference) name(q *refRequest, i int) string {
	for k := len(q.names); k <= i; k++ {
		var b strings.Builder
		b.WriteString(q.salt)
		for n, t := range q.tokens[:(k+1)*r.size+r.ahead] {
			if n == (k+1)*r.size {
				b.WriteString(" |")
			}
			fmt.Fprintf(&b, " %d", t)
		}
		q.names = append(q.names, b.String())
		if k > 0 {
			r.up[q.names[k]] = q.names[k-1]
		}
	}
	if i < 0 {
		return ""
	}
	return q.names[i]
}

// in is a name in a group.
func in(group int, name string) string { return fmt.Sprintf("%d:%s", group, name) }

func (r *reference) blocksOf(tokens int) int { return (tokens + r.size - 1) / r.size }

// named returns how many leading blocks of n tokens have a name.
func (r *reference) named(n int) int {
	k := 0
	for (k+1)*r.size+r.ahead <= n {
		k++
	}
	return k
}

// out returns how many leading blocks a group needs no more once n tokens are there.
func (r *reference) out(g, n int) int {
	k := 0
	for w := r.windows[g]; w > 0 && (k+1)*r.size <= n-w+1; {
		k++
	}
	return k
}

// must returns how many blocks before a place a group has to have for one to begin
// there.
func (r *reference) must(g int) int { return r.blocksOf(r.windows[g] - 1) }

// drop takes the name of a physical block that is taken.
func (r *reference) drop(b int) (group int, name string) {
	full := r.called[b]
	if full == "" {
		return 0, ""
	}
	r.called[b] = ""
	r.copies[full] = slices.DeleteFunc(r.copies[full], func(x int) bool { return x == b })
	r.evicted++
	return cutName(full)
}

// cutName takes what a block is called apart.
func cutName(full string) (group int, name string) {
	head, name, _ := strings.Cut(full, ":")
	_, _ = fmt.Sscan(head, &group)
	return group, name
}

// take gives a group of q's blocks until it has n.
func (r *reference) take(q *refRequest, g, n int) {
	var lost []string
	for len(q.blocks[g]) < n {
		b := r.free[0]
		r.free = r.free[1:]
		if group, name := r.drop(b); name != "" {
			if r.policy < 0 {
				lost = append(lost, name)
			} else {
				r.events = append(r.events, refEvent{removed: true, tier: TierDevice, group: group, names: []string{name}})
				r.forget(name)
			}
		}
		r.users[b] = 1
		q.blocks[g] = append(q.blocks[g], b)
	}
	r.saveLost(lost)
}

// giveBack takes one user from blocks, the last first.
func (r *reference) giveBack(blocks []int) {
	var front, back []int
	for _, b := range slices.Backward(blocks) {
		if b < 0 {
			continue
		}
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

// slide gives back what slid out of q's windows.
func (r *reference) slide(q *refRequest) {
	for g := range q.blocks {
		var gone []int
		for i := min(r.out(g, q.done), len(q.blocks[g])) - 1; i >= 0 && q.blocks[g][i] >= 0; i-- {
			gone = slices.Insert(gone, 0, q.blocks[g][i])
			q.blocks[g][i] = -1
			r.slid++
		}
		r.giveBack(gone)
	}
}

// use counts one more user of a block.
func (r *reference) use(b int) {
	if r.users[b]++; r.users[b] > 1 {
		r.shared++
	}
	r.free = slices.DeleteFunc(r.free, func(x int) bool { return x == b })
}

// store tells of what of q's blocks from first to past a group keeps.
func (r *reference) store(q *refRequest, g, first, past int, kept []int) {
	e := refEvent{tier: TierDevice, group: g, parent: r.name(q, first-1), tokens: slices.Clone(q.tokens[first*r.size : past*r.size])}
	if r.pairs {
		e.second = slices.Clone(q.tokens[first*r.size+1 : past*r.size+1])
	}
	for _, i := range kept {
		e.names = append(e.names, r.name(q, i))
		if r.ahead > 0 && !r.pairs {
			e.ahead = append(e.ahead, q.tokens[(i+1)*r.size:(i+1)*r.size+r.ahead])
		}
	}
	r.events = append(r.events, e)
	if r.policy == 0 {
		r.due(q, g, kept)
	}
}

// cache caches q's whole blocks of the first n tokens.
func (r *reference) cache(q *refRequest, n int) {
	full := min(n/r.size, r.named(len(q.tokens)))
	if r.pairs {
		full = r.named(n)
	}
	for g, window := range r.windows {
		first := q.cachedTo[g]
		if first >= full {
			continue
		}
		var kept []int
		for i := first; i < full; i++ {
			b := q.blocks[g][i]
			if window > 0 && (b < 0 || !r.keeps(q, g, i)) {
				continue
			}
			name := in(g, r.name(q, i))
			if there := r.copies[name]; len(there) > 0 {
				r.twins++
				if r.late {
					r.use(there[0])
					r.giveBack([]int{b})
					q.blocks[g][i] = there[0]
					if len(kept) > 0 {
						r.store(q, g, first, i, kept)
					}
					kept, first = nil, i+1
					continue
				}
			}
			r.called[b] = name
			if r.policy < 0 {
				r.units[r.name(q, i)] = r.unit(q, g, i, i+1)
			}
			r.copies[name] = append(r.copies[name], b)
			kept = append(kept, i)
		}
		if len(kept) > 0 || window > 0 {
			r.store(q, g, first, full, kept)
		}
		q.cachedTo[g] = full
	}
}

// keeps reports whether a window group caches q's block i.
func (r *reference) keeps(q *refRequest, g, i int) bool {
	need := r.must(g)
	before := func(end int) bool { return end > 0 && i < end/r.size && i >= end/r.size-need }
	if r.dense < 0 || before(q.prompt-1) || before(q.junction) {
		return true
	}
	if r.dense == 0 {
		return false
	}
	end := (i/(r.dense/r.size) + 1) * r.dense
	return before(end) || need >= r.dense/r.size
}

// found returns how many leading blocks of q are on the device so that it can begin
// with them, and how many with those on lower tiers.
func (r *reference) found(q *refRequest) (here, all int) {
	n := r.named(len(q.tokens))
	last := len(q.tokens) - 1
	if r.pairs {
		last--
	}
	n = min(n, max(last, 0)/r.size)
	for here = n; here > 0 && !r.begins(q, here); here-- {
		continue
	}
	return here, r.foundBelow(q, here, n)
}

// begins reports whether a request can begin with q's first k blocks.
func (r *reference) begins(q *refRequest, k int) bool {
	for g, window := range r.windows {
		first := 0
		if window > 0 {
			first = max(k-r.must(g), 0)
		}
		for i := first; i < k; i++ {
			if len(r.copies[in(g, r.name(q, i))]) == 0 {
				return false
			}
		}
	}
	return true
}

// costs returns how many free blocks it takes to let q in that finds some and shall
// hold n tokens.
func (r *reference) costs(q *refRequest, here, all, n int, capped bool) int {
	total := 0
	for g, window := range r.windows {
		want, out := r.blocksOf(n), 0
		if window > 0 {
			out = r.out(g, all*r.size)
			if capped {
				want = min(want, r.blocksOf(window-1+r.budget)+1)
			}
		}
		total += max(want-max(out, here), 0)
		for i := min(out, here); i < here; i++ {
			if there := r.copies[in(g, r.name(q, i))]; len(there) > 0 && r.users[there[0]] == 0 {
				total++
			}
		}
	}
	return total
}

// letIn gives q what it finds.
func (r *reference) letIn(q *refRequest, here, all int) {
	q.blocks, q.cachedTo, q.junction = make([][]int, len(r.windows)), make([]int, len(r.windows)), 0
	main := len(r.windows) - 1
	if r.windows[main] == 0 && main > 0 {
		held := 0
		for n := min(r.named(len(q.tokens)), (len(q.tokens)-1)/r.size); held < n && len(r.copies[in(main, r.name(q, held))]) > 0; {
			held++
		}
		if held > all {
			q.junction = held * r.size
		}
	}
	for g := range r.windows {
		q.cachedTo[g] = here
		out := r.out(g, all*r.size)
		for i := range here {
			b := -1
			if i >= out {
				b = r.copies[in(g, r.name(q, i))][0]
				r.use(b)
			}
			q.blocks[g] = append(q.blocks[g], b)
		}
		for i := here; i < min(out, all); i++ {
			q.blocks[g] = append(q.blocks[g], -1)
		}
	}
	q.done, q.begun = all*r.size, len(q.tokens)
	if !q.preempted {
		q.hit = q.done
	}
	r.askBelow(q, here, all)
}

// makeRoom takes blocks for n tokens of q, and reports whether there are so many.
func (r *reference) makeRoom(q *refRequest, n int) bool {
	r.slide(q)
	need := 0
	for g := range r.windows {
		need += max(r.blocksOf(n)-len(q.blocks[g]), 0)
	}
	if need > len(r.free) {
		return false
	}
	for g := range r.windows {
		r.take(q, g, r.blocksOf(n))
	}
	return true
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
		for !r.makeRoom(q, q.done+n) {
			last := r.running[len(r.running)-1]
			r.running = r.running[:len(r.running)-1]
			r.release(last)
			last.done, last.preempted = 0, true
			r.waiting = append([]*refRequest{last}, r.waiting...)
			preempted = true
			r.preempted++
			if last == q {
				return len(r.pass) > 0
			}
		}
		compute(q, n)
	}
	for !preempted && left > 0 && len(r.waiting) > 0 && len(r.running) < r.most {
		q := r.waiting[0]
		here, all := r.found(q)
		n := min(len(q.tokens)-all*r.size, left)
		must := len(q.tokens)
		if r.byChunk {
			must = all*r.size + n
		}
		if r.costs(q, here, all, must, true) > len(r.free) || r.costs(q, here, all, all*r.size+n, false) > len(r.free) {
			break
		}
		r.letIn(q, here, all)
		if !r.makeRoom(q, q.done+n) {
			panic("what fits does not fit")
		}
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
		first := q.done == q.begun
		q.tokens = append(slices.Clone(q.tokens), q.answer[len(q.tokens)-q.prompt])
		told = append(told, q)
		if len(q.tokens) == q.prompt+len(q.answer) {
			r.end(q)
		} else if first && r.late {
			r.ask(q)
		}
	}
	return told
}

// release gives back all that q has.
func (r *reference) release(q *refRequest) {
	for _, blocks := range q.blocks {
		r.giveBack(blocks)
	}
	q.blocks, q.cachedTo = nil, nil
}

// end ends a request that is somewhere.
func (r *reference) end(q *refRequest) {
	if r.late && len(q.blocks) > 0 {
		r.cache(q, q.done)
		r.ask(q)
	}
	r.release(q)
	q.gone = true
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
	clear(r.asks)
	r.copied = nil
	for _, t := range r.tiers {
		t.there = nil
	}
	r.events = append(r.events, refEvent{cleared: true})
	return true
}
