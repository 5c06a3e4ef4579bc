// SPDX-License-Identifier: Apache-2.0

// Before: the router, which has a decision. After: table.go; later requests' Merge.

package overlay

import (
	"kindex/gateway/fleet"
	"kindex/gateway/policy"
)

// Prediction is the entry of one request that was placed. The zero value is none.
type Prediction struct{ e *entry }

// Claim notes that v's prompt is about to be computed by h. ms are the matches that the
// decision was made of, as v's Merge returned them. It fails, and notes nothing, where
// since that Merge a request went to a holder that has, or will have, more of the
// prompt than h and than ms said: then merge and decide again. With anyhow it never
// fails.
//
// Cost: a copy of the prompt's prefix hashes, where there is something to predict.
func (o *Overlay) Claim(v *View, ms []policy.Match, h *fleet.Holder, now int64, anyhow bool) (Prediction, bool) {
	has := int(Blocks(ms, h))
	if o.o.PredictLife <= 0 || has >= len(v.hashes) {
		return Prediction{}, true
	}
	e := newEntry(h, v.whole(), now+int64(o.o.PredictLife))
	ok := o.predicted.root(e, func(n *node) bool {
		return anyhow || !v.overtaken(ms, h, has, n, now)
	})
	if !ok {
		o.stats.conflicts.Add(1)
		return Prediction{}, false
	}
	o.predicted.rest(e, now)
	o.stats.predicted.Add(1)
	return Prediction{e}, true
}

// overtaken reports whether the root's list, from n on, has an entry that came after v
// was taken, of a holder other than h that has more of the prompt than h and than ms
// said. The caller holds the list's lock.
func (v *View) overtaken(ms []policy.Match, h *fleet.Holder, has int, n *node, now int64) bool {
	for looked := 0; n != nil && n.e.seq > v.seq && looked < walk; n, looked = n.next, looked+1 {
		e := n.e
		long := e.alive(now)
		if e.holder == h || long <= has {
			continue
		}
		if depth := common(e.chain[:long], v.chain, 1); depth > has && depth > int(Blocks(ms, e.holder)) {
			return true
		}
	}
	return false
}

// Withdraw takes back what will not come: the request failed before its prompt was
// computed.
func (o *Overlay) Withdraw(p Prediction) {
	if p.e != nil {
		o.predicted.end(p.e)
		o.stats.withdrawn.Add(1)
	}
}
