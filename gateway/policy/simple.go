// SPDX-License-Identifier: Apache-2.0

// Before: decide.go. After: the decision. The policies that do not ask who has what.

package policy

import "math"

// tries is how many draws a policy makes before it looks through the pool.
const tries = 32

// leastLoad takes who has the fewest requests.
func (s *set) leastLoad() *candidate {
	s.gather(false)
	s.price()
	least := math.Inf(1)
	for i := range s.cands() {
		least = min(least, s.list[i].load)
	}
	for i := range s.cands() {
		if c := &s.list[i]; c.load <= least {
			c.flags |= runs
		}
	}
	s.keepBest()
	return s.least(runs, 0)
}

// inTurn takes the next one.
func (s *set) inTurn() *candidate {
	holders := s.q.Pool.Holders
	for range holders {
		h := holders[(s.st.turn.Add(1)-1)%uint64(len(holders))]
		if s.open(h) {
			return s.add(h, 0)
		}
	}
	return nil
}

// atRandom takes any one.
func (s *set) atRandom() *candidate {
	holders := s.q.Pool.Holders
	if len(holders) == 0 {
		return nil
	}
	for range tries {
		if h := holders[s.rng.below(len(holders))]; s.open(h) {
			return s.add(h, 0)
		}
	}
	n := 0
	var c *candidate
	for _, h := range holders {
		if !s.open(h) {
			continue
		}
		if n++; c == nil {
			c = s.add(h, 0)
		} else if s.rng.below(n) == 0 {
			c.h = h
		}
	}
	return c
}

// powerOfTwo takes the better of two: the one with the less expected time.
func (s *set) powerOfTwo() *candidate {
	for range 2 {
		if c := s.atRandom(); c == nil {
			return nil
		}
	}
	for range tries {
		if s.list[1].h != s.list[0].h {
			break
		}
		s.n = 1
		s.atRandom()
	}
	s.price()
	return s.least(0, 0)
}

// byKey takes the holder to which the key is dearest (rendezvous hashing): a worker
// that leaves moves its own keys alone, one that joins takes its share of all. Where
// the first cannot be used it is the second, for all gateways the same.
func (s *set) byKey() *candidate {
	keys := s.st.keys
	key := mix(s.q.Key + 0x9e3779b97f4a7c15)
	best, most := -1, uint64(0)
	for i, k := range keys {
		if w := mix(k ^ key); (w >= most || best < 0) && s.open(s.q.Pool.Holders[i]) {
			best, most = i, w
		}
	}
	if best < 0 {
		return nil
	}
	return s.add(s.q.Pool.Holders[best], 0)
}
