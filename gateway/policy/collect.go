// SPDX-License-Identifier: Apache-2.0

// Before: a question. After: cost.go, which reads the holders that are gathered here.

package policy

import (
	"slices"
	"sync"

	"kindex/gateway/fleet"
)

// Bounds of one decision.
const (
	maxNamed = 16 // of the deepest holders
	maxNext  = 8  // of those next to them
	maxWarm  = 4  // of those that warm up
	maxSet   = max(MaxWhole, maxNamed+maxNext+MaxDraws+remembered) + maxWarm

	// maxCross is the number of matches up to which each draw is looked up in them.
	maxCross = 64

	// noneFor is how long it is taken for true that nobody of a large pool is usable,
	// in ns, unless a draw meets one.
	noneFor = 10e6
)

// relax is who may be given a request.
type relax uint8

const (
	usable relax = iota // ready, not vetoed, not tried
	ready               // vetoed ones too
	all                 // tried ones too
)

// set is one decision's work, kept for the next one.
type set struct {
	work
	list [maxSet]candidate     // the first n are in use
	who  [maxSet]*fleet.Holder // of list, side by side
}

// work is what begins anew with each decision.
type work struct {
	p    *policy
	q    *Question
	st   *state
	rng  rng
	n    int
	read bool // of the whole pool, not by draws

	relax relax

	// Of the choice.
	mean, limit float64
	most        uint64  // depth of the deepest
	blocks      int     // of the deepest
	share       float64 // of the prompt that they have
}

var sets = sync.Pool{New: func() any { return &set{} }}

// begin returns a set for q; the caller ends it.
func (p *policy) begin(q *Question) *set {
	s, ok := sets.Get().(*set)
	if !ok {
		s = &set{}
	}
	s.work = work{p: p, q: q, rng: p.rng(), st: p.stateOf(q.Pool)}
	return s
}

// end lets go of everything that is not the set's own.
func (s *set) end() {
	for i := range s.cands() {
		s.list[i].h, s.who[i] = nil, nil
	}
	s.work = work{}
	sets.Put(s)
}

func (s *set) cands() []candidate { return s.list[:s.n] }

func (s *set) tried(w *fleet.Worker) bool { return slices.Contains(s.q.Exclude, w) }

// open reports whether h may be given the request: of the rank asked for, and as far
// as no better one is there, usable and not tried.
func (s *set) open(h *fleet.Holder) bool {
	if s.q.Rank >= 0 && h.Rank != s.q.Rank {
		return false
	}
	if s.relax == usable {
		return h.Standing().Usable() && !s.tried(h.Worker)
	}
	return h.Standing().State() == fleet.Ready && (s.relax == all || !s.tried(h.Worker))
}

func (s *set) find(h *fleet.Holder) *candidate {
	for i, o := range s.who[:s.n] {
		if o == h {
			return &s.list[i]
		}
	}
	return nil
}

// add puts h into the set; nil where it is full.
func (s *set) add(h *fleet.Holder, f flags) *candidate {
	if s.n == len(s.list) {
		return nil
	}
	c := &s.list[s.n]
	s.who[s.n] = h
	s.n++
	*c = candidate{h: h, flags: f}
	return c
}

// gather puts into the set who stands for the fleet, all of a small pool and draws of a
// large one, and with matches the deepest holders.
func (s *set) gather(matches bool) {
	holders := s.q.Pool.Holders
	if len(holders) <= s.p.o.Whole {
		s.read = true
		for _, h := range holders {
			if s.open(h) {
				s.add(h, ofFleet)
			}
		}
		if matches {
			s.matchAll()
		}
		return
	}
	if matches {
		s.named()
	}
	if got := s.draw(holders); got < s.p.o.Draws/4 {
		s.sweep(holders, s.p.o.Draws-got)
	}
	for i := range s.st.best {
		if h := s.st.best[i].Load(); h != nil && s.find(h) == nil && s.open(h) {
			s.add(h, unmatched)
		}
	}
}

// matchAll notes what each of the set has of the prompt.
func (s *set) matchAll() {
	for i := range s.q.Matches {
		if c := s.find(s.q.Matches[i].Holder); c != nil {
			s.match(c, &s.q.Matches[i])
		}
	}
}

// draw takes one holder of each of so many stretches, each holder as likely. Where that
// one is not open it tries another once.
func (s *set) draw(holders []*fleet.Holder) int {
	got, draws := 0, s.p.o.Draws
	var drawn [MaxDraws]*fleet.Holder
	for i := range draws {
		h := holders[s.rng.within(i, draws, len(holders))]
		h.Standing() // brings its line, side by side with the others'
		drawn[i] = h
	}
	for _, h := range drawn[:draws] {
		h.Fetch()
	}
	for i, h := range drawn[:draws] {
		if !s.open(h) {
			if h = holders[s.rng.within(i, draws, len(holders))]; !s.open(h) {
				continue
			}
		}
		s.stand(h)
		got++
	}
	return got
}

// sweep looks through all for those that are open, where draws met next to none.
func (s *set) sweep(holders []*fleet.Holder, want int) {
	if s.relax == usable && s.q.Now-s.st.none.Load() < noneFor {
		return
	}
	at, found := s.rng.below(len(holders)), false
	for range holders {
		if want == 0 {
			return
		}
		h := holders[at]
		if at++; at == len(holders) {
			at = 0
		}
		if !s.open(h) {
			continue
		}
		if c := s.find(h); c == nil || !c.is(ofFleet) {
			s.stand(h)
			want--
			found = true
		}
	}
	if !found && s.relax == usable && s.q.Rank < 0 && len(s.q.Exclude) == 0 {
		s.st.none.Store(s.q.Now)
	}
}

// stand lets h stand for the fleet.
func (s *set) stand(h *fleet.Holder) {
	if c := s.find(h); c != nil {
		c.flags |= ofFleet
		return
	}
	s.add(h, ofFleet|unmatched)
}

// worth weighs a match: blocks on the device and on the host, in thousandths.
func (s *set) worth(m *Match) uint64 {
	device := min(m.Device, m.Blocks)
	return uint64(device)*1000 + uint64(m.Blocks-device)*s.p.host
}

// counts reports whether a match may bear on a decision.
func (s *set) counts(m *Match) bool {
	return m.Blocks > 0 && s.open(m.Holder) && m.Holder.Standing().Vetoes()&fleet.FaultyCache == 0
}

// match notes in c what it has of the prompt.
func (s *set) match(c *candidate, m *Match) {
	c.flags &^= unmatched
	if m.Blocks == 0 || c.h.Standing().Vetoes()&fleet.FaultyCache != 0 {
		return
	}
	device := min(m.Device, m.Blocks)
	c.blocks, c.device, c.depth = m.Blocks, device, s.worth(m)
	size := int64(s.q.BlockSize)
	c.cached = int64(m.Blocks) * size
	if s.q.Prompt > 0 && size > 0 {
		// Engines compute the last token anew in any case, and with it its block.
		c.cached = min(c.cached, (s.q.Prompt-1)/size*size)
	}
	c.host = max(c.cached-int64(device)*size, 0)
	if m.Predicted {
		c.flags |= predicted
	}
	if m.Degraded {
		c.flags |= degraded
	}
}

// named gathers the deepest holders of the prompt, and some of the others.
func (s *set) named() {
	ms := s.q.Matches
	for i := range ms[:min(len(ms), maxNamed+maxNext)] {
		ms[i].Holder.Standing() // brings its line, side by side with the others'
	}
	below := ^uint64(0)
	for range 4 { // levels: one, unless its holders cannot be used
		l := s.level(below)
		if l.n == 0 {
			return
		}
		// Of too many some are drawn; where none of these can be used all are tried.
		if l.n > maxNamed && s.pick(&l, maxNamed) || s.pick(&l, l.n) {
			s.next(l.worth)
			return
		}
		below = l.worth
	}
	for i := range ms {
		if s.n < maxNamed && s.worth(&ms[i]) < below && s.counts(&ms[i]) {
			s.match(s.add(ms[i].Holder, 0), &ms[i])
		}
	}
}

// level is the n matches of one worth: they lie from first to last.
type level struct {
	worth          uint64
	n, first, last int
}

// level returns that of the greatest worth below a bound. It touches no holder.
func (s *set) level(below uint64) (l level) {
	for i := range s.q.Matches {
		m := &s.q.Matches[i]
		if uint64(m.Blocks)*1000 < l.worth {
			break // the rest is less deep, whatever lies where
		}
		switch w := s.worth(m); {
		case w >= below || w < l.worth || w == 0:
		case w > l.worth:
			l = level{w, 1, i, i}
		default:
			l.n++
			l.last = i
		}
	}
	return l
}

// pick takes so many of l's matches, each of them as likely; where one does not count
// the next one that does.
func (s *set) pick(l *level, want int) bool {
	before, nth, k := s.n, 0, 0
	together := l.last-l.first+1 == l.n
	from := s.rng.within(k, want, l.n)
	for i := l.first; i <= l.last; i++ {
		if together && nth < from {
			i, nth = l.first+from, from
		}
		m := &s.q.Matches[i]
		if s.worth(m) != l.worth {
			continue
		}
		if nth >= from && s.counts(m) {
			s.match(s.add(m.Holder, 0), m)
			if k++; k == want || s.n == before+maxNamed {
				break
			}
			from = s.rng.within(k, want, l.n)
		}
		nth++
	}
	return s.n > before
}

// next adds some that have less than the deepest, from anywhere among them.
func (s *set) next(level uint64) {
	ms := s.q.Matches
	if len(ms) <= s.n {
		return
	}
	for i := range maxNext {
		m := &ms[s.rng.within(i, maxNext, len(ms))]
		if s.worth(m) < level && s.counts(m) && s.find(m.Holder) == nil {
			s.match(s.add(m.Holder, 0), m)
		}
	}
}

// cross looks up what draws have of the prompt: all of them where the matches are few,
// else of the two with the least to do.
func (s *set) cross() {
	ms := s.q.Matches
	if s.read || len(ms) == 0 {
		return
	}
	defer s.guess()
	if len(ms) <= maxCross {
		for i := range ms {
			if c := s.find(ms[i].Holder); c != nil && c.is(unmatched) {
				s.match(c, &ms[i])
				s.p.sum(c, s.q.Prompt)
			}
		}
		return
	}
	var two [2]*candidate
	for i := range s.cands() {
		c := &s.list[i]
		switch {
		case !c.is(unmatched):
		case two[0] == nil || c.bare < two[0].bare:
			two[0], two[1] = c, two[0]
		case two[1] == nil || c.bare < two[1].bare:
			two[1] = c
		}
	}
	for _, c := range two {
		if c == nil {
			continue
		}
		for i := range ms {
			if ms[i].Holder == c.h {
				s.match(c, &ms[i])
				s.p.sum(c, s.q.Prompt)
				break
			}
		}
	}
}

// guess takes it that who is not among the deepest has as much as the last of them:
// what all have is no reason to prefer those that were looked up.
func (s *set) guess() {
	if !s.q.More {
		return
	}
	last := s.q.Matches[len(s.q.Matches)-1]
	for i := range s.cands() {
		if c := &s.list[i]; c.is(unmatched) {
			last.Holder = c.h
			s.match(c, &last)
			c.flags |= unmatched
			s.p.sum(c, s.q.Prompt)
		}
	}
}
