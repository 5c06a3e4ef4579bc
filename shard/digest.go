// SPDX-License-Identifier: Apache-2.0

package shard

// Digest returns one number for all of h's content: which positions it holds,
// by which engine hashes, in which tiers. It is equal on two hosts exactly when
// their content is (but for a collision of 64-bit hashes), whatever the history,
// the kind of index or the number of copies. What waits for a parent is no content.
//
// Concurrency: a writer's call, as Walk is.
func Digest(idx Index, h Holder) (uint64, error) {
	r, err := ReadContent(idx, h)
	if err != nil {
		return 0, err
	}
	var c Content
	for r.Next(&c) {
	}
	return c.Digest(), nil
}

// told reports whether before has c's engine hash and tier, in another group.
func told(before []Copy, c Copy) bool {
	for _, b := range before {
		if b.Engine == c.Engine && b.Tier == c.Tier {
			return true
		}
	}
	return false
}
