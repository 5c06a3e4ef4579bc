// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"runtime"
	"sync/atomic"

	"kindex/asm"
	"kindex/internal/kv"
)

// chainCore is the chain index's core; see the essay in chain_doc.go.
//
// Concurrency: lookup from any goroutine, everything else from one at a time.
type chainCore struct {
	// edges and gapClock are what a lookup reads before it reads a run. Both
	// change rarely.
	edges edges
	// gapClock counts gains below holes. Written by the writer before the gain is
	// visible, read by a lookup before it reads any coverage.
	gapClock atomic.Uint64
	// testHookLookup, where a test sets it before the first lookup, is called
	// between a lookup's reads, so that the test can let the writer run there.
	testHookLookup func()
	// testLookups, where a test sets it before the first lookup, counts how lookups
	// went.
	testLookups *lookupCounts
	// lines is the arena's memory, as lookups see it: set once, up to the end of a
	// line of 64 bytes. What follows is written all the time.
	lines arenaMemory

	edgeState edgeWriter
	arena     arena
	runs      runs
	dict      dict
	slots     [slotPages]*[slotPage]slotState
	maxOpen   slot // the largest ever open

	blocksHeld uint64   // positions that anybody holds, but for stale runs
	rowsMade   uint64   // alias rows, ever
	stale      []uint32 // runs whose count was put off, perhaps twice or freed

	tails *tails

	// Scratch of one mutating call.
	segs    []segment
	touched []uint32 // indices of runs that lost coverage
	hitBuf  []uint32
	found   []uint32
	over    overlays
	stamped bool // the gap clock has gone up within this call
}

const (
	slotPage  = 1 << 8
	slotPages = 1 << 16 / slotPage
	slotBytes = 80 // of a slotState
)

// slotState is what the writer knows of one slot.
type slotState struct {
	open bool
	// mayGap is false only while every position that the slot holds has all
	// positions above it held, too.
	mayGap bool
	held   uint64 // positions
	runs   runSet // that the slot holds something of
	// cursor is the position that its next removal may begin at: a guess. above is
	// the hash there where that was at hand, so that a wrong guess costs nothing.
	cursor  uint32
	aboveIs bool
	above   uint64
	exc     *exceptions
	// rows has the alias row that the slot uses, by run, for each run that the slot
	// holds something of by other hashes than the run's own row has; nil: none.
	rows map[uint32]uint32
}

var _ core = (*chainCore)(nil)

// newChainCore returns an empty core. o.ArenaBytes bounds its memory, runs,
// holders, edges and dictionary together; 64 GiB when it is 0. Memory is taken
// as it is needed.
//
// Errors: the kernel's, when not even a small address space can be had.
func newChainCore(o Options) (*chainCore, error) {
	c := &chainCore{found: make([]uint32, candidates), tails: new(tails)}
	c.dict.sizes = dictDefault
	c.arena.placement = o.Placement
	if err := c.arena.init(o.ArenaBytes); err != nil {
		return nil, err
	}
	c.lines = c.arena.arenaMemory
	if err := c.initEdges(c.arena.bound()); err != nil {
		c.arena.release()
		return nil, err
	}
	if err := c.dict.memory.reserve(uint64(c.arena.hard), o.Placement); err != nil {
		c.arena.release()
		c.edges.release()
		return nil, err
	}
	// The address space goes when the core does. Every method that touches it keeps
	// the core alive to its end.
	runtime.AddCleanup(c, func(m coreMemory) { m.release() }, c.memory())
	return c, nil
}

// coreMemory is all that a core has outside the heap.
type coreMemory struct {
	arena, edges arenaMemory
	dict         dictMemory
}

func (c *chainCore) memory() coreMemory {
	return coreMemory{c.arena.arenaMemory, c.edges.arenaMemory, c.dict.memory}
}

func (m *coreMemory) release() {
	m.arena.release()
	m.edges.release()
	m.dict.release()
}

// release gives the address space back. Nobody may use c any more.
func (c *chainCore) release() {
	m := c.memory()
	m.release()
}

// slot returns the state of s, which may be closed.
func (c *chainCore) slot(s slot) *slotState {
	page := c.slots[s/slotPage]
	if page == nil {
		page = new([slotPage]slotState)
		c.slots[s/slotPage] = page
	}
	return &page[s%slotPage]
}

func (c *chainCore) open(s slot) {
	st := c.slot(s)
	if s == 0 || st.open {
		panic("BUG: shard: open of slot in use")
	}
	*st = slotState{open: true}
	c.maxOpen = max(c.maxOpen, s)
}

func (c *chainCore) close(s slot) {
	c.clear(s)
	*c.slot(s) = slotState{}
}

// place returns where p is; p must be a live position.
func (c *chainCore) place(p uint32) place {
	return place{line: c.runs.at(p >> offsetBits).line, off: uint16(p&posOffset) + 1}
}

// position returns the one at off of the run at line.
func (c *chainCore) position(line uint32, off int) uint32 {
	return c.index(line)<<offsetBits | uint32(off)
}

func (c *chainCore) namespace(p pos) kv.Namespace {
	info := c.runs.at(uint32(p) >> offsetBits)
	ns := kv.Namespace(*c.arena.w(info.root, runKey))
	runtime.KeepAlive(c)
	return ns
}

// expectMost is the number of hashes up to which the dictionary's lines are worth
// asking for ahead: the kernels of longer events overlap their own.
const expectMost = 16

func (c *chainCore) tighten(on bool) { c.arena.tight = on }

func (c *chainCore) taken() (used, bound uint64) {
	return (c.arena.counted() - c.arena.free) * lineBytes, uint64(c.arena.soft) * lineBytes
}

func (c *chainCore) pressed() uint64 {
	used, bound := c.taken()
	room := uint64(c.arena.soft) - min(uint64(c.arena.soft), c.arena.counted())
	share := func(entries, most uint64) {
		used = max(used, uint64(float64(bound)*(float64(entries)/float64(max(most, 1)))))
	}
	if d := &c.dict; d.cost(d.nextHomes(), d.n) > room {
		share(d.n, d.most())
	}
	if next, most := c.edgesNext(); next > room {
		share(c.edgeState.n, most)
	}
	return used
}

// expect asks for the lines that a short event will change: most events are one
// decoded block, whose one line would else be waited for in the end.
func (c *chainCore) expect(engines []kv.EngineHash) {
	if len(engines) <= expectMost {
		asm.DictPrefetch(&c.dict.table, engineWords(engines))
		runtime.KeepAlive(c)
	}
}

func (c *chainCore) find(s slot, e kv.EngineHash) pos {
	p := pos(c.mapped(s, c.slot(s), uint64(e)))
	runtime.KeepAlive(c)
	return p
}

// tails are where the last stores ended, by engine hash: the next ones go on from
// there. A tail is a guess, which saves the dictionary's line; so many as there may
// be chains decoding at once, in 64 KiB.
type tails [1 << tailBits]tail

type tail struct{ p, tag uint32 }

const tailBits = 13

// of returns the tail for e, and the tag that it has when it is e's.
func (t *tails) of(e uint64) (*tail, uint32) {
	h := e * 0x9E3779B97F4A7C15
	return &t[h>>(64-tailBits)], uint32(h)
}

// noteTail notes that a store ended at p, by e.
func (c *chainCore) noteTail(e uint64, p uint32) {
	t, tag := c.tails.of(e)
	*t = tail{p, tag}
}

// mapped returns the position that s holds by e, 0 when there is none. It sees
// coverage as the overlays say, where there are some.
//
// Cost: one dictionary line and the run of each candidate; none of them when the
// guess is right.
func (c *chainCore) mapped(s slot, st *slotState, e uint64) uint32 {
	if p, ok := st.exc.find(e); ok {
		return p
	}
	if t, tag := c.tails.of(e); t.tag == tag && c.maps(s, st, t.p, e) {
		return t.p
	}
	if st.held == 0 && len(c.over.list) == 0 || c.dict.n == 0 {
		return 0
	}
	for _, p := range c.candidates(e) {
		if !c.stands(p, e) {
			continue
		}
		if at := c.basePosition(p); st.rowOf(at>>offsetBits) == p>>offsetBits && c.holdsCanonical(s, st, at) {
			return at
		}
	}
	return 0
}

// maps reports whether s maps e to p by its row. p may be any number.
func (c *chainCore) maps(s slot, st *slotState, p uint32, e uint64) bool {
	idx := p >> offsetBits
	if idx == 0 || idx > c.runs.next || c.runs.lineOf(idx) == 0 {
		return false
	}
	return c.stands(st.rowOf(idx)<<offsetBits|p&posOffset, e) && c.holdsCanonical(s, st, p)
}

// stands reports whether e is filled in at position p of a row that lives.
func (c *chainCore) stands(p uint32, e uint64) bool {
	return p&posOffset < uint32(c.runs.at(p>>offsetBits).filled) && c.engineOf(p) == e
}

// holdsCanonical reports whether s holds the live position p by the hash that its
// row has there.
func (c *chainCore) holdsCanonical(s slot, st *slotState, p uint32) bool {
	if st.exc != nil {
		if x, ok := st.exc.byPos[p]; ok {
			return x.canonical
		}
	}
	return c.covers(s, p)
}

func (c *chainCore) held(s slot) uint64 { return c.slot(s).held }
