// SPDX-License-Identifier: Apache-2.0

package shard

import "fmt"

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
	switch s := idx.(type) {
	case *Shard:
		if c, ok := s.core.(*chainCore); ok {
			return c.rowsMade
		}
	case *Sharded:
		for _, sh := range s.shards {
			n += RowsMade(sh)
		}
	}
	return n
}

// checkLoad panics when the running count of memberships is wrong.
func (s *Shard) checkLoad() {
	memberships, holders := s.Load()
	if st := s.Stats(); st.Memberships != memberships || st.Holders != holders {
		panic(fmt.Sprintf("BUG: shard: load is %d memberships, %d holders, counted %d, %d", memberships, holders, st.Memberships, st.Holders))
	}
}
