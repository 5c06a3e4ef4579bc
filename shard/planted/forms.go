// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"slices"
	"sync/atomic"

	"kindex/internal/kv"
	"kindex/shard"
)

// forms is an index whose fault lies in how several shards, several queries or
// several holders make one answer. What is not a fault comes from the index beneath
// in the form asked for.
type forms struct {
	*Index
	answers, groups, batches atomic.Uint64 // given so far
}

var (
	_ shard.Index   = (*forms)(nil)
	_ shard.Grouper = (*forms)(nil)
	_ shard.Batcher = (*forms)(nil)
)

// missing returns matches without those from base on of holders in the last shard,
// where it is time for that.
func (x *forms) missing(matches []kv.Match, base int) []kv.Match {
	s, ok := x.inner.(*shard.Sharded)
	if x.fault != ShardMissing || !ok || s.Shards() < 2 || x.answers.Add(1)%20 != 0 {
		return matches
	}
	kept := slices.DeleteFunc(matches[base:], func(m kv.Match) bool { return s.ShardOf(shard.Holder(m.Holder)) == s.Shards()-1 })
	return matches[:base+len(kept)]
}

// Lookup implements [shard.Index].
func (x *forms) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	base := len(dst)
	return x.missing(x.Index.Lookup(ns, chain, dst), base)
}

// LookupGroups implements [shard.Grouper].
func (x *forms) LookupGroups(ns kv.Namespace, chain []kv.ContentHash, a *shard.Answer) {
	g, ok := x.inner.(shard.Grouper)
	if !ok || x.fault == ShardMissing {
		a.Singles = x.Lookup(ns, chain, a.Singles)
		return
	}
	x.mu.RLock()
	g.LookupGroups(ns, chain, a)
	x.mu.RUnlock()
	if x.fault != GroupLacksHolder || x.groups.Add(1)%10 != 0 {
		return
	}
	for i := range a.Groups {
		for w := range a.Groups[i].Seats {
			if a.Groups[i].Seats[w] != 0 {
				a.Groups[i].Seats[w] &= a.Groups[i].Seats[w] - 1
				return
			}
		}
	}
	if n := len(a.Singles); n > 0 {
		a.Singles = a.Singles[:n-1]
	}
}

// LookupBatch implements [shard.Batcher].
func (x *forms) LookupBatch(queries []shard.Query) {
	bases := make([]int, len(queries))
	for i := range queries {
		bases[i] = len(queries[i].Matches)
	}
	if b, ok := x.inner.(shard.Batcher); ok {
		x.mu.RLock()
		b.LookupBatch(queries)
		x.mu.RUnlock()
	}
	for i := range queries {
		queries[i].Matches = x.missing(queries[i].Matches, bases[i])
	}
	if x.fault == BatchShifted && x.batches.Add(1)%5 == 0 {
		last := queries[len(queries)-1].Matches
		for i := range queries {
			queries[i].Matches, last = last, queries[i].Matches
		}
	}
}
