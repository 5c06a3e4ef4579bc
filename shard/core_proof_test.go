// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// cores are the structures under proof at the level below tiers and copies.
var cores = map[string]func() core{
	"positional": func() core { return newPositionalCore(Options{}) },
	"chain": func() core {
		c, err := newChainCore(Options{})
		if err != nil {
			panic(err)
		}
		tinyTables(c, nil)
		return c
	},
}

// coreModel says in plain maps what a core must answer. A position is the
// string of its namespace and the contents down to it.
type coreModel struct {
	slots map[slot]map[kv.EngineHash]string
}

func modelRoot(ns kv.Namespace) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(ns)))
}

func modelChild(at string, c kv.ContentHash) string {
	return string(binary.BigEndian.AppendUint64([]byte(at), uint64(c)))
}

func (m *coreModel) hold(s slot, at string, e kv.EngineHash) (held, moved bool) {
	old, ok := m.slots[s][e]
	m.slots[s][e] = at
	return ok && old == at, ok && old != at
}

func (m *coreModel) positions(s slot) map[string][]kv.EngineHash {
	by := make(map[string][]kv.EngineHash)
	for e, at := range m.slots[s] {
		by[at] = append(by[at], e)
	}
	for _, es := range by {
		slices.Sort(es)
	}
	return by
}

// lookup answers from the positions of every slot.
func (m *coreModel) lookup(held map[slot]map[string][]kv.EngineHash, ns kv.Namespace, chain []kv.ContentHash) map[slot]uint32 {
	out := make(map[slot]uint32)
	for s, by := range held {
		at := modelRoot(ns)
		for _, c := range chain {
			at = modelChild(at, c)
			if by[at] == nil {
				break
			}
			out[s]++
		}
	}
	return out
}

// coreWalk returns what a core says that s holds, and complains about order.
func coreWalk(c core, s slot) (map[string][]kv.EngineHash, error) {
	paths := make(map[pos]string)
	by := make(map[string][]kv.EngineHash)
	var err error
	c.walk(s, func(n *coreNode) bool {
		at := modelRoot(n.ns)
		if n.parent != 0 {
			up, ok := paths[n.parent]
			if !ok {
				err = fmt.Errorf("slot %d: node %d came before its parent %d", s, n.id, n.parent)
				return false
			}
			at = up
		}
		if _, twice := paths[n.id]; twice || n.id == 0 {
			err = fmt.Errorf("slot %d: node %d came twice or is 0", s, n.id)
			return false
		}
		at = modelChild(at, n.content)
		paths[n.id] = at
		if len(n.engines) > 0 {
			by[at] = slices.Sorted(slices.Values(n.engines))
		}
		return true
	})
	return by, err
}

// coreDrive runs one random history over c and the model at once.
type coreDrive struct {
	c      core
	m      coreModel
	r      *rand.Rand
	slots  int
	hashes uint64 // engine hashes 0..hashes-1
	values uint64 // contents 0..values-1
	spaces uint64 // namespaces
	long   int    // blocks of a long store; 0: none
	seeds  uint64 // slots s and s+seeds name their blocks alike where they are honest; 0: all do
	log    []string

	moves, helds, unknowns, lookups, walks, refused, lost int
}

func (d *coreDrive) engine() kv.EngineHash { return kv.EngineHash(d.r.Uint64N(d.hashes)) }

func (d *coreDrive) openSlot() (slot, bool) {
	open := make([]slot, 0, d.slots)
	for s := range d.m.slots {
		open = append(open, s)
	}
	if len(open) == 0 {
		return 0, false
	}
	slices.Sort(open)
	return open[d.r.IntN(len(open))], true
}

func (d *coreDrive) say(format string, args ...any) {
	if len(d.log) >= 40 {
		d.log = d.log[1:]
	}
	d.log = append(d.log, fmt.Sprintf(format, args...))
}

// step runs one call and compares what it returned.
func (d *coreDrive) step() error {
	s, some := d.openSlot()
	op := d.r.IntN(100)
	if !some || (op < 4 && len(d.m.slots) < d.slots) {
		s = slot(1 + d.r.IntN(d.slots))
		if d.m.slots[s] != nil {
			return nil
		}
		d.say("open %d", s)
		d.c.open(s)
		d.m.slots[s] = make(map[kv.EngineHash]string)
		if from, ok := d.openSlot(); ok && from != s && d.r.IntN(2) == 0 {
			d.say("clone %d %d", from, s)
			if err := d.c.clone(from, s); errors.Is(err, ErrArenaFull) {
				d.refused++
				return nil
			} else if err != nil {
				return err
			}
			maps.Copy(d.m.slots[s], d.m.slots[from])
		}
		return nil
	}
	switch {
	case op < 6:
		d.say("close %d", s)
		d.c.close(s)
		delete(d.m.slots, s)
	case op < 8:
		d.say("clear %d", s)
		d.c.clear(s)
		clear(d.m.slots[s])
	case op < 60:
		return d.store(s)
	case op < 65:
		return d.adopt(s)
	default:
		return d.remove(s)
	}
	return nil
}

func (d *coreDrive) store(s slot) error {
	ns := kv.Namespace(d.r.Uint64N(d.spaces))
	at, where := pos(0), modelRoot(ns)
	if d.r.IntN(3) > 0 {
		e := d.engine()
		if at = d.c.find(s, e); at != 0 {
			where = d.m.slots[s][e]
		}
	}
	n := 1 + d.r.IntN(6)
	if d.r.IntN(20) == 0 {
		n = 60 + d.r.IntN(20)
	}
	if d.long > 0 && d.r.IntN(4) == 0 {
		n = 1 + d.r.IntN(d.long)
	}
	engines, contents := make([]kv.EngineHash, n), make([]kv.ContentHash, n)
	for i := range engines {
		engines[i], contents[i] = d.engine(), kv.ContentHash(d.r.Uint64N(d.values))
		if d.r.IntN(2) == 0 { // what an honest engine would say: one name a position
			name := uint64(i)*d.values + uint64(contents[i])
			if d.seeds > 0 {
				name += uint64(s) % d.seeds * 997
			}
			engines[i] = kv.EngineHash(name % d.hashes)
		}
	}
	d.say("store slot %d ns %d at %x engines %v contents %v", s, ns, where, engines, contents)
	held := make([]uint64, (n+63)/64)
	for i := range held {
		held[i] = d.r.Uint64()
	}
	pre := []kv.EngineHash{999}
	moved, err := d.c.store(s, ns, at, engines, contents, held, pre)
	if errors.Is(err, ErrArenaFull) {
		d.refused++
		return d.refusedStore(s, where, engines, contents, moved[1:])
	}
	if err != nil {
		return err
	}
	want := []kv.EngineHash{999}
	for i, e := range engines {
		where = modelChild(where, contents[i])
		was, mv := d.m.hold(s, where, e)
		if mv {
			want = append(want, e)
			d.moves++
		}
		if was {
			d.helds++
		}
		if got := held[i/64]>>(i%64)&1 != 0; got != was {
			return fmt.Errorf("store: held bit %d is %t, want %t", i, got, was)
		}
	}
	if !slices.Equal(moved, want) {
		return fmt.Errorf("store: moved %v, want %v", moved[1:], want[1:])
	}
	return nil
}

// refusedStore drops from the model what a refused store would have moved, and
// compares. That nothing else was applied the next comparison says.
func (d *coreDrive) refusedStore(s slot, where string, engines []kv.EngineHash, contents []kv.ContentHash, moved []kv.EngineHash) error {
	var want []kv.EngineHash
	for i, e := range engines {
		where = modelChild(where, contents[i])
		if old, ok := d.m.slots[s][e]; ok && old != where {
			want = append(want, e)
		}
	}
	for _, e := range want {
		delete(d.m.slots[s], e)
	}
	if !slices.Equal(moved, want) {
		return fmt.Errorf("refused store: moved %v, want %v", moved, want)
	}
	d.lost += len(want)
	return nil
}

func (d *coreDrive) adopt(s slot) error {
	other, _ := d.openSlot()
	e := d.engine()
	p := d.c.find(other, e)
	if p == 0 {
		return nil
	}
	as := d.engine()
	d.say("adopt slot %d what %d holds by %d as %d", s, other, e, as)
	held, moved, err := d.c.adopt(s, p, as)
	if errors.Is(err, ErrArenaFull) {
		d.refused++
		old, was := d.m.slots[s][as]
		gone := was && old != d.m.slots[other][e]
		if gone {
			delete(d.m.slots[s], as)
		}
		if held || moved != gone {
			return fmt.Errorf("refused adopt: held %t moved %t, want moved %t", held, moved, gone)
		}
		return nil
	}
	wantHeld, wantMoved := d.m.hold(s, d.m.slots[other][e], as)
	if err != nil || held != wantHeld || moved != wantMoved {
		return fmt.Errorf("adopt: held %t moved %t error %s, want %t %t", held, moved, fmt.Sprint(err), wantHeld, wantMoved)
	}
	return nil
}

func (d *coreDrive) remove(s slot) error {
	engines := make([]kv.EngineHash, 1+d.r.IntN(8))
	for i := range engines {
		engines[i] = d.engine()
	}
	d.say("remove slot %d engines %v", s, engines)
	got := d.c.remove(s, engines, nil)
	var want []kv.EngineHash
	for _, e := range engines {
		if _, ok := d.m.slots[s][e]; ok {
			delete(d.m.slots[s], e)
		} else {
			want = append(want, e)
			d.unknowns++
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("remove: unknown %v, want %v", got, want)
	}
	return nil
}

// compare checks the whole state, and one lookup along a held chain.
func (d *coreDrive) compare() error {
	d.c.check()
	positions := make(map[slot]map[string][]kv.EngineHash)
	for s := range d.m.slots {
		positions[s] = d.m.positions(s)
	}
	for s, by := range d.m.slots {
		want := positions[s]
		got, err := coreWalk(d.c, s)
		if err != nil {
			return err
		}
		d.walks++
		if held := d.c.held(s); held != uint64(len(want)) {
			return fmt.Errorf("slot %d holds %d positions, want %d", s, held, len(want))
		}
		for at, es := range want {
			if !slices.Equal(got[at], es) {
				return fmt.Errorf("slot %d holds %x by %v, want %v", s, at, got[at], es)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("slot %d walks %d positions, want %d", s, len(got), len(want))
		}
		for e := range kv.EngineHash(min(d.hashes, 64)) {
			p := d.c.find(s, e)
			at, ok := by[e]
			if (p != 0) != ok {
				return fmt.Errorf("slot %d finds %d at %d, want held %t", s, e, p, ok)
			}
			if ok && modelRoot(d.c.namespace(p)) != at[:8] {
				return fmt.Errorf("slot %d: %d lies in namespace %d, want %x", s, e, d.c.namespace(p), at[:8])
			}
		}
		for at := range want {
			if d.r.IntN(8) == 0 {
				if err := d.compareLookup(positions, at); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d *coreDrive) compareLookup(held map[slot]map[string][]kv.EngineHash, at string) error {
	ns := kv.Namespace(binary.BigEndian.Uint64([]byte(at)))
	var chain []kv.ContentHash
	for i := 8; i < len(at); i += 8 {
		chain = append(chain, kv.ContentHash(binary.BigEndian.Uint64([]byte(at[i:]))))
	}
	for range d.r.IntN(3) {
		chain = append(chain, kv.ContentHash(d.r.Uint64N(d.values)))
	}
	want := d.m.lookup(held, ns, chain)
	got := d.c.lookup(ns, chain, []slotDepth{{7, 77}})
	d.lookups++
	if got[0] != (slotDepth{7, 77}) || len(got)-1 != len(want) {
		return fmt.Errorf("lookup %d %v: %v, want %v", ns, chain, got[1:], want)
	}
	for _, sd := range got[1:] {
		if want[sd.slot] != sd.depth {
			return fmt.Errorf("lookup %d %v: %v, want %v", ns, chain, got[1:], want)
		}
	}
	return nil
}

// TestCoreWild runs random calls without sense over tiny and middling spaces
// of hashes, each core against plain maps.
func TestCoreWild(t *testing.T) {
	shapes := []struct {
		name                          string
		slots                         int
		hashes, values, spaces, steps uint64
		long                          int
		own                           uint64 // hash seeds
	}{
		{"tiny", 3, 8, 2, 2, 6000, 0, 0},
		{"twins", 4, 40, 2, 1, 6000, 0, 0},
		{"deep", 5, 400, 1, 1, 2500, 0, 0},
		{"wide", 100, 30, 3, 2, 5000, 0, 0},
		{"many", 9, 3000, 4, 3, 2000, 0, 0},
		{"long", 6, 2000, 1, 1, 500, 700, 0}, // past the longest run
		{"seeds", 6, 400, 2, 1, 4000, 0, 3},
		{"seeds-long", 6, 6000, 1, 1, 500, 700, 4},
	}
	seeds := uint64(longtest.N(2, 14))
	for name, open := range cores {
		for _, sh := range shapes {
			t.Run(name+"/"+sh.name, func(t *testing.T) {
				t.Parallel()
				for seed := range seeds {
					d := coreDrive{
						c: open(), m: coreModel{slots: make(map[slot]map[kv.EngineHash]string)},
						r: rand.New(rand.NewPCG(seed, 1)), slots: sh.slots, hashes: sh.hashes, values: sh.values, spaces: sh.spaces, long: sh.long, seeds: sh.own,
					}
					steps := sh.steps
					if RaceEnabled {
						steps /= 5
					}
					for i := range steps {
						err := d.step()
						if err == nil && (i%16 == 0 || (i%4 == 0 && sh.hashes < 500 && sh.slots < 10)) {
							err = d.compare()
						}
						if err != nil {
							t.Fatalf("seed %d step %d: %v\nlast calls:\n%s", seed, i, err, joinLines(d.log))
						}
					}
					for s := range d.m.slots {
						d.c.close(s)
					}
					d.c.check()
					var st Stats
					if d.c.stats(&st); st.Blocks != 0 {
						t.Fatalf("seed %d: %d blocks left when every slot is closed", seed, st.Blocks)
					}
					rows := uint64(0)
					if c, ok := d.c.(*chainCore); ok {
						if rows = c.rowsMade; rows == 0 {
							t.Errorf("seed %d: no alias row was made", seed)
						}
					}
					t.Logf("seed %d: %d moves, %d held again, %d unknown, %d alias rows, %d walks and %d lookups compared", seed, d.moves, d.helds, d.unknowns, rows, d.walks, d.lookups)
				}
			})
		}
	}
}

func joinLines(lines []string) string {
	out := ""
	for _, l := range lines {
		out += l + "\n"
	}
	return out
}

// TestSlotSet walks a set through all its forms and back against a map.
func TestSlotSet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, top := range []int{6, 100, 700, 65535} {
		var set slotSet
		model := make(map[slot]bool)
		for step := range 20_000 {
			s := slot(1 + r.IntN(top))
			grow := step/2500%2 == 0
			switch have := model[s]; {
			case grow || !have:
				if got := set.add(s); got == have {
					t.Fatalf("top %d step %d: add(%d) = %t, was there %t", top, step, s, got, have)
				}
				model[s] = true
				if !grow { // what shrinks takes two for each it gives
					for _, x := range set.slots()[:min(2, set.n)] {
						set.remove(x)
						delete(model, x)
					}
				}
			default:
				set.remove(s)
				delete(model, s)
			}
			if step%64 == 0 {
				set.check()
				want := make([]slot, 0, len(model))
				for s := range model {
					want = append(want, s)
				}
				slices.Sort(want)
				if got := set.slots(); !slices.Equal(got, want) {
					t.Fatalf("top %d step %d: %v, want %v", top, step, got, want)
				}
				deep := set.appendTo(nil)
				if !slices.EqualFunc(deep, want, func(a slotDepth, b slot) bool { return a == slotDepth{b, 1} }) {
					t.Fatalf("top %d step %d: appendTo %v, want %v at 1", top, step, deep, want)
				}
			}
		}
	}
}

// TestCoreFull runs the wild calls in too little memory: a call that is refused
// has ended what it would have moved and changed nothing else, and removals are
// never refused.
func TestCoreFull(t *testing.T) {
	for _, kib := range []uint64{16, 64, 256} {
		t.Run(fmt.Sprintf("%dKiB", kib), func(t *testing.T) {
			t.Parallel()
			refused, lost := 0, 0
			for seed := range uint64(longtest.N(3, 30)) {
				c, err := newChainCore(Options{ArenaBytes: kib << 10})
				if err != nil {
					t.Fatal(err)
				}
				d := coreDrive{
					c: c, m: coreModel{slots: make(map[slot]map[kv.EngineHash]string)}, r: rand.New(rand.NewPCG(seed, kib)),
					slots: 12, hashes: 4 * kib, values: 3, spaces: 2, long: int(kib),
				}
				steps := 2500
				if RaceEnabled {
					steps = max(500, 6*int(kib)) // as many as it takes to fill memory
				}
				for i := range steps {
					before := d.refused
					err := d.step()
					if err == nil && (i%32 == 0 || d.refused > before && i%4 == 0) {
						err = d.compare()
					}
					if err != nil {
						t.Fatalf("seed %d step %d: %v\nlast calls:\n%s", seed, i, err, joinLines(d.log))
					}
				}
				refused += d.refused
				lost += d.lost
			}
			t.Logf("%d calls refused, which would have moved %d hashes", refused, lost)
			if refused == 0 || lost == 0 {
				t.Error("no call was refused, or none that moves: the arena is too large for this test")
			}
		})
	}
}

// TestPositionalSizes keeps what stats multiplies by true.
func TestPositionalSizes(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  reflect.Type
		want uintptr
	}{
		{"posEntry", reflect.TypeFor[posEntry](), entryBytes},
		{"posEdge", reflect.TypeFor[posEdge](), edgeBytes},
		{"slotMore", reflect.TypeFor[slotMore](), moreBytes},
	} {
		if got := c.typ.Size(); got != c.want {
			t.Errorf("%s takes %d bytes, want %d", c.name, got, c.want)
		}
	}
}

// TestPositionalLookupAllocs keeps lookups free of allocations.
func TestPositionalLookupAllocs(t *testing.T) {
	c := newPositionalCore(Options{})
	chain := make([]kv.ContentHash, 100)
	engines := make([]kv.EngineHash, len(chain))
	for i := range chain {
		chain[i], engines[i] = kv.ContentHash(i*7), kv.EngineHash(i)
	}
	for s := slot(1); s <= 300; s++ {
		c.open(s)
		n := 1 + int(s)%len(chain)
		if _, err := c.store(s, 5, 0, engines[:n], chain[:n], make([]uint64, 2), nil); err != nil {
			t.Fatal(err)
		}
	}
	dst := make([]slotDepth, 0, 300)
	if n := testing.AllocsPerRun(100, func() { dst = c.lookup(5, chain, dst[:0]) }); n != 0 || len(dst) != 300 {
		t.Fatalf("lookup: %v allocations and %d answers, want 0 and 300", n, len(dst))
	}
	for _, sd := range dst {
		if want := uint32(1 + int(sd.slot)%len(chain)); sd.depth != want {
			t.Fatalf("slot %d at depth %d, want %d", sd.slot, sd.depth, want)
		}
	}
}
