// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"errors"
	"fmt"

	"kindex/internal/kv"
	"kindex/shard"
)

// ErrDiffers is wrapped by every error that reports a difference.
var ErrDiffers = errors.New("indexes differ")

// Counts says how much was compared so far.
type Counts struct {
	States      uint64 // whole contents of one holder
	Memberships uint64 // positions held, one per holder and comparison
	Copies      uint64 // engine hashes by tier and group on those
	Numbers     uint64 // sets of counters, of a holder or of an index
	Chains      uint64 // chains asked for in four forms
	Lookups     uint64 // questions asked of both sides
	Matches     uint64 // holders in the answers
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.States += o.States
	c.Memberships += o.Memberships
	c.Copies += o.Copies
	c.Numbers += o.Numbers
	c.Chains += o.Chains
	c.Lookups += o.Lookups
	c.Matches += o.Matches
}

// String returns the counts in words.
func (c Counts) String() string {
	return fmt.Sprintf("%d states with %d memberships and %d copies, %d sets of counters, %d lookups with %d matches (%d chains in four forms)",
		c.States, c.Memberships, c.Copies, c.Numbers, c.Lookups, c.Matches, c.Chains)
}

// Place is one holder's place on one side: which of its indexes, and its number there.
type Place struct {
	Index  int
	Holder shard.Holder
}

// Comparer compares the indexes got with the indexes want.
//
// Concurrency: one goroutine, and no other call on the indexes meanwhile.
type Comparer struct {
	got, want side
	pairs     []pair
	counts    Counts
	chains    chainSet
	asked     []kv.ContentHash // scratch of Chain
}

// pair is one holder on both sides.
type pair struct {
	name      string
	got, want Place
	live      bool
}

// side is one of the two compared.
type side struct {
	name    string
	indexes []shard.Index
	pairOf  []map[shard.Holder]int // per index
	dst     []kv.Match             // scratch: one index's answer
	answer  []answer               // per pair
	stamp   uint64
	walker  walker
}

// answer is one holder's match; stale when its stamp is not the side's.
type answer struct {
	m     kv.Match
	stamp uint64
}

// New returns a comparer without holders. In messages the two sides are called
// "got" and "want".
func New(got, want []shard.Index) *Comparer {
	return &Comparer{got: newSide("got", got), want: newSide("want", want), chains: newChainSet()}
}

func newSide(name string, indexes []shard.Index) side {
	s := side{name: name, indexes: indexes, pairOf: make([]map[shard.Holder]int, len(indexes))}
	for i := range s.pairOf {
		s.pairOf[i] = make(map[shard.Holder]int)
	}
	s.walker.init()
	return s
}

// Add says that got and want are one holder, to be called name in messages, and
// returns its number for [Comparer.Holder].
func (c *Comparer) Add(name string, got, want Place) int {
	id := len(c.pairs)
	c.pairs = append(c.pairs, pair{name, got, want, true})
	c.got.pairOf[got.Index][got.Holder] = id
	c.want.pairOf[want.Index][want.Holder] = id
	return id
}

// Remove says that holder id was dropped on both sides: an answer that still
// names it is a difference.
func (c *Comparer) Remove(id int) {
	p := &c.pairs[id]
	p.live = false
	delete(c.got.pairOf[p.got.Index], p.got.Holder)
	delete(c.want.pairOf[p.want.Index], p.want.Holder)
}

// Counts returns what was compared so far.
func (c *Comparer) Counts() Counts { return c.counts }

// State compares the content and counters of every holder, and the counters of
// the indexes. Cost: a walk over all memberships of both sides.
func (c *Comparer) State() error {
	for id := range c.pairs {
		if c.pairs[id].live {
			if err := c.Holder(id); err != nil {
				return err
			}
		}
	}
	return c.numbers()
}

// All compares the state and looks up every chain that the want side has held
// at any call of All, in the four forms of [Comparer.Chain]. Chains that go on
// from one another count as one, the longest: its lookup's depths say where
// each shorter one ends.
func (c *Comparer) All() error {
	if err := c.State(); err != nil {
		return err
	}
	for id := range c.pairs {
		if p := &c.pairs[id]; p.live {
			if err := c.chains.collect(c.want.indexes[p.want.Index], p.want.Holder); err != nil {
				return fmt.Errorf("%s: walk: %w", p.name, err)
			}
		}
	}
	for _, ch := range c.chains.all {
		if err := c.Chain(ch.ns, ch.contents); err != nil {
			return err
		}
	}
	return nil
}

// Holder compares one holder's whole content and counters.
func (c *Comparer) Holder(id int) error {
	p := &c.pairs[id]
	got, want := c.got.indexes[p.got.Index], c.want.indexes[p.want.Index]
	gs, err := c.got.walker.sum(got, p.got.Holder)
	if err != nil {
		return fmt.Errorf("%w: %s: got: %w", ErrDiffers, p.name, err)
	}
	ws, err := c.want.walker.sum(want, p.want.Holder)
	if err != nil {
		return fmt.Errorf("%w: %s: want: %w", ErrDiffers, p.name, err)
	}
	c.counts.States++
	c.counts.Memberships += ws.held
	c.counts.Copies += ws.copies
	if gs != ws {
		return fmt.Errorf("%w: %s: %w", ErrDiffers, p.name, diffContent(got, p.got.Holder, want, p.want.Holder))
	}
	gn, err := got.HolderStats(p.got.Holder)
	if err != nil {
		return fmt.Errorf("%w: %s: got counters: %w", ErrDiffers, p.name, err)
	}
	wn, err := want.HolderStats(p.want.Holder)
	if err != nil {
		return fmt.Errorf("%w: %s: want counters: %w", ErrDiffers, p.name, err)
	}
	c.counts.Numbers++
	if gn != wn {
		return fmt.Errorf("%w: %s: counters: got %+v, want %+v", ErrDiffers, p.name, gn, wn)
	}
	if gn.Memberships != gs.held {
		return fmt.Errorf("%w: %s: got counts %d memberships and walks %d", ErrDiffers, p.name, gn.Memberships, gs.held)
	}
	return nil
}

// numbers compares what the indexes say of themselves, summed over each side.
// Blocks and bytes are an index's own affair.
func (c *Comparer) numbers() error {
	sum := func(indexes []shard.Index) (holders, memberships uint64) {
		for _, idx := range indexes {
			st := idx.Stats()
			holders += st.Holders
			memberships += st.Memberships
		}
		return holders, memberships
	}
	gh, gm := sum(c.got.indexes)
	wh, wm := sum(c.want.indexes)
	c.counts.Numbers++
	if gh != wh || gm != wm {
		return fmt.Errorf("%w: counters: got %d holders with %d memberships, want %d with %d", ErrDiffers, gh, gm, wh, wm)
	}
	return nil
}

// Chain compares the lookups of chain as it is, of its first half, with its
// middle block replaced, and with its tail replaced and extended.
func (c *Comparer) Chain(ns kv.Namespace, chain []kv.ContentHash) error {
	if len(chain) == 0 {
		return nil
	}
	c.counts.Chains++
	if err := c.Lookup(ns, chain); err != nil {
		return err
	}
	if err := c.Lookup(ns, chain[:(len(chain)+1)/2]); err != nil {
		return err
	}
	c.asked = append(c.asked[:0], chain...)
	c.asked[len(chain)/2] ^= replaced
	if err := c.Lookup(ns, c.asked); err != nil {
		return err
	}
	c.asked = append(c.asked[:0], chain...)
	for i := len(chain) - (len(chain)+3)/4; i < len(chain); i++ {
		c.asked[i] ^= replaced
	}
	for i := range kv.ContentHash(4) {
		c.asked = append(c.asked, replaced+i)
	}
	return c.Lookup(ns, c.asked)
}

// replaced turns a content hash into one that no block of a real chain has.
const replaced = 0x5eed_0f_a_0ddb_10c4

// Lookup compares the answers to one question.
func (c *Comparer) Lookup(ns kv.Namespace, chain []kv.ContentHash) error {
	c.counts.Lookups++
	ng, err := c.got.ask(len(c.pairs), ns, chain)
	if err == nil {
		_, err = c.want.ask(len(c.pairs), ns, chain)
	}
	if err != nil {
		return fmt.Errorf("%w: lookup of %s: %w", ErrDiffers, chainString(ns, chain), err)
	}
	c.counts.Matches += uint64(ng)
	for id := range c.pairs {
		g, w := c.got.match(id), c.want.match(id)
		if g.Device != w.Device || g.Host != w.Host || g.Any != w.Any {
			return fmt.Errorf("%w: lookup of %s: %s: got %s, want %s", ErrDiffers, chainString(ns, chain), c.pairs[id].name, depths(g), depths(w))
		}
	}
	return nil
}

// ask unites the answers of a side's indexes and checks what any answer must
// be: known holders, once each, no empty match, cumulative depths within the chain.
func (s *side) ask(pairs int, ns kv.Namespace, chain []kv.ContentHash) (matches int, err error) {
	for len(s.answer) < pairs {
		s.answer = append(s.answer, answer{})
	}
	s.stamp++
	for i, idx := range s.indexes {
		s.dst = idx.Lookup(ns, chain, s.dst[:0])
		for _, m := range s.dst {
			id, ok := s.pairOf[i][shard.Holder(m.Holder)]
			if !ok {
				return 0, fmt.Errorf("%s names holder %d, never added or dropped since", s.name, m.Holder)
			}
			if s.answer[id].stamp == s.stamp {
				return 0, fmt.Errorf("%s names holder %d twice", s.name, m.Holder)
			}
			if m.Any == 0 || m.Device > m.Host || m.Host > m.Any || int(m.Any) > len(chain) {
				return 0, fmt.Errorf("%s gives holder %d impossible depths: %s", s.name, m.Holder, depths(m))
			}
			s.answer[id] = answer{m, s.stamp}
		}
		matches += len(s.dst)
	}
	return matches, nil
}

// match returns holder id's match in the last answer; zero depths when it was
// not named.
func (s *side) match(id int) kv.Match {
	if a := s.answer[id]; a.stamp == s.stamp {
		return a.m
	}
	return kv.Match{}
}

func depths(m kv.Match) string {
	return fmt.Sprintf("device %d, host %d, any %d", m.Device, m.Host, m.Any)
}

// chainString shows a chain, shortened in its middle.
func chainString(ns kv.Namespace, chain []kv.ContentHash) string {
	const ends = 6
	if len(chain) <= 2*ends {
		return fmt.Sprintf("namespace %x chain %x", uint64(ns), chain)
	}
	return fmt.Sprintf("namespace %x chain %x ... %x (%d blocks)", uint64(ns), chain[:ends], chain[len(chain)-ends:], len(chain))
}
