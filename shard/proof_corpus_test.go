// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/shard"
	"kindex/shard/compare"
)

// The corpus proof: long histories of a fleet that behaves as fleets do (shared
// prefixes, decoding, eviction from tails, heads and middles, heals, offload to
// host and disk, copies, restarts) with every mishap mixed in at low rates. After
// every event one random lookup is compared, and from time to time everything.

// world is a fleet of engines and what they are asked.
type world struct {
	r       *rand.Rand
	f       *fleet
	models  [2]kv.ModelKey
	engines []*engine
	docs    [][]uint32 // shared beginnings of prompts
	recent  []*prompt  // ring of prompts sent
	fresh   uint32     // next token that nobody has used
	touched *prompt
	by      *engine // whose event was last
	events  int
	did     map[string]int
}

const (
	recentPrompts = 400
	docCount      = 32
)

func newWorld(seed uint64, engines int, subs []subject) (*world, error) {
	f, err := newFleet(shard.Options{MaxOrphanBlocks: 600, MaxOrphanBytes: 48 << 10}, subs)
	if err != nil {
		return nil, err
	}
	w := &world{
		r: rand.New(rand.NewPCG(seed, 300_000)), f: f, fresh: 1 << 24, did: make(map[string]int),
		models: [2]kv.ModelKey{kv.MakeModelKey("", "a", ""), kv.MakeModelKey("t", "b", "g")},
	}
	for d := range uint32(docCount) {
		blocks := 2 + w.r.IntN(20)
		if d%16 == 9 {
			blocks = 560 + w.r.IntN(200)
		}
		doc := make([]uint32, 0, blocks*blockTokens)
		for i := range uint32(blocks) {
			doc = append(doc, d<<12|i, d%4)
		}
		w.docs = append(w.docs, doc)
	}
	for i := range engines {
		e := &engine{model: w.models[0], capacity: 200 + w.r.IntN(800), groups: 1}
		if i%6 == 5 {
			e.model = w.models[1]
		}
		if i%4 == 3 {
			e.seed = uint64(i) // a hash seed of its own
		}
		if i%2 == 1 {
			e.host = e.capacity / 2
		}
		if i%8 == 1 {
			e.disk = e.capacity / 2
		}
		if i%8 == 3 {
			e.groups = 2
		}
		e.bare = i%4 == 1
		w.engines = append(w.engines, e)
		if err := w.join(e); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *world) join(e *engine) (err error) {
	e.reset()
	e.m, err = w.f.add(e.model)
	return err
}

// chance reports true so many times of 1,000.
func (w *world) chance(of1000 int) bool { return w.r.IntN(1000) < of1000 }

// step makes one event.
func (w *world) step() error {
	w.events++
	e := w.engines[w.r.IntN(len(w.engines))]
	w.by = e
	if err, did := w.mishap(e); did {
		return err
	}
	for t, most := range [...]int{e.capacity, e.host, e.disk} {
		if len(e.tiers[t]) > most && w.chance(900) {
			return w.evict(e, kv.Tier(t))
		}
	}
	if len(e.pending) > 0 && w.chance(900) {
		say := e.pending[0]
		e.pending = e.pending[1:]
		return say()
	}
	if e.host > 0 && w.chance(250) {
		if said, err := w.offload(e); said || err != nil {
			return err
		}
	}
	return w.request(e)
}

// mishap does what goes wrong now and then.
func (w *world) mishap(e *engine) (err error, did bool) {
	switch roll := w.r.IntN(100_000); {
	case roll < 30:
		w.did["clear"]++
		e.reset()
		return w.f.clear(e.m), true
	case roll < 50:
		w.did["drop and return"]++
		if err := w.f.drop(e.m); err != nil {
			return err, true
		}
		return w.join(e), true
	case roll < 350:
		return w.move(e)
	case roll < 850:
		return w.twin(e)
	case roll < 1000:
		w.did["unknown removal"]++
		return w.f.remove(e.m, &shard.Remove{Engines: []kv.EngineHash{kv.EngineHash(w.r.Uint64())}}), true
	case roll < 1150:
		w.did["unknown placeholder"]++
		return w.f.store(e.m, &shard.Store{Tier: kv.TierHost, Engines: []kv.EngineHash{kv.EngineHash(w.r.Uint64())}}), true
	case roll < 1450:
		return w.strayRemoval(e)
	}
	return nil, false
}

// request serves a prompt: what is not cached is stored, then decoding adds
// block after block.
func (w *world) request(e *engine) error {
	p, decoded := w.prompt(e)
	w.recent = append(w.recent, p)
	if len(w.recent) > recentPrompts {
		w.recent = w.recent[1:]
	}
	on := func(i int) bool {
		c := e.blocks[p.engines[i]]
		return c != nil && c.at[kv.TierDevice] > 0
	}
	from := 0
	for from < p.len() && on(from) {
		from++
	}
	group := uint8(w.r.IntN(e.groups))
	if from == p.len() { // all cached: a second copy of some of it
		w.did["second copies"]++
		at := w.r.IntN(p.len())
		return w.say(e, p, at, min(p.len(), at+1+w.r.IntN(8)), kv.TierDevice, group)
	}
	recompute := w.chance(300) // what lies below a hole is computed again, too
	var say []func() error
	for at := from; at < p.len(); {
		n := 1 + w.r.IntN(8)
		switch {
		case at >= p.len()-decoded:
			n = 1
		case w.chance(100):
			n = 300
		}
		end := at + 1
		for end < p.len() && end < at+n && (end < p.len()-decoded || at >= p.len()-decoded) {
			end++
		}
		if !recompute {
			stop := at
			for stop < end && !on(stop) {
				stop++
			}
			if stop == at {
				w.did["healed down to held blocks"]++
				at++
				continue
			}
			end = stop
		}
		from, to := at, end
		say = append(say, func() error { return w.say(e, p, from, to, kv.TierDevice, group) })
		at = end
	}
	if len(say) > 1 {
		if w.chance(60) {
			w.did["children first"]++
			i := w.r.IntN(len(say) - 1)
			say[i], say[i+1] = say[i+1], say[i]
		}
		if w.chance(20) {
			w.did["parent never told"]++
			say = say[1:]
		}
	}
	e.pending = append(e.pending, say[1:]...)
	return say[0]()
}

// prompt makes up a prompt for e and says how many blocks are decoded.
func (w *world) prompt(e *engine) (*prompt, int) {
	var tokens []uint32
	lora, salt := "", ""
	switch roll := w.r.IntN(100); {
	case roll < 15:
		salt = "s"
	case roll < 25:
		lora = "l"
	case roll < 30:
		lora, salt = "l", "s"
	}
	var extra [][]byte
	switch roll := w.r.IntN(100); {
	case roll < 35 && len(w.recent) > 0: // as sent before, or as another went on
		p := w.recent[w.r.IntN(len(w.recent))]
		keep := p.len()
		if w.chance(400) {
			w.did["sibling"]++
			keep = 1 + w.r.IntN(p.len())
		}
		tokens = append(tokens, p.tokens[:keep*blockTokens]...)
		if p.extra != nil {
			extra = append(extra, p.extra[:keep]...)
		}
		if w.chance(300) {
			return e.newPrompt(lora, salt, tokens, extra), 0
		}
	default:
		doc := w.docs[w.r.IntN(len(w.docs))]
		if len(doc) > 100*blockTokens && w.chance(700) {
			doc = w.docs[0]
		}
		keep := len(doc) / blockTokens
		if w.chance(300) {
			keep = 1 + w.r.IntN(keep)
		}
		tokens = append(tokens, doc[:keep*blockTokens]...)
	}
	fresh := w.r.IntN(12)
	decoded := w.r.IntN(6)
	for range fresh + decoded {
		w.fresh++
		tokens = append(tokens, w.fresh, 0)
	}
	if extra == nil && w.chance(50) || extra != nil {
		for len(extra) < len(tokens)/blockTokens {
			extra = append(extra, nil)
		}
		extra[w.r.IntN(len(extra))] = []byte{byte(w.r.IntN(3))}
	}
	return e.newPrompt(lora, salt, tokens, extra), decoded
}

// say tells of blocks [from, to) of p.
func (w *world) say(e *engine, p *prompt, from, to int, t kv.Tier, group uint8) error {
	w.touched = p
	st := storeOf(p, from, to, t, group)
	switch {
	case from > 0 && p.seed != kv.HashSeed && w.chance(500):
		w.did["namespace from the parent"]++
		misplace(st, e.model, w.chance(20))
	case w.chance(200):
		st.Blocks = kv.Blocks{}
	}
	for i := from; i < to; i++ {
		e.note(p, i, t, group)
	}
	return w.f.store(e.m, st)
}

// evict takes a few blocks out of a tier: from a tail, a middle, or anywhere.
func (w *world) evict(e *engine, t kv.Tier) error {
	c := e.some(w.r, t)
	p := c.p
	w.touched = p
	var out []*cached
	take := func(i int) {
		if b := e.blocks[p.engines[i]]; b != nil && b.at[t] > 0 {
			out = append(out, b)
		}
	}
	switch roll := w.r.IntN(100); {
	case roll < 60:
		w.did["evicted from a tail"]++
		for i := p.len() - 1; i >= c.i && len(out) < 24; i-- {
			take(i)
		}
	case roll < 85:
		w.did["evicted from a middle"]++
		for i := c.i; i < p.len() && len(out) < 6; i++ {
			take(i)
		}
	default:
		w.did["evicted anywhere"]++
		for range 1 + w.r.IntN(4) {
			out = append(out, e.some(w.r, t))
		}
	}
	if len(out) == 0 {
		out = append(out, c)
	}
	return w.removal(e, out, t)
}

// removal says that a copy of each of out has gone, all of the group of the first.
func (w *world) removal(e *engine, out []*cached, t kv.Tier) error {
	group := uint8(0)
	if out[0].copies[t][0] == 0 {
		group = 1
	}
	rm := &shard.Remove{Tier: t, Group: group}
	for _, c := range out {
		if c.at[t] > 0 && c.copies[t][group] > 0 {
			rm.Engines = append(rm.Engines, c.engine)
			e.unnote(c, t, group)
		}
	}
	return w.f.remove(e.m, rm)
}

// offload adds copies in a lower tier, or brings them back to the device.
func (w *world) offload(e *engine) (bool, error) {
	from, to := kv.TierDevice, kv.TierHost
	switch roll := w.r.IntN(10); {
	case roll < 2 && e.disk > 0:
		from, to = kv.TierHost, kv.TierDisk
	case roll < 4:
		from, to = kv.TierHost, kv.TierDevice
	}
	c := e.some(w.r, from)
	if c == nil {
		return false, nil
	}
	p := c.p
	end := c.i + 1
	for end < p.len() && end < c.i+1+w.r.IntN(12) {
		if b := e.blocks[p.engines[end]]; b == nil || b.at[from] == 0 {
			break
		}
		end++
	}
	w.did[fmt.Sprintf("copied from %s to %s", from, to)]++
	if to != kv.TierDevice && e.bare {
		w.did["placeholders"]++
		w.touched = p
		for i := c.i; i < end; i++ {
			e.note(p, i, to, 0)
		}
		return true, w.f.store(e.m, &shard.Store{Tier: to, Engines: p.engines[c.i:end]})
	}
	return true, w.say(e, p, c.i, end, to, 0)
}

// move stores a held engine hash at another position.
func (w *world) move(e *engine) (error, bool) {
	c, d := e.some(w.r, kv.TierDevice), e.some(w.r, kv.TierDevice)
	if c == nil {
		return nil, false
	}
	w.did["moved hash"]++
	w.fresh++
	q := *d.p
	q.tokens = slices.Concat(d.p.tokens[:(d.i+1)*blockTokens], []uint32{w.fresh, 1})
	q.extra = nil
	if d.p.extra != nil {
		q.extra = append(slices.Clone(d.p.extra[:d.i+1]), nil)
	}
	q.contents = append(slices.Clone(d.p.contents[:d.i+1]), kv.HashBlock(q.seed, []uint32{w.fresh, 1}, nil))
	q.engines = append(slices.Clone(d.p.engines[:d.i+1]), c.engine)
	t, group := kv.TierDevice, uint8(0)
	if e.host > 0 && w.chance(300) {
		t = kv.TierHost
	}
	return w.say(e, &q, d.i+1, d.i+2, t, group), true
}

// twin stores a held position by a second engine hash.
func (w *world) twin(e *engine) (error, bool) {
	c := e.some(w.r, kv.TierDevice)
	if c == nil {
		return nil, false
	}
	w.did["twin"]++
	q := *c.p
	q.engines = slices.Clone(c.p.engines)
	q.engines[c.i] = kv.EngineHash(w.r.Uint64())
	return w.say(e, &q, c.i, c.i+1, kv.TierDevice, 0), true
}

// strayRemoval removes a block from where it may not lie, or twice at once.
func (w *world) strayRemoval(e *engine) (error, bool) {
	c := e.some(w.r, kv.TierDevice)
	if c == nil {
		return nil, false
	}
	w.did["stray removal"]++
	w.touched = c.p
	t, group := kv.Tier(w.r.IntN(kv.LocalTiers)), uint8(w.r.IntN(2))
	for range 2 {
		e.unnote(c, t, group)
	}
	return w.f.remove(e.m, &shard.Remove{Tier: t, Group: group, Engines: []kv.EngineHash{c.engine, c.engine}}), true
}

// ask compares one random lookup, and now and then more.
func (w *world) ask() error {
	p := w.touched
	if p == nil || w.chance(400) {
		if len(w.recent) == 0 {
			return nil
		}
		p = w.recent[w.r.IntN(len(w.recent))]
	}
	if p.len() > 200 && w.chance(800) { // long ones cost most and say little more
		p = w.recent[w.r.IntN(len(w.recent))]
	}
	if w.events%64 == 0 {
		return w.f.cmp.Chain(p.ns, p.contents)
	}
	return w.f.cmp.Form(compare.Form(w.r.IntN(int(compare.NumForms))), p.ns, p.contents)
}

// String tells what the corpus contained.
func (w *world) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(w.did)) {
		fmt.Fprintf(&b, "%s %d, ", k, w.did[k])
	}
	var sum shard.HolderStats
	for _, e := range w.engines {
		st, err := w.f.reference().HolderStats(e.m.places[0].Holder)
		if err != nil {
			return err.Error()
		}
		sum.Memberships += st.Memberships
		sum.Orphans += st.Orphans
		sum.OrphansDropped += st.OrphansDropped
		sum.Contradictions += st.Contradictions
		sum.Moved += st.Moved
		sum.SecondCopies += st.SecondCopies
	}
	fmt.Fprintf(&b, "at the end %+v", sum)
	return b.String()
}

// prove makes so many events, comparing as it goes.
func (w *world) prove(events int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("event %d: %w", w.events, err)
		}
	}()
	defer guard(&err)
	for range events {
		if err := w.step(); err != nil {
			return err
		}
		if err := w.ask(); err != nil {
			return err
		}
		if w.events%256 == 0 {
			if err := w.f.cmp.Holder(w.by.m.id); err != nil {
				return err
			}
		}
		if w.events%10_000 == 0 || w.events == 2000 {
			if err := w.f.cmp.State(); err != nil {
				return err
			}
			w.f.check()
		}
	}
	w.f.check()
	return w.f.cmp.State()
}

// corpusSubjects are subjects and the chain index with tables as large as it makes
// them by itself.
func corpusSubjects() []subject {
	all := subjects()
	if slices.Contains(kinds(), "chain") {
		full := sharded("chain", 1)
		full.name, full.tiny = "chain with full tables", false
		all = append(all, full)
	}
	return all
}

// TestProofCorpora: two seeds or more of 300,000 events, one and several shards.
func TestProofCorpora(t *testing.T) {
	skipShort(t)
	events := 300_000
	if shard.RaceEnabled {
		events = 10_000
	}
	for seed := range uint64(longtest.N(2, 3)) {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			t.Parallel()
			w, err := newWorld(seed, 12+4*int(seed%2), corpusSubjects())
			if err != nil {
				t.Fatal(err)
			}
			if err := w.prove(events); err != nil {
				t.Fatalf("corpus seed %d: %v", seed, err)
			}
			sum := w.f.account(w.events)
			sum.want(t)
			t.Logf("over %s: %v", names(corpusSubjects()), sum)
			t.Logf("the corpus: %v", w)
		})
	}
}
