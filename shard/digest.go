// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
)

// Digest returns one number for all of h's content: which positions it holds,
// by which engine hashes, in which tiers. It is equal on two hosts exactly when
// their content is (but for a collision of 64-bit hashes), whatever the history,
// the kind of index or the number of copies.
//
// Concurrency: a writer's call, as Walk is.
func Digest(idx Index, h Holder) (uint64, error) {
	paths := map[uint64]uint64{} // hash of the path to each node
	var sum, count uint64
	var b [17]byte
	err := idx.Walk(h, func(n *Node) bool {
		above, ok := paths[n.Parent]
		if !ok {
			above = uint64(n.Namespace)
		}
		binary.LittleEndian.PutUint64(b[0:], above)
		binary.LittleEndian.PutUint64(b[8:], uint64(n.Content))
		path := xxh3.HashSeed(b[:16], kv.HashSeed)
		paths[n.ID] = path
		for i, c := range n.Copies {
			if told(n.Copies[:i], c) {
				continue
			}
			binary.LittleEndian.PutUint64(b[0:], path)
			binary.LittleEndian.PutUint64(b[8:], uint64(c.Engine))
			b[16] = byte(c.Tier)
			sum += xxh3.HashSeed(b[:], kv.HashSeed)
			count++
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	binary.LittleEndian.PutUint64(b[0:], sum)
	binary.LittleEndian.PutUint64(b[8:], count)
	return xxh3.HashSeed(b[:16], kv.HashSeed), nil
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
