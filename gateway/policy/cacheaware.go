// SPDX-License-Identifier: Apache-2.0

// Before: decide.go. After: the decision.

package policy

import "math"

// cacheAware is the default: the deepest holders, unless they are under pressure or
// have next to nothing.
func (s *set) cacheAware(d *Decision) *candidate {
	s.gather(true)
	if s.n == 0 {
		return nil
	}
	share := s.deep()
	hit := s.most > 0 && !s.thin(share)
	turn := s.warmTurn(hit, share)
	s.price()
	s.gate()
	s.keepBest()
	if turn {
		if c := s.least(warm, gated|deepest); c != nil {
			d.Branch = WarmMiss
			if hit {
				d.Branch = WarmHit
			}
			return c
		}
	}
	if hit {
		d.Branch = Hit
		if c := s.least(deepest, gated); c != nil {
			return c
		}
		if s.p.o.Spread > 0 && s.count(deepest) >= s.p.o.Spread {
			return s.least(deepest, 0)
		}
	}
	s.cross()
	if c := s.least(0, gated); c != nil {
		d.Branch = Miss
		if hit {
			d.Branch = Spill
		}
		return c
	}
	if hit {
		return s.least(deepest, 0)
	}
	d.Branch = Miss
	return s.least(0, 0)
}

// deep marks the deepest holders of the set, and returns the share of the prompt that
// they have.
func (s *set) deep() float64 {
	s.most = 0
	for i := range s.cands() {
		s.most = max(s.most, s.list[i].depth)
	}
	if s.most == 0 {
		return 0
	}
	share := 0.0
	for i := range s.cands() {
		c := &s.list[i]
		if c.depth != s.most {
			continue
		}
		c.flags |= deepest
		s.blocks = max(s.blocks, int(c.blocks))
		switch {
		case s.q.Prompt > 0 && s.q.BlockSize > 0:
			share = max(share, float64(c.cached)/float64(s.q.Prompt))
		case s.q.Blocks > 0:
			share = max(share, min(float64(c.blocks)/float64(s.q.Blocks), 1))
		default:
			share = 1
		}
	}
	s.share = share
	return share
}

// thin reports whether what the deepest have is next to nothing.
func (s *set) thin(share float64) bool {
	return share <= s.p.o.ThinShare || s.blocks <= s.p.o.ThinBlocks && share < 0.5
}

func (s *set) count(f flags) int {
	n := 0
	for i := range s.cands() {
		if s.list[i].flags&f == f {
			n++
		}
	}
	return n
}

// gate marks who is under pressure: by requests, whoever has far more than the fleet's
// mean; by time, those of the deepest and of those that warm up that are so full of long
// prompts or so short of memory that computing the prompt elsewhere ends far sooner.
func (s *set) gate() {
	elsewhere := math.Inf(1)
	for i := range s.cands() {
		c := &s.list[i]
		if c.load > s.limit {
			c.flags |= gated
		}
		if c.flags&(deepest|warm) == 0 {
			elsewhere = min(elsewhere, c.total)
		}
	}
	patience := s.p.o.Patience.Seconds()
	if patience == 0 {
		return
	}
	for i := range s.cands() {
		c := &s.list[i]
		if c.flags&(deepest|warm) != 0 && c.total > elsewhere+patience && c.total > elsewhere*s.p.o.GateFactor {
			c.flags |= gated
		}
	}
}

// keepBest remembers the best of a large pool.
func (s *set) keepBest() {
	if !s.read {
		s.st.remember(s.cands())
	}
}

// warmTurn reports whether it is the turn of those that warm up: at one miss in so many,
// and at one hit in so many, of these a shallow one where there is any. It adds
// some of them to the set.
func (s *set) warmTurn(hit bool, share float64) bool {
	holders := s.p.o.Levels.Warming(s.q.Pool.Model)
	if len(holders) == 0 || !s.due(hit, share) {
		return false
	}
	at, got := 0, 0
	if len(holders) > maxWarm {
		at = s.rng.below(len(holders))
	}
	for range holders {
		h := holders[at]
		if at++; at == len(holders) {
			at = 0
		}
		if !s.open(h) {
			continue
		}
		c := s.find(h)
		if c == nil {
			c = s.add(h, unmatched)
		}
		c.flags |= warm
		if got++; got == maxWarm {
			break
		}
	}
	return got > 0
}

// shallow is the share of a prompt up to which a hit is readily given away.
const shallow = 0.5

func (s *set) due(hit bool, share float64) bool {
	w := &s.p.o.Levels.warm
	if !hit {
		return w.Misses > 0 && s.st.misses.Add(1)%uint64(w.Misses) == 0
	}
	if w.Hits == 0 {
		return false
	}
	// The first shallow one of each stretch of hits, else its last.
	n, every := s.st.hits.Add(1)-1, uint64(w.Hits)
	stretch, last := n/every+1, n%every == every-1
	given := s.st.given.Load()
	return given < stretch && (last || share <= shallow) && s.st.given.CompareAndSwap(given, stretch)
}
