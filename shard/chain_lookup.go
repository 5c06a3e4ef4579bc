// SPDX-License-Identifier: Apache-2.0

// Hop before: Shard, with a namespace and a chain of content hashes.
// Hop after: Shard, which turns slots into holders; chain_cover_read.go reads
// who holds a run.

package shard

import (
	"runtime"
	"sync/atomic"

	"kindex/asm"
	"kindex/internal/kv"
	"kindex/numa"
)

const (
	// spins is how often a lookup tries a run again at once, with a pause each
	// time, before it lets others run: the writer may have been put aside in the
	// middle of a change.
	spins = 8
	// patience is how many times in a row a lookup lets other goroutines run
	// before it asks the system to run other threads. Chosen.
	patience = 4
	// contentAhead is how many lines of a run's content, and of the chain, are asked
	// for before the run's header has been seen: the processor itself looks ahead
	// once it sees a pattern. Chosen by measurement; 8 to 64 are alike.
	contentAhead = 16
)

// walk is one lookup on its way down, and the memory that it works in, which is
// used again. It belongs to one goroutine at a time.
//
// Slots that hold all blocks matched so far are alive: those in the bitset alive,
// and few[:live]. Slots leave with their depth, many at once as a group, others
// as elements of few past live. What has left stays as it is: a run that changed
// while it was read is read again before anything of it counts.
type walk struct {
	c     *chainCore
	chain []uint64
	ns    uint64
	flat  *flatAnswer // lists the first run's slots while the next one is on its way; may be nil

	clock uint64 // the gap clock before any coverage was read
	depth int    // blocks matched by the runs passed
	line  uint32 // of the last run passed; 0: none yet
	gen   uint32 // its generation
	over  bool   // nothing can come any more

	// The next run is looked for under key and root, from at on.
	key, root uint64
	at        edgeCursor

	first      []uint64 // slots listed by the first run's bitset
	firstDepth int      // what they hold of it, as far as the chain goes
	alive      []uint64 // those of them still alive; empty when there are none
	few        []slotDepth
	live       int
	groups     []walkGroup
	words      []uint64 // of the groups' bitsets

	// What was read of a run, until its version is confirmed.
	next []uint64    // as alive
	got  []uint16    // blocks that few[:live] hold of it
	part []slotDepth // slots of alive that hold some of it by entry

	ahead                   int // lines of content to ask for before a run's header is there
	tries, restarts, yields int // reads of a run in vain; walks begun again; how often others were let run
}

// walkGroup is slots that left together.
type walkGroup struct {
	depth uint32
	from  int // of walk.words; as many words as walk.first has
}

// outcome of reading a run.
type outcome uint8

const (
	readDone    outcome = iota // consistent, and the one wanted
	readOther                  // consistent, and another one, or none
	readAgain                  // it was changing all the time
	readRestart                // what was read further up may be of another moment
)

// lookup implements [core].
func (c *chainCore) lookup(ns kv.Namespace, chain []kv.ContentHash, dst []slotDepth) []slotDepth {
	sc := takeScratch()
	sc.walk.start(c, ns, chain, nil)
	sc.walk.run()
	dst = sc.walk.appendSlots(dst)
	giveScratch(sc)
	return dst
}

// start prepares w for a lookup.
func (w *walk) start(c *chainCore, ns kv.Namespace, chain []kv.ContentHash, flat *flatAnswer) {
	w.c, w.chain, w.ns, w.flat = c, contentWords(chain), uint64(ns), flat
	w.ahead, w.tries, w.restarts, w.yields = contentAhead, 0, 0, 0
	w.begin()
}

// begin sets w to the root.
func (w *walk) begin() {
	w.clock = w.c.gapClock.Load()
	w.empty()
	if w.flat != nil {
		w.flat.reset()
	}
	if w.over = len(w.chain) == 0; !w.over {
		w.seek(w.ns, flagRoot)
	}
}

// empty takes out what w found.
func (w *walk) empty() {
	w.depth, w.line, w.live, w.firstDepth = 0, 0, 0, 0
	w.first, w.alive, w.few = w.first[:0], w.alive[:0], w.few[:0]
	w.groups, w.words = w.groups[:0], w.words[:0]
}

// run walks down to the end, again from the root as often as it must.
//
// Concurrency: blocks nobody. Where the writer keeps changing what is read, or was
// put aside within a change, it lets others run.
func (w *walk) run() {
	for {
		out := w.down()
		if out == readDone {
			break
		}
		w.restart(out)
	}
	w.count()
	runtime.KeepAlive(w.c)
}

// restart sets w to the root again, after a read that ended with out.
func (w *walk) restart(out outcome) {
	if w.restarts++; out == readAgain || w.restarts%spins == 0 {
		w.yield()
	}
	w.begin()
}

func (w *walk) count() {
	if counts := w.c.testLookups; counts != nil {
		counts.add(w)
	}
}

// yield lets other goroutines run and, where that did not help, other threads: the
// writer's may have lost its core.
func (w *walk) yield() {
	if w.yields++; w.yields%patience == 0 {
		numa.Yield()
	}
	runtime.Gosched()
}

// down walks from where w is down to the end. Unless it returns readDone, the walk
// has to begin again.
func (w *walk) down() outcome {
	for !w.over {
		if hook := w.c.testHookLookup; hook != nil {
			hook()
		}
		line, ok := w.probe()
		if !ok {
			break
		}
		if w.flat != nil && w.line != 0 {
			w.flat.early(w)
		}
		if out := w.read(line); out != readDone && out != readOther {
			return out
		}
	}
	w.end()
	return readDone
}

// end lets those that are still alive leave.
func (w *walk) end() {
	if len(w.alive) > 0 {
		w.leave(w.alive, w.depth)
		w.alive = w.alive[:0]
	}
	w.live = 0
}

// seek aims w at the run that hangs at key and begins with the next block, and
// asks for the line of the edge table that should have it.
func (w *walk) seek(key, root uint64) {
	w.key, w.root = key, root
	w.at = w.edge(key, root, w.depth)
}

// edge begins the search for the run that hangs at key and begins with block i.
func (w *walk) edge(key, root uint64, i int) edgeCursor {
	at := w.c.edges.seek(edgeTag(key, root, w.chain[i]))
	prefetch(w.c.edges.w(at.l, 0), 1)
	return at
}

// probe returns the line of the next run that may be the one wanted, and asks for
// its header and the beginning of its content. It returns false when there was none
// at some moment of the call.
func (w *walk) probe() (line uint32, ok bool) {
	if line, ok = w.c.edges.probe(&w.at); ok {
		ahead := min((len(w.chain)-w.depth+lineWords-1)/lineWords, w.ahead)
		prefetch(&w.chain[w.depth], ahead)
		prefetch(w.c.lines.w(line, 0), 1+ahead)
	}
	return line, ok
}

// peek asks for what the header of the run at line leads to: its holder block and,
// below the first run, where chains mostly go on at the end, the next edge.
func (w *walk) peek(line uint32) {
	if ext := uint32(atomic.LoadUint64(w.c.lines.w(line, runExt))); ext != 0 {
		prefetch(w.c.lines.w(ext, 0), 2)
	}
	if w.line == 0 {
		return
	}
	shape := atomic.LoadUint64(w.c.lines.w(line, runShape))
	if n := shapeLength(shape); shape&flagParent != 0 && w.depth+n < len(w.chain) {
		w.edge(childKey(place{line: line, off: uint16(n)}), 0, w.depth+n)
	}
}

// read reads the run at line and, when it is the one wanted, passes it: its
// coverage decides who stays alive.
func (w *walk) read(line uint32) outcome {
	var seen asm.RunRead
	head := &seen.Header
	for range spins {
		n, whole, ok := w.readRun(line, &seen)
		if !ok {
			w.tries++
			asm.Pause()
			continue
		}
		if n == 0 || head[runKey] != w.key || head[runShape]&flagRoot != w.root {
			return readOther
		}
		ext := uint32(head[runExt])
		last := head[runShape]&flagParent == 0 || w.depth+n == len(w.chain)
		below := childKey(place{line: line, off: uint16(n)})
		var next edgeCursor
		if !last {
			next = w.edge(below, 0, w.depth+n)
		}
		if hook := w.c.testHookLookup; hook != nil {
			hook()
		}
		var cover int
		if whole {
			w.part = w.part[:0]
			cover = min(n, extShapeOf(seen.Block[0]).prefix)
		} else {
			cover = w.readCover(head, ext, n)
		}
		if ext != 0 && !whole {
			head[runGap] = atomic.LoadUint64(w.c.lines.w(line, runGap))
			if atomic.LoadUint64(w.c.lines.w(line, runVersion)) != head[runVersion] {
				w.tries++
				asm.Pause()
				continue
			}
		}
		if w.line != 0 && (head[runGap] > w.clock ||
			uint32(atomic.LoadUint64(w.c.lines.w(w.line, runShape))) != w.gen) {
			return readRestart
		}
		w.pass(cover, n)
		w.line, w.gen = line, uint32(head[runShape])
		w.over = last || w.live == 0 && len(w.alive) == 0
		w.key, w.root, w.at = below, 0, next
		return readDone
	}
	return readAgain
}

// readRun reads the run at line, and in the same call who of those alive by bit hold
// it by bit, to w.next: when whole, those are all that are alive, and nothing of the
// run's coverage is left to read.
func (w *walk) readRun(line uint32, seen *asm.RunRead) (match int, whole, ok bool) {
	rest := w.chain[w.depth:]
	if len(w.alive) == 0 {
		match, ok = asm.ReadRun(w.c.lines.w(line, 0), rest, &seen.Header)
		return match, false, ok
	}
	w.next = resize(w.next, len(w.alive))
	match, whole, ok = w.c.lines.readRunAnd(line, rest, seen, w.alive, w.next)
	return match, whole && w.live == 0, ok
}

// lookupCounts adds up how lookups went.
type lookupCounts struct {
	lookups, tries, restarts, yields atomic.Uint64
}

func (n *lookupCounts) add(w *walk) {
	n.lookups.Add(1)
	n.tries.Add(uint64(w.tries))
	n.restarts.Add(uint64(w.restarts))
	n.yields.Add(uint64(w.yields))
}
