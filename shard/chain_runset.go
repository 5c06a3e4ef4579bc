// SPDX-License-Identifier: Apache-2.0

// Hop before: coverage gained and lost, run by run.
// Hop after: whoever wants all that a slot holds.

package shard

import (
	"math/bits"
	"slices"
)

// runSet is the set of runs, by index, that one slot holds something of.
//
// It is hashed linearly: buckets of a few indices in no order, of which one is split
// when the set has grown by a bucket's fill. So there is no call that pays for all, as
// there would be if a list with holes were closed up, or a table doubled. A slot that
// holds little has one bucket, which is a list.
//
// Cost: a bucket, of 16 indices on average, for each change. It keeps its buckets
// until it is dropped.
type runSet struct {
	buckets [][]uint32
	n       int
}

// runSetFill is the average number of indices in a bucket: a line of 64 bytes.
const runSetFill = 16

// bucket returns the number of the bucket that idx belongs to, of buckets.
func runSetBucket(idx uint32, buckets int) int {
	h := idx * 0x9E3779B1
	h ^= h >> 15
	// All bits that number the buckets; or one fewer where that bucket is to come.
	mask := uint32(1)<<bits.Len(uint(buckets-1)) - 1
	if k := int(h & mask); k < buckets {
		return k
	}
	return int(h & (mask >> 1))
}

// add adds idx, which is not in the set.
func (s *runSet) add(idx uint32) {
	if s.n >= len(s.buckets)*runSetFill {
		s.split()
	}
	b := &s.buckets[runSetBucket(idx, len(s.buckets))]
	*b = append(*b, idx)
	s.n++
}

// split adds a bucket and moves there what belongs there.
func (s *runSet) split() {
	k := len(s.buckets)
	s.buckets = append(s.buckets, nil)
	if k == 0 {
		return
	}
	from := &s.buckets[k&^(1<<(bits.Len(uint(k))-1))]
	keep := (*from)[:0]
	for _, idx := range *from {
		if runSetBucket(idx, k+1) == k {
			s.buckets[k] = append(s.buckets[k], idx)
		} else {
			keep = append(keep, idx)
		}
	}
	*from = keep
}

// del takes idx out, which is in the set.
func (s *runSet) del(idx uint32) {
	b := s.buckets[runSetBucket(idx, len(s.buckets))]
	last := len(b) - 1
	for i := last; ; i-- {
		if b[i] == idx {
			b[i] = b[last]
			s.buckets[runSetBucket(idx, len(s.buckets))] = b[:last]
			s.n--
			return
		}
	}
}

// each calls fn for each index, in no order. fn may take that index out, and changes
// nothing else of the set.
func (s *runSet) each(fn func(idx uint32)) {
	for _, b := range s.buckets {
		for _, idx := range slices.Backward(b) {
			fn(idx)
		}
	}
}

// bytes is the memory of the set.
func (s *runSet) bytes() uint64 {
	n := uint64(cap(s.buckets)) * 24
	for _, b := range s.buckets {
		n += uint64(cap(b)) * 4
	}
	return n
}
