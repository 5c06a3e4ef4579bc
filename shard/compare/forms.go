// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"fmt"
	"slices"

	"kindex/internal/kv"
	"kindex/shard"
)

// batchEvery is how many lookups come between two that are also asked in a batch.
// It is odd, so that each form of a chain has its turn.
const batchEvery = 13

// batchSizes are how many queries the batches have, in turn: few, more, and more
// than an index takes in step.
var batchSizes = [...]int{9, 16, 33}

// recentChains is how many chains are kept to be asked again in batches.
const recentChains = 16

// asked is one question.
type asked struct {
	ns    kv.Namespace
	chain []kv.ContentHash
}

// otherForms is scratch of [side.forms], and what it counted.
type otherForms struct {
	grouped shard.Answer
	batch   []shard.Query
	dst     []kv.Match
	said    []uint64 // per pair: the last answer that named it
	n       uint64   // answers
	recent  [recentChains]asked
	met     int // questions met
	counts  Counts
}

// forms asks index i again in the other forms it has, in a batch only from time to
// time, and compares with s.dst, which it answered to chain.
func (s *side) forms(i int, ns kv.Namespace, chain []kv.ContentHash) error {
	o := &s.other
	if g, ok := s.Indexes[i].(shard.Grouper); ok {
		o.grouped.Reset()
		g.LookupGroups(ns, chain, &o.grouped)
		o.dst = o.grouped.Append(o.dst[:0])
		if err := s.same(i, o.dst, len(chain)); err != nil {
			return fmt.Errorf("grouped: %w", err)
		}
		if n := o.grouped.Len(); n != len(o.dst) {
			return fmt.Errorf("%s says that its grouped answer has %d holders and lists %d", s.Name, n, len(o.dst))
		}
		o.counts.Grouped++
	}
	b, ok := s.Indexes[i].(shard.Batcher)
	if !ok {
		return nil
	}
	q := &o.recent[o.met%recentChains]
	q.ns, q.chain = ns, append(q.chain[:0], chain...)
	o.met++
	if o.met%batchEvery != 0 {
		return nil
	}
	return s.batch(i, b, ns, chain)
}

// batch asks index i for beginnings of chain and, in between, for chains of before,
// which it must answer as it answers them one by one.
func (s *side) batch(i int, b shard.Batcher, ns kv.Namespace, chain []kv.ContentHash) error {
	o := &s.other
	size := batchSizes[o.met/batchEvery%len(batchSizes)]
	o.batch = slices.Grow(o.batch[:0], size)[:size]
	for k := range o.batch {
		q := &o.batch[k]
		q.Namespace, q.Chain, q.Matches = ns, chain[:len(chain)*k/(size-1)], q.Matches[:0]
		if k%2 == 1 {
			before := &o.recent[k/2%recentChains]
			q.Namespace, q.Chain = before.ns, before.chain
		}
	}
	b.LookupBatch(o.batch)
	o.counts.Batches++
	o.counts.Batched += uint64(size)
	for k := range o.batch {
		q := &o.batch[k]
		err := error(nil)
		if k%2 == 0 {
			err = s.same(i, q.Matches, len(q.Chain))
		} else if o.dst = s.Indexes[i].Lookup(q.Namespace, q.Chain, o.dst[:0]); !sameMatches(q.Matches, o.dst) {
			err = fmt.Errorf("%s gives %v, listed one by one %v, to %s", s.Name, q.Matches, o.dst, chainString(q.Namespace, q.Chain))
		}
		if err != nil {
			return fmt.Errorf("query %d of a batch of %d, of %d blocks: %w", k, size, len(q.Chain), err)
		}
	}
	return nil
}

// sameMatches reports whether a and b name the same holders at the same depths. It
// puts them in order.
func sameMatches(a, b []kv.Match) bool {
	byHolder := func(a, b kv.Match) int { return cmp.Compare(a.Holder, b.Holder) }
	slices.SortFunc(a, byHolder)
	slices.SortFunc(b, byHolder)
	return slices.Equal(a, b)
}

// same compares matches, which index i gave for the first blocks of what it gave
// s.dst for, with s.dst.
func (s *side) same(i int, matches []kv.Match, blocks int) error {
	s.other.n++
	want := len(s.dst)
	if blocks == 0 {
		want = 0
	}
	if len(matches) != want {
		return fmt.Errorf("%s gives %d matches, listed one by one %d", s.Name, len(matches), want)
	}
	for _, m := range matches {
		id, ok := s.pairOf[i][shard.Holder(m.Holder)]
		if !ok {
			return fmt.Errorf("%s names holder %d, never added or dropped since", s.Name, m.Holder)
		}
		for len(s.other.said) <= id {
			s.other.said = append(s.other.said, 0)
		}
		if s.other.said[id] == s.other.n {
			return fmt.Errorf("%s names holder %d twice", s.Name, m.Holder)
		}
		s.other.said[id] = s.other.n
		flat, most := s.answer[id].m, uint32(blocks)
		if m.Device != min(flat.Device, most) || m.Host != min(flat.Host, most) || m.Any != min(flat.Any, most) || s.answer[id].stamp != s.stamp {
			return fmt.Errorf("%s gives holder %d %s, listed one by one %s", s.Name, m.Holder, depths(m), depths(flat))
		}
	}
	return nil
}
