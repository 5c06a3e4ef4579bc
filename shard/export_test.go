// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Check panics when an invariant of idx's structure is broken. An index without
// a core has none to check.
func Check(idx Index) {
	switch s := idx.(type) {
	case *Shard:
		s.core.check()
		s.checkLoad()
	case *Sharded:
		for _, sh := range s.shards {
			Check(sh)
		}
	}
}

// RowsMade returns how many alias rows idx ever made: 0 for an index without a
// chain core.
func RowsMade(idx Index) (n uint64) {
	for _, c := range chainCores(idx) {
		n += c.rowsMade
	}
	return n
}

// TinyTables makes the tables of the empty index idx begin as small as can be and
// grow by the smallest steps, so that growth is under way much of the time, and its
// memory go back to the system as soon as it can. It returns what counts the steps
// that edge tables go on by. Without a chain core it changes nothing.
func TinyTables(idx Index) *atomic.Uint64 {
	edgeSteps := new(atomic.Uint64)
	for _, c := range chainCores(idx) {
		tinyTables(c, func() { edgeSteps.Add(1) })
	}
	return edgeSteps
}

// tinyTables is [TinyTables] of one core; hook is called at each step of its edge table.
func tinyTables(c *chainCore, hook func()) {
	const edgeLines = 2 // the fewest that grow at all
	c.dict.sizes = dictTiny
	c.arena.testEager = true
	c.edges.desc.Store(edgeLines<<32 | edgeLines)
	c.edgeState.testHook = hook
}

// Growing reports whether the dictionary of the core that h lives in is on its way
// to another size, and whether there is any.
//
// Concurrency: a writer's call of h's shard.
func Growing(idx Index, h Holder) (growing, has bool) {
	if s, ok := idx.(*Sharded); ok {
		idx = s.of(h)
	}
	cores := chainCores(idx)
	return slices.ContainsFunc(cores, func(c *chainCore) bool { return c.dict.table.Growing() }), len(cores) > 0
}

// chainCores returns the chain cores of idx, one a shard.
func chainCores(idx Index) (all []*chainCore) {
	switch s := idx.(type) {
	case *Shard:
		if c, ok := s.core.(*chainCore); ok {
			all = append(all, c)
		}
	case *Sharded:
		for _, sh := range s.shards {
			all = append(all, chainCores(sh)...)
		}
	}
	return all
}

// checkLoad panics when the running count of memberships is wrong.
func (s *Shard) checkLoad() {
	memberships, holders := s.Load()
	if st := s.Stats(); st.Memberships != memberships || st.Holders != holders {
		panic(fmt.Sprintf("BUG: shard: load is %d memberships, %d holders, counted %d, %d", memberships, holders, st.Memberships, st.Holders))
	}
}

// SmallPieces makes the pieces of r as small as they can be.
func SmallPieces(r *ContentReader) { r.units = 1 }
