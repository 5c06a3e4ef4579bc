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
			c.store(tl, i, ts, chain)
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
func (c *claims) store(tl *timeline, i int, ts float64, chain []posID) {
	last := chain[len(chain)-1]
	end := int(c.forest.depth[last])
	own := slices.DeleteFunc(c.inFlight(tl.rank, ts), func(r *request) bool {
		p := c.path(r)
		return len(p) < end || p[end-1] != last
	})
	c.give(own, tl.rank, i, end-len(chain), end)
}

// window finds the owner of a store of a model without main groups. Its tokens
// cover the whole range, its hashes a subset.
func (c *claims) window(tl *timeline, i int, ts float64) {
	ev := tl.items[i].ev
	n := len(ev.Tokens) / c.shape.size
	for _, r := range c.inFlight(tl.rank, ts) {
		all, hashes := r.tokens(), c.hashes(r)
		for k := 0; (k+n)*c.shape.size <= len(all); k++ {
			switch {
			case ev.HasParent != (k > 0):
				continue
			case k > 0 && k <= len(hashes) && hashes[k-1] != ev.Parent:
				continue
			case !slices.Equal(all[k*c.shape.size:(k+n)*c.shape.size], ev.Tokens):
				continue
			}
			c.give([]*request{r}, tl.rank, i, k, k+n)
			return
		}
	}
}

// give hands the blocks [start, end) of item i to one of own.
func (c *claims) give(own []*request, rank, i, start, end int) {
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
		r = pick(func(r *request) bool { return r.first < 0 })
	}
	if r == nil { // preempted, and begun again
		r = pick(func(r *request) bool { return r.first >= 0 && start < r.next })
	}
	if r == nil {
		return
	}
	if r.first < 0 {
		r.first, r.start, r.rank = i, start, rank
	}
	r.next = end
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
