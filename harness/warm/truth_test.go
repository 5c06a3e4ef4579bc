// SPDX-License-Identifier: Apache-2.0

package warm

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"kindex/indexsrv/state"
	"kindex/shard"
)

// truth is what [publish.Content] sums up to where it holds what st's content holds.
func truth(st *state.Stream) (sum uint64) {
	c := &st.Content
	paths := make([]uint64, len(c.Hashes))
	for i, s := range c.Stretches {
		above := uint64(s.Namespace)
		if s.Parent >= 0 {
			above = paths[s.Parent]
		}
		for at := s.First; at < c.End(i); at++ {
			var b [16]byte
			binary.LittleEndian.PutUint64(b[0:], above)
			binary.LittleEndian.PutUint64(b[8:], uint64(c.Hashes[at]))
			above = xxh3.Hash(b[:])
			paths[at] = above
			for _, cp := range c.CopiesOf(at) {
				sum += item(above, cp)
			}
		}
	}
	return sum
}

func item(position uint64, cp shard.Copy) uint64 {
	var b [22]byte
	binary.LittleEndian.PutUint64(b[0:], uint64(cp.Engine))
	binary.LittleEndian.PutUint64(b[8:], position)
	b[16], b[17] = byte(cp.Tier), cp.Group
	binary.LittleEndian.PutUint32(b[18:], cp.Count)
	return xxh3.Hash(b[:])
}
