// SPDX-License-Identifier: Apache-2.0

// Before: the index's lookup. After: collect, which makes its matches ranks.

package indexsrv

import (
	"kindex/internal/kv"
	"kindex/shard"
)

// cutRounds bounds the passes of one cut: each drops matches of one depth.
const cutRounds = 8

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
		least := ms[0].Any
		for i := range ms {
			least = min(least, ms[i].Any)
		}
		more, alike := 0, true
		var one *kv.Match
		for i := range ms {
			m := &ms[i]
			switch {
			case m.Any > least:
				more++
			case one == nil:
				one = m
			case m.Host != one.Host || m.Device != one.Device:
				alike = false
			}
		}
		if more >= n {
			q.matches = over(ms, least)
			continue
		}
		if alike {
			h.cutEqual(q, least, n-more)
		}
		return
	}
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

// cutEqual keeps of the matches with so many blocks the n whose ranks' places come first.
func (h *Host) cutEqual(q *queryScratch, least uint32, n int) {
	top := q.keys[:0] // a heap, the greatest first
	for i := range q.matches {
		m := &q.matches[i]
		if m.Any > least {
			continue
		}
		key, ok := h.reg.holders.key(shard.Holder(m.Holder))
		switch {
		case !ok:
		case len(top) < n:
			top = append(top, key)
			up(top)
		case key < top[0]:
			top[0] = key
			down(top)
		}
	}
	q.keys = top
	kept := q.matches[:0]
	for i := range q.matches {
		m := &q.matches[i]
		if m.Any == least {
			key, ok := h.reg.holders.key(shard.Holder(m.Holder))
			if !ok || len(top) == 0 || key > top[0] {
				continue
			}
		}
		kept = append(kept, *m)
	}
	q.matches = kept
}

// up puts the last of a heap into its place.
func up(heap []uint64) {
	for i := len(heap) - 1; i > 0; {
		above := (i - 1) / 2
		if heap[above] >= heap[i] {
			return
		}
		heap[above], heap[i] = heap[i], heap[above]
		i = above
	}
}

// down puts the first of a heap into its place.
func down(heap []uint64) {
	for i := 0; ; {
		next := 2*i + 1
		if next >= len(heap) {
			return
		}
		if next+1 < len(heap) && heap[next+1] > heap[next] {
			next++
		}
		if heap[i] >= heap[next] {
			return
		}
		heap[i], heap[next] = heap[next], heap[i]
		i = next
	}
}
