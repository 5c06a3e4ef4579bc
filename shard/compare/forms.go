// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"

	"kindex/internal/kv"
	"kindex/shard"
)

// How often lookups are asked in the other forms an index has, and how many
// queries a batch has.
const (
	groupsEvery = 4
	batchEvery  = 16
	batchSize   = 9
)

// otherForms is scratch of [side.forms].
type otherForms struct {
	grouped shard.Answer
	batch   []shard.Query
	dst     []kv.Match
	said    []uint64 // per pair: the last answer that named it
	n       uint64   // answers
}

// forms asks index i again in the other forms it has, each from time to time, and
// compares with s.dst, which it answered to chain.
func (s *side) forms(i int, ns kv.Namespace, chain []kv.ContentHash) error {
	o := &s.other
	if g, ok := s.Indexes[i].(shard.Grouper); ok && s.stamp%groupsEvery == 0 {
		o.grouped.Reset()
		g.LookupGroups(ns, chain, &o.grouped)
		o.dst = o.grouped.Append(o.dst[:0])
		if err := s.same(i, o.dst, len(chain)); err != nil {
			return fmt.Errorf("grouped: %w", err)
		}
		if n := o.grouped.Len(); n != len(o.dst) {
			return fmt.Errorf("%s says that its grouped answer has %d holders and lists %d", s.Name, n, len(o.dst))
		}
	}
	b, ok := s.Indexes[i].(shard.Batcher)
	if !ok || s.stamp%batchEvery != 0 {
		return nil
	}
	if o.batch == nil {
		o.batch = make([]shard.Query, batchSize)
	}
	for k := range o.batch {
		q := &o.batch[k]
		q.Namespace, q.Chain, q.Matches = ns, chain[:len(chain)*k/(batchSize-1)], q.Matches[:0]
	}
	b.LookupBatch(o.batch)
	for k := range o.batch {
		if err := s.same(i, o.batch[k].Matches, len(o.batch[k].Chain)); err != nil {
			return fmt.Errorf("query %d of a batch, of %d blocks: %w", k, len(o.batch[k].Chain), err)
		}
	}
	return nil
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
