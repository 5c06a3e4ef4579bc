// SPDX-License-Identifier: Apache-2.0

package shard

// Check panics when an invariant of idx's structure is broken. An index without
// a core has none to check.
func Check(idx Index) {
	if s, ok := idx.(*Shard); ok {
		s.core.check()
	}
}
