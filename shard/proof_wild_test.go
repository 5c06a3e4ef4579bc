// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/shard"
)

// The wild proof: events with no regard for sense, over spaces of hashes so
// small that all of them meet. The same interpreter serves the fuzzer: a source
// of choices is a random generator here and a string of bytes there.

// choices decides what happens next.
type choices interface {
	// n returns a number below limit, which is at most 256.
	n(limit int) int
	// more reports whether any choice is left.
	more() bool
}

// dice chooses at random, for so many events, and keeps what it chose, so that
// a failing history can be cut down as a script.
type dice struct {
	r     *rand.Rand
	left  int
	chose []byte
}

func (d *dice) n(limit int) int {
	v := d.r.IntN(limit)
	d.chose = append(d.chose, byte(v))
	return v
}

func (d *dice) more() bool { d.left--; return d.left >= 0 }

// script chooses by its bytes and then by zeros.
type script struct{ b []byte }

func (s *script) n(limit int) int {
	if len(s.b) == 0 {
		return 0
	}
	v := int(s.b[0]) % limit
	s.b = s.b[1:]
	return v
}
func (s *script) more() bool { return len(s.b) > 0 }

// wild is one wild history.
type wild struct {
	c       choices
	r       *rand.Rand // for what is asked, which is no event
	f       *fleet
	holders []*member
	log     []string
	events  int
	ops     [8]int

	engines  int // engine hashes in use
	contents int // contents in use
	maxChain int
	seeds    int // holders with so many hash seeds mostly name blocks as engines do; 0: none does
}

// wildModel is the model of all wild holders but those in wildOther.
var (
	wildModel = kv.MakeModelKey("", "wild", "")
	wildOther = kv.MakeModelKey("", "other", "")
	wildSalts = [...]string{"", "salt", "pepper"}
)

// oddHashes are values that a careless structure could take for its own.
var oddHashes = [...]uint64{0, 1, 1<<64 - 1, 1 << 63, 1<<63 - 1, 1 << 32, 1<<32 - 1, 0xdead_beef_dead_beef}

func (w *wild) engine() kv.EngineHash {
	i := w.c.n(w.engines)
	if i < len(oddHashes) {
		return kv.EngineHash(oddHashes[i])
	}
	return kv.EngineHash(uint64(i) * 0x9e37_79b9_7f4a_7c15)
}

// tokens returns one block of two tokens; content is what hashing it gives, or
// an odd value that no token has.
func (w *wild) content() kv.ContentHash {
	i := w.c.n(w.contents)
	if i < 2 && w.contents > 2 {
		return kv.ContentHash(oddHashes[w.c.n(len(oddHashes))])
	}
	return kv.HashBlock(kv.HashSeed, []uint32{uint32(i), 7}, nil)
}

func (w *wild) namespace(m *member) kv.Namespace {
	return m.model.Namespace(kv.ContentSeed("", wildSalts[w.c.n(len(wildSalts))]))
}

func (w *wild) tier() kv.Tier {
	return [...]kv.Tier{kv.TierDevice, kv.TierDevice, kv.TierHost, kv.TierDisk}[w.c.n(4)]
}

func (w *wild) group() uint8 {
	if w.c.n(8) == 0 {
		return uint8(w.c.n(3))
	}
	return 0
}

func (w *wild) some() (*member, error) {
	const holders = 4
	i := w.c.n(holders)
	for len(w.holders) < holders {
		w.holders = append(w.holders, nil)
	}
	if w.holders[i] == nil {
		model := wildModel
		if i == holders-1 {
			model = wildOther
		}
		m, err := w.f.add(model)
		if err != nil {
			return nil, err
		}
		w.holders[i] = m
	}
	return w.holders[i], nil
}

func (w *wild) say(format string, args ...any) {
	if len(w.log) >= 60 {
		w.log = w.log[1:]
	}
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// event applies one event.
func (w *wild) event() error {
	w.events++
	m, err := w.some()
	if err != nil {
		return err
	}
	if w.seeds > 0 && w.c.n(4) > 0 {
		return w.saneEvent(m)
	}
	op := w.c.n(64)
	switch {
	case op < 30:
		w.ops[0]++
		st := w.storeEvent(m)
		w.say("store h%d %s g%d ns %x parent %x/%t stated %t engines %x contents %x tokens %t", m.id+1, st.Tier, st.Group, uint64(st.Namespace),
			uint64(st.Parent), st.HasParent, st.Stated, st.Engines, st.Contents, st.Blocks.Len() > 0)
		return w.f.store(m, st)
	case op < 36:
		w.ops[1]++
		st := &shard.Store{Tier: w.tier(), Group: w.group(), Engines: w.engineList(3)}
		w.say("placeholder h%d %s g%d engines %x", m.id+1, st.Tier, st.Group, st.Engines)
		return w.f.store(m, st)
	case op < 62:
		w.ops[2]++
		rm := &shard.Remove{Tier: w.tier(), Group: w.group(), Engines: w.engineList(4)}
		w.say("remove h%d %s g%d engines %x", m.id+1, rm.Tier, rm.Group, rm.Engines)
		return w.f.remove(m, rm)
	case op < 63:
		w.ops[3]++
		w.say("clear h%d", m.id+1)
		return w.f.clear(m)
	default:
		if w.c.n(4) > 0 {
			return nil
		}
		w.ops[4]++
		w.say("drop h%d", m.id+1)
		for i, h := range w.holders {
			if h == m {
				w.holders[i] = nil
			}
		}
		return w.f.drop(m)
	}
}

// sane chooses a chain from its root, and names it as an engine with m's hash seed
// would; from is where an event about it begins.
func (w *wild) sane(m *member) (ns kv.Namespace, contents []kv.ContentHash, engines []kv.EngineHash, from int) {
	ns = w.namespace(m)
	seed := uint64(m.id % w.seeds)
	above := chainHash(seed, kv.EngineHash(ns), 0)
	for range 1 + w.c.n(w.maxChain) {
		c := kv.HashBlock(kv.HashSeed, []uint32{uint32(w.c.n(w.contents)), 7}, nil)
		above = chainHash(seed, above, c)
		contents, engines = append(contents, c), append(engines, above)
	}
	if w.c.n(2) == 0 {
		from = w.c.n(len(contents))
	}
	return ns, contents, engines, from
}

// saneEvent applies an event about a chain that m names as engines do.
func (w *wild) saneEvent(m *member) error {
	ns, contents, engines, from := w.sane(m)
	tier, group := w.tier(), w.group()
	if w.c.n(5) < 2 {
		w.ops[2]++
		gone := slices.Clone(engines[from:])
		slices.Reverse(gone)
		w.say("remove h%d %s g%d engines %x", m.id+1, tier, group, gone)
		return w.f.remove(m, &shard.Remove{Tier: tier, Group: group, Engines: gone})
	}
	w.ops[0]++
	st := &shard.Store{Tier: tier, Group: group, Namespace: ns, Engines: engines[from:], Contents: contents[from:]}
	if from > 0 {
		st.HasParent, st.Parent = true, engines[from-1]
	}
	w.say("store h%d %s g%d ns %x parent %x/%t engines %x contents %x", m.id+1, tier, group, uint64(ns), uint64(st.Parent), st.HasParent, st.Engines, st.Contents)
	return w.f.store(m, st)
}

func (w *wild) engineList(most int) []kv.EngineHash {
	list := make([]kv.EngineHash, 1+w.c.n(most))
	for i := range list {
		list[i] = w.engine()
	}
	return list
}

func (w *wild) storeEvent(m *member) *shard.Store {
	st := &shard.Store{Tier: w.tier(), Group: w.group(), Namespace: w.namespace(m), Stated: w.c.n(4) == 0}
	if w.c.n(4) > 0 {
		st.HasParent, st.Parent = true, w.engine()
	}
	n := 1 + w.c.n(w.maxChain)
	tokens := w.c.n(2) == 0
	if tokens {
		st.Blocks.BlockSize = 2
		if w.c.n(8) == 0 {
			st.Blocks.Extra = make([][]byte, n)
			st.Blocks.Extra[w.c.n(n)] = []byte("image")
		}
	}
	for range n {
		st.Engines = append(st.Engines, w.engine())
		if tokens {
			st.Blocks.Tokens = append(st.Blocks.Tokens, uint32(w.c.n(w.contents)), 7)
		} else {
			st.Contents = append(st.Contents, w.content())
		}
	}
	if tokens {
		st.Contents = st.Blocks.AppendHashes(nil, m.model.Seed(st.Namespace))
	}
	return st
}

// compare checks the state, every chain now held, and a few of no regard.
func (w *wild) compare() error {
	w.f.check()
	if err := w.f.cmp.State(); err != nil {
		return err
	}
	if err := w.f.cmp.Held(); err != nil {
		return err
	}
	for range 4 {
		model := wildModel
		if w.r.IntN(4) == 0 {
			model = wildOther
		}
		seed := kv.ContentSeed("", wildSalts[w.r.IntN(len(wildSalts))])
		chain := make([]kv.ContentHash, 1+w.r.IntN(6))
		for i := range chain {
			chain[i] = kv.HashBlock(seed, []uint32{uint32(w.r.IntN(w.contents)), 7}, nil)
		}
		if err := w.f.cmp.Chain(model.Namespace(seed), chain); err != nil {
			return err
		}
	}
	return nil
}

// wildShape sizes one wild history.
type wildShape struct {
	name                        string
	engines, contents, maxChain int
	options                     shard.Options
	seeds                       int
}

var wildShapes = []wildShape{
	{"tiny", 6, 2, 4, shard.Options{}, 0},
	{"small", 24, 3, 6, shard.Options{MaxOrphanBlocks: 12}, 0},
	{"deep", 200, 2, 24, shard.Options{MaxOrphanBytes: 4096}, 0},
	{"seeds", 40, 2, 12, shard.Options{}, 3},
	{"own", 40, 2, 24, shard.Options{}, 4},
}

// prove runs w until its choices end, comparing every so many events.
func (w *wild) prove(every int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("event %d: %w\nlast events:\n%s", w.events, err, strings.Join(w.log, "\n"))
		}
	}()
	defer guard(&err)
	for w.c.more() {
		if err := w.event(); err != nil {
			return err
		}
		if w.events%every == 0 {
			if err := w.compare(); err != nil {
				return err
			}
		}
	}
	return w.compare()
}

func newWild(c choices, sh wildShape, subs []subject) (*wild, error) {
	f, err := newFleet(sh.options, subs)
	if err != nil {
		return nil, err
	}
	return &wild{c: c, r: rand.New(rand.NewPCG(1, 1)), f: f, engines: sh.engines, contents: sh.contents, maxChain: sh.maxChain, seeds: sh.seeds}, nil
}

// proveWild runs one seed through all shapes; a history that fails is cut down if
// shrink says so.
func proveWild(seed uint64, events int, subs []subject, shrink bool) (sum account, err error) {
	for i, sh := range wildShapes {
		d := &dice{r: rand.New(rand.NewPCG(seed, uint64(i))), left: events}
		if sh.seeds > 0 {
			d.left /= 4 // holders that make sense hold more, which takes longer to compare
		}
		w, err := newWild(d, sh, subs)
		if err != nil {
			return sum, err
		}
		err = w.prove(16)
		sum.add(w.f.account(w.events))
		if err != nil {
			if shrink {
				err = shrunk(d.chose, sh, subs, err)
			}
			return sum, fmt.Errorf("wild %s seed %d: %w", sh.name, seed, err)
		}
	}
	return sum, nil
}

// runScript runs one script of choices, compared after every event.
func runScript(b []byte, sh wildShape, subs []subject) error {
	w, err := newWild(&script{b}, sh, subs)
	if err != nil {
		return err
	}
	return w.prove(1)
}

// shrunk cuts the choices that led to err down to few, and returns what they
// lead to; err itself when choices replayed as a script do not fail.
func shrunk(b []byte, sh wildShape, subs []subject, err error) error {
	fails := func(b []byte) bool {
		e := runScript(b, sh, subs)
		if e != nil {
			err = e
		}
		return e != nil
	}
	if !fails(b) {
		return err
	}
	enough := time.Now().Add(5 * time.Second)
	for size := len(b) / 2; size > 0 && time.Now().Before(enough); {
		cut := false
		for at := 0; at+size <= len(b) && time.Now().Before(enough); {
			shorter := slices.Concat(b[:at], b[at+size:])
			if fails(shorter) {
				b, cut = shorter, true
			} else {
				at += size
			}
		}
		if !cut || size > len(b)/2 {
			size /= 2
		}
	}
	return fmt.Errorf("%w\nscript %x", err, b)
}

// TestProofWild: some seeds or more, checked every 16 events.
func TestProofWild(t *testing.T) {
	skipShort(t)
	events := 3000
	if shard.RaceEnabled {
		events = 800
	}
	for seed := range uint64(longtest.N(4, 16)) {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			t.Parallel()
			sum, err := proveWild(seed, events, subjects(), true)
			if err != nil {
				t.Fatal(err)
			}
			sum.want(t)
			t.Logf("over %s: %v", names(subjects()), sum)
		})
	}
}
