// SPDX-License-Identifier: Apache-2.0

// Before: the index's lookup. After: collect, which makes its matches ranks.

package indexsrv

import (
	"kindex/internal/kv"
	"kindex/shard"
)

// cutRounds bounds the passes of one cut: each drops matches of one depth.
const cutRounds = 8

// placed is a match and the key of its rank.
type placed struct {
	key uint64
	kv.Match
}

// cut leaves in q.matches the n deepest, of those that are as deep as the last of them
// the ones that come first in an answer; or some more, where telling would take a sort.
// Most of many hold but the beginning that all prompts have: to make ranks of them, and
// to sort these, would take longer than the lookup. It touches no rank.
func (h *Host) cut(q *queryScratch, n int) {
	for range cutRounds {
		ms := q.matches
		if len(ms) <= n {
			return
		}
		switch least, equal, alike := shallowest(ms); {
		case len(ms)-equal >= n:
			q.matches = over(ms, least)
		case alike:
			h.cutEqual(q, least, n-(len(ms)-equal))
			return
		default:
			return
		}
	}
}

// shallowest returns the least depth of ms, how many have it, and whether these have the
// same in each tier. Most do, and one after the other: that is the way without a branch
// taken.
func shallowest(ms []kv.Match) (least uint32, equal int, alike bool) {
	one := ms[0]
	alike = true
	for i := range ms {
		m := &ms[i]
		if m.Any == one.Any && m.Host == one.Host && m.Device == one.Device {
			equal++
			continue
		}
		switch {
		case m.Any == one.Any:
			equal++
			alike = false
		case m.Any < one.Any:
			one, equal, alike = *m, 1, true
		}
	}
	return one.Any, equal, alike
}

// over keeps what is deeper than least.
func over(ms []kv.Match, least uint32) []kv.Match {
	kept := ms[:0]
	for i := range ms {
		if ms[i].Any > least {
			kept = append(kept, ms[i])
		}
	}
	return kept
}

// cutEqual keeps of the matches with so many blocks the n whose ranks' places come
// first, in this order and after the others.
func (h *Host) cutEqual(q *queryScratch, least uint32, n int) {
	top := q.top[:0] // a heap, the greatest key first
	kept := q.matches[:0]
	keys := h.reg.holders.reader()
	most := ^uint64(0)
	for i := range q.matches {
		m := &q.matches[i]
		if m.Any > least {
			kept = append(kept, *m)
			continue
		}
		key := keys.key(shard.Holder(m.Holder))
		switch {
		case key == 0 || key >= most:
		case len(top) < n:
			top = append(top, placed{key, *m})
			if up(top); len(top) == n {
				most = top[0].key
			}
		default:
			top[0] = placed{key, *m}
			down(top)
			most = top[0].key
		}
	}
	for k := len(top) - 1; k > 0; k-- { // the greatest to the end, each time
		top[0], top[k] = top[k], top[0]
		down(top[:k])
	}
	for i := range top {
		kept = append(kept, top[i].Match)
	}
	q.top, q.matches = top, kept
}

// up puts the last of a heap into its place.
func up(heap []placed) {
	for i := len(heap) - 1; i > 0; {
		above := (i - 1) / 2
		if heap[above].key >= heap[i].key {
			return
		}
		heap[above], heap[i] = heap[i], heap[above]
		i = above
	}
}

// down puts the first of a heap into its place.
func down(heap []placed) {
	for i := 0; ; {
		next := 2*i + 1
		if next >= len(heap) {
			return
		}
		if next+1 < len(heap) && heap[next+1].key > heap[next].key {
			next++
		}
		if heap[i].key >= heap[next].key {
			return
		}
		heap[i], heap[next] = heap[next], heap[i]
		i = next
	}
}
