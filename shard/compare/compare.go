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
	Grouped     uint64 // lookups that were asked for in groups, too
	Batches     uint64 // batches asked for
	Batched     uint64 // queries in those
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
	c.Grouped += o.Grouped
	c.Batches += o.Batches
	c.Batched += o.Batched
}

// String returns the counts in words.
func (c Counts) String() string {
	return fmt.Sprintf("%d states with %d memberships and %d copies, %d sets of counters, %d lookups with %d matches (%d chains in four forms), %d in groups, %d batches of %d or more with %d queries",
		c.States, c.Memberships, c.Copies, c.Numbers, c.Lookups, c.Matches, c.Chains, c.Grouped, c.Batches, batchSizes[0], c.Batched)
}

// Side is what is compared: indexes whose answers are united, and its name in
// messages.
type Side struct {
	Name    string
	Indexes []shard.Index
}

// Place is one holder's place on one side: which of its indexes, and its number there.
type Place struct {
	Index  int
	Holder shard.Holder
}

// Comparer compares one or more sides with the one that is right.
//
// Concurrency: one goroutine, and no other call on the indexes meanwhile.
type Comparer struct {
	sides  []*side // the first is the one that is right
	pairs  []pair
	counts Counts
	chains chainSet
	asked  []kv.ContentHash // scratch of Chain
}

// pair is one holder on all sides.
type pair struct {
	name   string
	places []Place
	live   bool
}

// side is a Side with what comparing needs.
type side struct {
	Side
	pairOf []map[shard.Holder]int // per index
	dst    []kv.Match             // scratch: one index's answer
	answer []answer               // per pair
	stamp  uint64
	walker walker
	other  otherForms
}

// answer is one holder's match; stale when its stamp is not the side's.
type answer struct {
	m     kv.Match
	stamp uint64
}

// New returns a comparer of got with want, without holders.
func New(want Side, got ...Side) *Comparer {
	c := &Comparer{chains: newChainSet()}
	for _, s := range append([]Side{want}, got...) {
		sd := &side{Side: s, pairOf: make([]map[shard.Holder]int, len(s.Indexes))}
		for i := range sd.pairOf {
			sd.pairOf[i] = make(map[shard.Holder]int)
		}
		sd.walker.init()
		c.sides = append(c.sides, sd)
	}
	return c
}

// Add says that want and got, one place for each side, are one holder, to be
// called name in messages, and returns its number for [Comparer.Holder].
func (c *Comparer) Add(name string, want Place, got ...Place) int {
	id := len(c.pairs)
	places := append([]Place{want}, got...)
	if len(places) != len(c.sides) {
		panic(fmt.Sprintf("compare: holder %s in %d places on %d sides", name, len(places), len(c.sides)))
	}
	c.pairs = append(c.pairs, pair{name, places, true})
	for i, p := range places {
		c.sides[i].pairOf[p.Index][p.Holder] = id
		c.sides[i].answer = append(c.sides[i].answer, answer{})
	}
	return id
}

// Remove says that holder id was dropped on all sides: an answer that still
// names it is a difference.
func (c *Comparer) Remove(id int) {
	p := &c.pairs[id]
	p.live = false
	for i, pl := range p.places {
		delete(c.sides[i].pairOf[pl.Index], pl.Holder)
	}
}

// Counts returns what was compared so far.
func (c *Comparer) Counts() Counts {
	sum := c.counts
	for _, sd := range c.sides {
		sum.Add(sd.other.counts)
	}
	return sum
}

// State compares the content, counters and digest of every holder, and the
// counters of the indexes. Cost: two walks over all memberships of each side.
func (c *Comparer) State() error {
	for id := range c.pairs {
		if c.pairs[id].live {
			if err := c.Holder(id); err != nil {
				return err
			}
			if err := c.digest(id); err != nil {
				return err
			}
		}
	}
	return c.numbers()
}

// All compares the state and looks up every chain that the right side has held
// at any call of All, in the four forms of [Comparer.Chain]. Chains that go on
// from one another count as one, the longest: its lookup's depths say where
// each shorter one ends.
func (c *Comparer) All() error {
	if err := c.State(); err != nil {
		return err
	}
	want := c.sides[0]
	for id := range c.pairs {
		if p := &c.pairs[id]; p.live {
			if err := c.chains.collect(want.Indexes[p.places[0].Index], p.places[0].Holder); err != nil {
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

// Held looks up every chain that the right side holds now, in the four forms.
func (c *Comparer) Held() error {
	now := newChainSet()
	want := c.sides[0]
	for id := range c.pairs {
		if p := &c.pairs[id]; p.live {
			if err := now.collect(want.Indexes[p.places[0].Index], p.places[0].Holder); err != nil {
				return fmt.Errorf("%s: walk: %w", p.name, err)
			}
		}
	}
	for _, ch := range now.all {
		if err := c.Chain(ch.ns, ch.contents); err != nil {
			return err
		}
	}
	return nil
}

// Holder compares one holder's whole content and counters.
func (c *Comparer) Holder(id int) error {
	p := &c.pairs[id]
	var want summary
	for i, sd := range c.sides {
		sum, err := sd.content(p.places[i])
		if err != nil {
			return fmt.Errorf("%w: %s: %s: %w", ErrDiffers, p.name, sd.Name, err)
		}
		if i == 0 {
			want = sum
			continue
		}
		c.counts.States++
		c.counts.Memberships += want.held
		c.counts.Copies += want.copies
		c.counts.Numbers++
		if sum.content != want.content {
			return fmt.Errorf("%w: %s: %w", ErrDiffers, p.name, diffContent(sd, p.places[i], c.sides[0], p.places[0]))
		}
		if sum.counters != want.counters {
			return fmt.Errorf("%w: %s: counters: %s has %+v, %s %+v", ErrDiffers, p.name, sd.Name, sum.counters, c.sides[0].Name, want.counters)
		}
	}
	return nil
}

// digest compares one holder's content digest.
func (c *Comparer) digest(id int) error {
	p := &c.pairs[id]
	var want uint64
	for i, sd := range c.sides {
		got, err := shard.Digest(sd.Indexes[p.places[i].Index], p.places[i].Holder)
		if err != nil {
			return fmt.Errorf("%w: %s: %s: digest: %w", ErrDiffers, p.name, sd.Name, err)
		}
		if i == 0 {
			want = got
			continue
		}
		c.counts.Numbers++
		if got != want {
			return fmt.Errorf("%w: %s: digest of equal content: %s has %x, %s %x", ErrDiffers, p.name, sd.Name, got, c.sides[0].Name, want)
		}
	}
	return nil
}

// content returns one holder's content and counters, and refuses what no index
// may say.
func (s *side) content(p Place) (summary, error) {
	idx := s.Indexes[p.Index]
	sum := summary{}
	var err error
	if sum.content, err = s.walker.sum(idx, p.Holder); err != nil {
		return sum, err
	}
	if sum.counters, err = idx.HolderStats(p.Holder); err != nil {
		return sum, fmt.Errorf("counters: %w", err)
	}
	if sum.counters.Memberships != sum.held {
		return sum, fmt.Errorf("counts %d memberships and walks %d", sum.counters.Memberships, sum.held)
	}
	return sum, nil
}

// shards counts the shards of all indexes of s.
func (s *Side) shards() int {
	n := 0
	for _, idx := range s.Indexes {
		if sh, ok := idx.(*shard.Sharded); ok {
			n += sh.Shards()
		} else {
			n++
		}
	}
	return n
}

// numbers compares what the indexes say of themselves, summed over each side,
// and what each index says of blocks where each side is one index. Runs and
// bytes are an index's own affair.
func (c *Comparer) numbers() error {
	type numbers struct{ holders, memberships, blocks uint64 }
	var want numbers
	for i, sd := range c.sides {
		var n numbers
		for _, idx := range sd.Indexes {
			st := idx.Stats()
			n.holders += st.Holders
			n.memberships += st.Memberships
			n.blocks += st.Blocks
		}
		if i == 0 {
			want = n
			continue
		}
		c.counts.Numbers++
		if sd.shards() != c.sides[0].shards() {
			n.blocks = want.blocks // a block in two shards counts twice
		}
		if n != want {
			return fmt.Errorf("%w: counters: %s has %d holders, %d memberships, %d blocks, %s %d, %d, %d", ErrDiffers,
				sd.Name, n.holders, n.memberships, n.blocks, c.sides[0].Name, want.holders, want.memberships, want.blocks)
		}
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
	for form := range NumForms {
		if err := c.Form(form, ns, chain); err != nil {
			return err
		}
	}
	return nil
}

// Form is one way to ask about a chain.
type Form int

// The forms that a chain is asked in.
const (
	Whole Form = iota
	FirstHalf
	MiddleReplaced
	TailReplaced // and extended
	NumForms
)

// Form compares the lookup of one form of chain, which is not empty.
func (c *Comparer) Form(f Form, ns kv.Namespace, chain []kv.ContentHash) error {
	switch f {
	case FirstHalf:
		chain = chain[:(len(chain)+1)/2]
	case MiddleReplaced:
		c.asked = append(c.asked[:0], chain...)
		c.asked[len(chain)/2] ^= replaced
		chain = c.asked
	case TailReplaced:
		c.asked = append(c.asked[:0], chain...)
		for i := len(chain) - (len(chain)+3)/4; i < len(chain); i++ {
			c.asked[i] ^= replaced
		}
		for i := range kv.ContentHash(4) {
			c.asked = append(c.asked, replaced+i)
		}
		chain = c.asked
	case Whole, NumForms:
	}
	return c.Lookup(ns, chain)
}

// replaced turns a content hash into one that no block of a real chain has.
const replaced = 0x5eed_0f_a_0ddb_10c4

// Lookup compares the answers to one question.
func (c *Comparer) Lookup(ns kv.Namespace, chain []kv.ContentHash) error {
	for i, sd := range c.sides {
		matches, err := sd.ask(ns, chain)
		if err != nil {
			return fmt.Errorf("%w: lookup of %s: %w", ErrDiffers, chainString(ns, chain), err)
		}
		if i == 0 {
			continue
		}
		c.counts.Lookups++
		c.counts.Matches += uint64(matches)
		for id := range c.pairs {
			got, want := sd.match(id), c.sides[0].match(id)
			if got.Device != want.Device || got.Host != want.Host || got.Any != want.Any {
				return fmt.Errorf("%w: lookup of %s: %s: %s has %s, %s %s", ErrDiffers, chainString(ns, chain), c.pairs[id].name,
					sd.Name, depths(got), c.sides[0].Name, depths(want))
			}
		}
	}
	return nil
}

// ask unites the answers of a side's indexes and checks what any answer must
// be: known holders, once each, no empty match, cumulative depths within the chain.
func (s *side) ask(ns kv.Namespace, chain []kv.ContentHash) (matches int, err error) {
	s.stamp++
	for i, idx := range s.Indexes {
		s.dst = idx.Lookup(ns, chain, s.dst[:0])
		for _, m := range s.dst {
			id, ok := s.pairOf[i][shard.Holder(m.Holder)]
			if !ok {
				return 0, fmt.Errorf("%s names holder %d, never added or dropped since", s.Name, m.Holder)
			}
			if s.answer[id].stamp == s.stamp {
				return 0, fmt.Errorf("%s names holder %d twice", s.Name, m.Holder)
			}
			if m.Any == 0 || m.Device > m.Host || m.Host > m.Any || int(m.Any) > len(chain) {
				return 0, fmt.Errorf("%s gives holder %d impossible depths: %s", s.Name, m.Holder, depths(m))
			}
			s.answer[id] = answer{m, s.stamp}
		}
		if err := s.forms(i, ns, chain); err != nil {
			return 0, err
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
