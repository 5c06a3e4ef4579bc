// SPDX-License-Identifier: Apache-2.0

// Before: the router, which has a decision. After: table.go; later requests' Merge.

package overlay

import "kindex/gateway/fleet"

// Prediction is the entry of one request that was placed. The zero value is none.
type Prediction struct{ e *entry }

// Claim notes that v's prompt is about to be computed by h, which is known to have the
// first has blocks of it already. It fails, and notes nothing, where a request that was
// placed since v's Merge shares more with it than anybody that the decision knew of:
// then merge and decide again. With anyhow it never fails.
//
// Cost: a copy of the prompt's prefix hashes, where there is something to predict.
func (o *Overlay) Claim(v *View, h *fleet.Holder, has uint32, now int64, anyhow bool) (Prediction, bool) {
	if o.o.PredictLife <= 0 || int(has) >= len(v.hashes) {
		return Prediction{}, true
	}
	e := newEntry(h, v.whole(), now+int64(o.o.PredictLife))
	ok := o.predicted.root(e, func(n *node) bool {
		return anyhow || !o.overtaken(v, h, n, now)
	})
	if !ok {
		o.stats.conflicts.Add(1)
		return Prediction{}, false
	}
	o.predicted.rest(e, now)
	o.stats.predicted.Add(1)
	return Prediction{e}, true
}

// overtaken reports whether the root's list, from n on, has an entry of another holder
// than h that came after v was taken and shares more with it than v knew of.
func (o *Overlay) overtaken(v *View, h *fleet.Holder, n *node, now int64) bool {
	for looked := 0; n != nil && n.e.seq > v.seq && looked < walk; n, looked = n.next, looked+1 {
		e := n.e
		long := e.alive(now)
		if e.holder != h && long > v.best && common(e.chain[:long], v.chain, 1) > v.best {
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
