// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"math/rand/v2"
	"slices"

	"kindex/internal/kv"
	"kindex/shard"
)

// Plays of the concurrency proof: what one holder does, act by act, with its
// true depths after each act known beforehand. A reader that notes how many
// acts a holder had done before and after a lookup knows exactly which depths
// were true at some moment of it.

// act is one event.
type act struct {
	store  *shard.Store
	remove *shard.Remove
	clear  bool
}

// do applies a to h.
func (a act) do(idx shard.Index, h shard.Holder) error {
	switch {
	case a.store != nil:
		return idx.Store(h, a.store)
	case a.remove != nil:
		return idx.Remove(h, a.remove)
	case a.clear:
		return idx.Clear(h)
	}
	return idx.Drop(h)
}

// ending is what a play does after its last act.
type ending int

const (
	stays  ending = iota // does nothing more
	again                // has ended with a clear, and begins again
	leaves               // has ended with a drop; another takes its place
)

// play is a script of acts.
type play struct {
	name  string
	acts  []act
	end   ending
	truth [][]kv.Match // [acts done][question]
}

// state returns the index into truth after so many acts.
func (p *play) state(done uint64) int {
	n := uint64(len(p.acts))
	if p.end == again {
		return int(done % n)
	}
	return int(min(done, n))
}

// question is one chain that readers ask about.
type question struct {
	ns    kv.Namespace
	chain []kv.ContentHash
}

// stage is what all plays of one run share: chains, and questions about them.
type stage struct {
	r         *rand.Rand
	model     kv.ModelKey
	ns        kv.Namespace
	long      []kv.ContentHash // longer than any run of blocks
	short     []kv.ContentHash
	tiny      []kv.ContentHash // contents of the wild play
	salted    []kv.ContentHash // a chain in a namespace of its own
	questions []question
}

func newStage(seed uint64) *stage {
	s := &stage{r: rand.New(rand.NewPCG(seed, 16)), model: kv.MakeModelKey("", "stage", "")}
	s.ns = s.model.Namespace(kv.HashSeed)
	chain := func(n int) []kv.ContentHash {
		c := make([]kv.ContentHash, n)
		for i := range c {
			c[i] = kv.ContentHash(s.r.Uint64())
		}
		return c
	}
	s.long, s.short, s.tiny = chain(560), chain(24), chain(2)
	salt := kv.ContentSeed("", "salt")
	b := kv.Blocks{Tokens: saltedTokens, BlockSize: 1}
	s.salted = b.AppendHashes(nil, salt)
	s.questions = append(s.questions, question{s.model.Namespace(salt), s.salted}, question{s.model.Namespace(salt), s.salted[:7]})
	ask := func(c []kv.ContentHash) { s.questions = append(s.questions, question{s.ns, c}) }
	ask(s.long)
	ask(s.long[:len(s.long)/2])
	ask(s.short)
	ask(s.short)
	ask(s.short[:8])
	ask(slices.Concat(s.short[:12], s.long[:4]))
	ask(slices.Concat(s.short[:20], s.short[:3]))
	for range 4 {
		c := make([]kv.ContentHash, 5)
		for i := range c {
			c[i] = s.tiny[s.r.IntN(2)]
		}
		ask(c)
	}
	return s
}

// blocks names chain[from:to] as a holder with a hash seed of its own would.
func (s *stage) blocks(seed uint64, chain []kv.ContentHash) []kv.EngineHash {
	out := make([]kv.EngineHash, len(chain))
	var above kv.EngineHash
	for i, c := range chain {
		above = chainHash(seed, above, c)
		out[i] = above
	}
	return out
}

// tell stores chain[from:to).
func (s *stage) tell(seed uint64, chain []kv.ContentHash, from, to int, t kv.Tier) act {
	e := s.blocks(seed, chain)
	st := &shard.Store{Tier: t, Namespace: s.ns, Engines: e[from:to], Contents: chain[from:to]}
	if from > 0 {
		st.HasParent, st.Parent = true, e[from-1]
	}
	return act{store: st}
}

// saltedTokens are the blocks of the salted chain, one token each.
var saltedTokens = []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}

// tellSalted stores a piece of the salted chain; only its first block says
// what namespace that is.
func (s *stage) tellSalted(seed uint64, from, to int) act {
	a := s.tell(seed, s.salted, from, to, kv.TierDevice)
	a.store.Blocks = kv.Blocks{Tokens: saltedTokens[from:to], BlockSize: 1}
	if from == 0 {
		a.store.Namespace = s.model.Namespace(kv.ContentSeed("", "salt"))
	} else {
		a.store.Contents = a.store.Blocks.AppendHashes(nil, kv.HashSeed)
	}
	return a
}

// untell removes chain[from:to), the last block first.
func (s *stage) untell(seed uint64, chain []kv.ContentHash, from, to int, t kv.Tier) act {
	e := slices.Clone(s.blocks(seed, chain)[from:to])
	slices.Reverse(e)
	return act{remove: &shard.Remove{Tier: t, Engines: e}}
}

// plays returns one of each kind, for a holder of a hash seed.
func (s *stage) plays(seed uint64) ([]*play, error) {
	d := kv.TierDevice
	steady := &play{name: "steady", end: stays, acts: []act{
		s.tell(seed, s.long, 0, 300, d), s.tell(seed, s.long, 300, 560, d), s.tell(seed, s.short, 0, 20, d), s.untell(seed, s.short, 16, 20, d),
	}}
	// The chain's second half grows only while its first half has a hole: no
	// depth past the hole is ever true, though each half by itself says so.
	hole := &play{name: "hole", end: again, acts: []act{s.tell(seed, s.long, 0, 512, d), s.tell(seed, s.long, 512, 514, d)}}
	for range 6 {
		hole.acts = append(hole.acts,
			s.untell(seed, s.long, 100, 101, d), s.tell(seed, s.long, 514, 530, d),
			s.untell(seed, s.long, 514, 530, d), s.tell(seed, s.long, 100, 101, d))
	}
	hole.acts = append(hole.acts, act{clear: true})
	tiers := &play{name: "tiers", end: again, acts: []act{
		s.tell(seed, s.short, 0, 16, d), s.tell(seed, s.short, 0, 12, kv.TierHost), s.untell(seed, s.short, 6, 16, d),
		s.tell(seed, s.short, 4, 8, kv.TierDisk), s.untell(seed, s.short, 4, 12, kv.TierHost), s.tell(seed, s.short, 6, 10, d),
		s.untell(seed, s.short, 0, 10, d), s.untell(seed, s.short, 0, 4, kv.TierHost), s.untell(seed, s.short, 4, 8, kv.TierDisk),
		{clear: true},
	}}
	orphans := &play{name: "orphans", end: again, acts: []act{
		s.tell(seed, s.short, 12, 20, d), s.tell(seed, s.short, 6, 12, d), s.untell(seed, s.short, 15, 16, d), s.tell(seed, s.short, 0, 6, d),
		s.tell(seed, s.short, 15, 16, d),
		{clear: true},
	}}
	other := seed ^ 0xabcdef
	twins := &play{name: "twins", end: again, acts: []act{
		s.tell(seed, s.short, 0, 14, d), s.tell(other, s.short, 0, 18, d), s.untell(seed, s.short, 3, 9, d), s.untell(other, s.short, 5, 12, d),
		s.tell(other, s.short, 5, 9, d), s.tell(seed, s.short, 3, 9, d),
		{clear: true},
	}}
	copies := &play{name: "copies", end: again, acts: []act{
		s.tell(seed, s.short, 0, 10, d), s.tell(seed, s.short, 4, 14, d), s.untell(seed, s.short, 0, 12, d), s.tell(seed, s.short, 0, 4, d),
		s.untell(seed, s.short, 4, 6, d),
		{clear: true},
	}}
	salted := &play{name: "salted", end: again, acts: []act{
		s.tellSalted(seed, 0, 6), s.tellSalted(seed, 6, 12), s.untell(seed, s.salted, 8, 10, d), s.tellSalted(seed, 8, 11), {clear: true},
	}}
	guest := &play{name: "guest", end: leaves, acts: []act{
		s.tell(seed, s.short, 0, 8, d), s.tell(seed, s.short, 8, 24, d), s.untell(seed, s.short, 20, 24, d), {},
	}}
	long := &play{name: "long guest", end: leaves, acts: []act{s.tell(seed, s.long, 0, 560, d), s.untell(seed, s.long, 40, 60, d), {}}}
	wild, err := s.wild(false)
	if err != nil {
		return nil, err
	}
	everywhere, err := s.wild(true)
	if err != nil {
		return nil, err
	}
	return []*play{steady, hole, tiers, orphans, twins, copies, salted, s.sane(seed), wild, everywhere, guest, long}, nil
}

// sane stores and evicts pieces of the short chain and of siblings of it.
func (s *stage) sane(seed uint64) *play {
	p := &play{name: "sane", end: again}
	chains := [][]kv.ContentHash{s.short, slices.Concat(s.short[:12], s.long[:8]), slices.Concat(s.short[:20], s.short[:3])}
	for range 40 {
		c := chains[s.r.IntN(len(chains))]
		from := s.r.IntN(len(c))
		to := from + 1 + s.r.IntN(min(8, len(c)-from))
		if s.r.IntN(2) == 0 {
			p.acts = append(p.acts, s.tell(seed, c, from, to, kv.TierDevice), s.tell(seed, c, 0, 1+from, kv.TierDevice))
		} else {
			p.acts = append(p.acts, s.untell(seed, c, from, to, kv.TierDevice))
		}
	}
	p.acts = append(p.acts, act{clear: true})
	return p
}

// wild stores and removes few hashes and contents without sense, in one tier or
// in all. Nothing waits for a parent: a waiting store is applied in a moment of
// its own within another's act, which truth does not tell apart.
func (s *stage) wild(tiers bool) (*play, error) {
	p := &play{name: "wild", end: again}
	idx, err := shard.New("reference", shard.Options{})
	if err != nil {
		return nil, err
	}
	h, err := idx.AddHolder(s.model)
	if err != nil {
		return nil, err
	}
	engine := func() kv.EngineHash { return kv.EngineHash(s.r.IntN(12)) }
	tier := func() kv.Tier {
		if tiers {
			return kv.Tier(s.r.IntN(kv.LocalTiers))
		}
		return kv.TierDevice
	}
	for range 60 {
		var a act
		if s.r.IntN(3) == 0 {
			a.remove = &shard.Remove{Tier: tier(), Engines: []kv.EngineHash{engine(), engine()}}
		} else {
			a.store = &shard.Store{Tier: tier(), Namespace: s.ns}
			if held := heldHashes(idx, h); len(held) > 0 && s.r.IntN(3) > 0 {
				a.store.HasParent, a.store.Parent = true, held[s.r.IntN(len(held))]
			}
			for range 1 + s.r.IntN(4) {
				a.store.Engines = append(a.store.Engines, engine())
				a.store.Contents = append(a.store.Contents, s.tiny[s.r.IntN(2)])
			}
		}
		if err := a.do(idx, h); err != nil {
			return nil, err
		}
		p.acts = append(p.acts, a)
	}
	p.acts = append(p.acts, act{clear: true})
	return p, nil
}

// heldHashes returns the engine hashes that h holds, in order.
func heldHashes(idx shard.Index, h shard.Holder) []kv.EngineHash {
	var held []kv.EngineHash
	if err := idx.Walk(h, func(n *shard.Node) bool {
		for _, c := range n.Copies {
			held = append(held, c.Engine)
		}
		return true
	}); err != nil {
		return nil
	}
	slices.Sort(held)
	return held
}

// rehearse finds p's truth by the reference.
func (s *stage) rehearse(p *play) error {
	idx, err := shard.New("reference", shard.Options{})
	if err != nil {
		return err
	}
	h, err := idx.AddHolder(s.model)
	if err != nil {
		return err
	}
	for i := range len(p.acts) + 1 {
		row := make([]kv.Match, len(s.questions))
		for q, ask := range s.questions {
			for _, m := range idx.Lookup(ask.ns, ask.chain, nil) {
				row[q] = m
			}
		}
		p.truth = append(p.truth, row)
		if i < len(p.acts) {
			if err := p.acts[i].do(idx, h); err != nil {
				return err
			}
		}
	}
	return nil
}
