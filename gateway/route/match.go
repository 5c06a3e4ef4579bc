// SPDX-License-Identifier: Apache-2.0

// Before: the index, which names instances. After: the policy, which names holders.

package route

import (
	"kindex/gateway/fleet"
	"kindex/gateway/policy"
)

// named translates the index's answer to holders of pool, the deepest first as it
// comes, adds what the overlay knows, and returns the instances that nobody of the
// model has.
func (r *Router) named(pool *fleet.Pool, q *Request) (known, unknown int) {
	whole := pool
	if o, ok := r.o.Fleet.(*Only); ok {
		whole = o.Whole(pool.Model)
	}
	for i := range q.answer.Matches {
		m := &q.answer.Matches[i]
		h := pool.Holder(m.Instance, m.Rank)
		if h == nil {
			if whole == nil || whole.Holder(m.Instance, m.Rank) == nil {
				unknown++
			}
			continue
		}
		q.matches = append(q.matches, policy.Match{Holder: h, Blocks: m.Any, Device: m.Device, Degraded: m.Degraded})
	}
	known = len(q.matches)
	if r.o.Overlay != nil {
		q.matches = r.o.Overlay.Merge(&q.view, q.matches, fleet.Now())
	}
	return known, unknown
}

// seen counts an answer's holders. Instances that no pool knows are counted apart: an
// index that has workers by other names than the gateway makes every lookup miss, and
// nothing else shows it.
func (r *Router) seen(known, unknown int) {
	r.stats.unknownHolders.Add(uint64(unknown))
	switch {
	case known > 0:
		r.stats.matched.Add(1)
	case unknown > 0:
		r.stats.matchedNobody.Add(1)
	}
}
