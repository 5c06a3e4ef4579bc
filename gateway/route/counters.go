// SPDX-License-Identifier: Apache-2.0

// Before: every step of a placement. After: metrics, which read at their leisure.

package route

import (
	"sync/atomic"

	"kindex/gateway/policy"
)

// counters are how often each way was taken.
type counters struct {
	unknownModel, refused                                 atomic.Uint64
	blind, lookups, lookupsFailed, matched, matchedNobody atomic.Uint64
	unknownHolders, otherBlocks, otherTokens, drained     atomic.Uint64
	branches                                              [policy.Branches]atomic.Uint64
	outcomes                                              [outcomeKinds]atomic.Uint64
}

// placed counts a decision.
func (c *counters) placed(b policy.Branch) { c.branches[b].Add(1) }

// Stats are a router's counts since it began.
type Stats struct {
	UnknownModel   uint64 // requests for a model that nobody serves
	Refused        uint64 // that no worker could take
	Blind          uint64 // placed without a lookup: no tokens, or no index
	Lookups        uint64
	LookupsFailed  uint64
	Matched        uint64 // lookups that named a holder of the pool
	MatchedNobody  uint64 // that named only instances that the pool does not know
	UnknownHolders uint64 // such instances, one by one
	OtherBlocks    uint64 // lookups made again because the index has blocks of another size
	OtherTokens    uint64 // answers whose prompt had other tokens than were looked up
	Drained        uint64 // decisions made again because the worker began to drain

	Branches [policy.Branches]uint64 // by policy.Branch
	Outcomes [outcomeKinds]uint64
}

// Add adds o's counts to s.
func (s *Stats) Add(o *Stats) {
	for _, c := range []struct {
		to   *uint64
		more uint64
	}{
		{&s.UnknownModel, o.UnknownModel},
		{&s.Refused, o.Refused},
		{&s.Blind, o.Blind},
		{&s.Lookups, o.Lookups},
		{&s.LookupsFailed, o.LookupsFailed},
		{&s.Matched, o.Matched},
		{&s.MatchedNobody, o.MatchedNobody},
		{&s.UnknownHolders, o.UnknownHolders},
		{&s.OtherBlocks, o.OtherBlocks},
		{&s.OtherTokens, o.OtherTokens},
		{&s.Drained, o.Drained},
	} {
		*c.to += c.more
	}
	for i, n := range o.Branches {
		s.Branches[i] += n
	}
	for i, n := range o.Outcomes {
		s.Outcomes[i] += n
	}
}

// Stats returns the counts.
func (r *Router) Stats() Stats {
	c := &r.stats
	s := Stats{
		UnknownModel: c.unknownModel.Load(), Refused: c.refused.Load(), Blind: c.blind.Load(), Lookups: c.lookups.Load(),
		LookupsFailed: c.lookupsFailed.Load(), Matched: c.matched.Load(), MatchedNobody: c.matchedNobody.Load(),
		UnknownHolders: c.unknownHolders.Load(), OtherBlocks: c.otherBlocks.Load(), OtherTokens: c.otherTokens.Load(), Drained: c.drained.Load(),
	}
	for i := range c.branches {
		s.Branches[i] = c.branches[i].Load()
	}
	for i := range c.outcomes {
		s.Outcomes[i] = c.outcomes[i].Load()
	}
	return s
}
