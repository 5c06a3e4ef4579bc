// SPDX-License-Identifier: Apache-2.0

// Before: timeline.go and request.go. After: credit.go.

package verify

import (
	"slices"

	"kindex/internal/kv"
)

// A claim ties stores to requests. An engine announces the blocks of one request
// and step in one store, beginning where the request's hit ended, so that the
// first store of a request tells when it was scheduled, on which rank, and what
// of it had to be computed.
//
// The owner of a store is found by what it holds: its whole chain must be the
// beginning of the request's prompt and output. Of several such requests in
// flight it is the one that continues there, else the first sent that has not
// begun: engines schedule first come, first served.
type claims struct {
	forest *forest
	shape  shape
	reqs   []*request
	paths  map[*request][]posID
	// told are the items that only repeat what their request hit.
	told map[*kv.Event]bool
	// by are the hidden namespaces that stored a position, where requests have any.
	by map[posID]map[string]bool
	// hashes gives a request's engine hashes, nil where they cannot be known.
	hashes func(r *request) []kv.EngineHash
}

// run walks all ranks' items in the engines' order.
func (c *claims) run(tls []*timeline, replicas []*replica) {
	next := make([]int, len(tls))
	for {
		at := -1
		for i, tl := range tls {
			if next[i] < len(tl.batches) && (at < 0 || tl.batches[next[i]].ts < tls[at].batches[next[at]].ts) {
				at = i
			}
		}
		if at < 0 {
			return
		}
		tl, n := tls[at], next[at]
		from := 0
		if n > 0 {
			from = tl.ends[n-1]
		}
		for i := from; i < tl.ends[n]; i++ {
			c.item(tl, replicas[at], i, tl.batches[n].ts)
		}
		next[at]++
	}
}

// item looks for the owner of one item and applies it.
func (c *claims) item(tl *timeline, rep *replica, i int, ts float64) {
	it := tl.items[i]
	if it.ev != nil && it.ev.Kind == kv.KindStored && it.ev.Tier == kv.TierDevice && len(it.ev.Tokens) > 0 {
		switch chain := rep.chain(it.ev); {
		case c.repeats(tl, rep, it.ev, ts):
			c.told[it.ev] = true
		case rep.windowOnly():
			c.window(tl, i, ts)
		case chain != nil:
			c.store(tl, rep, i, ts, chain)
		}
	}
	rep.apply(it, it.ev != nil && c.told[it.ev])
}

// inFlight returns the requests that may have made a store of rank at ts.
func (c *claims) inFlight(rank int, ts float64) []*request {
	var out []*request
	for _, r := range c.reqs {
		if r.t < ts && r.end >= ts && (r.rank == rank || r.rank < 0) {
			out = append(out, r)
		}
	}
	return out
}

// answered returns the request that was answered before ts, if none was sent
// since: some engines publish what it stored when they next idle.
func (c *claims) answered(rank int, ts float64) []*request {
	var last *request
	for _, r := range c.reqs {
		if r.t < ts {
			last = r
		}
	}
	if last == nil || last.end >= ts || last.rank != rank && last.rank >= 0 {
		return nil
	}
	return []*request{last}
}

func (c *claims) path(r *request) []posID {
	p, ok := c.paths[r]
	if !ok && r.req.Embeds == "" {
		p = c.shape.path(c.forest, r, r.tokens())
		c.paths[r] = p
	}
	return p
}

// repeats reports a store that only tells again what its request hit: asked for,
// from the beginning of its prompt, once for each group whether or not the group
// holds all of it.
func (c *claims) repeats(tl *timeline, rep *replica, ev *kv.Event, ts float64) bool {
	if ev.HasParent {
		return false
	}
	lora, salt, _ := eventKeys(ev)
	n := len(ev.Tokens) / c.shape.size
	for _, r := range c.inFlight(tl.rank, ts) {
		if r.first >= 0 || !r.reannounces() || r.lora() != lora || r.req.Salt != salt || len(r.req.Prompt) < len(ev.Tokens) ||
			!slices.Equal(r.req.Prompt[:len(ev.Tokens)], ev.Tokens) {
			continue
		}
		if n > 0 && rep.hit(n, false, rep.byPath(c.path(r))) == n {
			r.rank = tl.rank
			return true
		}
	}
	return false
}

// store finds the owner of a store of a main group.
func (c *claims) store(tl *timeline, rep *replica, i int, ts float64, chain []posID) {
	last := chain[len(chain)-1]
	end := int(c.forest.depth[last])
	other := func(r *request) bool {
		p := c.path(r)
		return len(p) < end || p[end-1] != last
	}
	own := slices.DeleteFunc(c.inFlight(tl.rank, ts), other)
	if len(own) == 0 {
		own = slices.DeleteFunc(c.answered(tl.rank, ts), other)
	}
	start := end - len(chain)
	// A running request's blocks are held. One whose blocks are gone was
	// preempted; it begins again before any that never began.
	again := func(r *request) bool { return !rep.holds(rep.hashes[chain[0]], tl.items[i].ev.Group, false) }
	if r := c.give(own, tl.rank, i, start, end, again); r != nil {
		for _, p := range chain {
			if c.by[p] == nil {
				c.by[p] = map[string]bool{}
			}
			c.by[p][r.namespace()] = true
		}
	}
}

// window finds the owner of a store of a model without main groups. Its tokens
// cover the whole range, its hashes a subset.
func (c *claims) window(tl *timeline, i int, ts float64) {
	ev := tl.items[i].ev
	n := len(ev.Tokens) / c.shape.size
	var own []*request
	start := 0
	for _, r := range c.inFlight(tl.rank, ts) {
		k, ok := c.within(r, ev, n)
		if ok && (len(own) == 0 || k == start) {
			own, start = append(own, r), k
		}
	}
	c.give(own, tl.rank, i, start, start+n, func(*request) bool { return false })
}

// within returns the block of r that the n blocks of ev's tokens begin at.
func (c *claims) within(r *request, ev *kv.Event, n int) (int, bool) {
	all, hashes := r.tokens(), c.hashes(r)
	for k := 0; (k+n)*c.shape.size <= len(all); k++ {
		switch {
		case ev.HasParent != (k > 0):
		case k > 0 && k <= len(hashes) && hashes[k-1] != ev.Parent:
		case !slices.Equal(all[k*c.shape.size:(k+n)*c.shape.size], ev.Tokens):
		default:
			return k, true
		}
	}
	return 0, false
}

// give hands the blocks [start, end) of item i to one of own. gone tells whether
// a request that began already lost the blocks it had there.
func (c *claims) give(own []*request, rank, i, start, end int, gone func(*request) bool) *request {
	pick := func(ok func(r *request) bool) *request {
		for _, r := range own {
			if ok(r) {
				return r
			}
		}
		return nil
	}
	r := pick(func(r *request) bool { return r.first >= 0 && r.next == start })
	if r == nil {
		r = pick(func(r *request) bool { return r.first >= 0 && start < r.next && gone(r) })
	}
	if r == nil {
		r = pick(func(r *request) bool { return r.first < 0 })
	}
	if r == nil {
		r = pick(func(r *request) bool { return start < r.next })
	}
	if r == nil {
		return nil
	}
	if r.first < 0 {
		r.first, r.start, r.rank = i, start, rank
	}
	r.next = end
	return r
}

// windowOnly reports a model without full attention.
func (r *replica) windowOnly() bool {
	for _, g := range r.groups {
		if g.main() {
			return false
		}
	}
	return len(r.groups) > 0
}

// byPath gives the engine hashes at each position of path.
func (r *replica) byPath(path []posID) func(i int) []kv.EngineHash {
	return func(i int) []kv.EngineHash {
		if i >= len(path) {
			return nil
		}
		return r.hashes[path[i]]
	}
}
