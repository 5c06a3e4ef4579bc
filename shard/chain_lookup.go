// SPDX-License-Identifier: Apache-2.0

// Hop before: Shard, with a namespace and a chain of content hashes.
// Hop after: Shard, with slots and depths.

package shard

import (
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"

	"kindex/asm"
	"kindex/internal/kv"
)

// spins is how often a lookup tries a run again at once before it lets others
// run: the writer may have been put aside in the middle of a change.
const spins = 8

func (c *chainCore) lookup(ns kv.Namespace, chain []kv.ContentHash, dst []slotDepth) []slotDepth {
	if len(chain) == 0 {
		return dst
	}
	w := walker{c: c, chain: contentWords(chain), ns: uint64(ns), dst: dst, base: len(dst)}
	for tries := 1; ; tries++ {
		again := w.run()
		if again == readDone {
			break
		}
		w.dst = w.dst[:w.base]
		if again == readAgain || tries%spins == 0 {
			runtime.Gosched()
		}
	}
	runtime.KeepAlive(c)
	return w.dst
}

// walker is one lookup on its way down. It lives on the caller's stack.
//
// dst[base:base+alive] are the slots that hold all blocks matched so far.
type walker struct {
	c     *chainCore
	chain []uint64
	ns    uint64
	dst   []slotDepth
	base  int
	alive int
	clock uint64 // the gap clock before any coverage was read

	depth int    // blocks matched by the runs passed
	line  uint32 // of the last run passed
	gen   uint32 // its generation
	off   int    // blocks of it that matched
	leaf  bool   // nothing hung below it when its header was read
}

// outcome of reading a run.
type outcome uint8

const (
	readDone    outcome = iota // consistent, and the one wanted
	readOther                  // consistent, and another one, or none
	readAgain                  // it was changing all the time
	readRestart                // what was read further up may be of another moment
)

// run walks from the root down. Unless it returns readDone, the walk has to begin
// again.
func (w *walker) run() outcome {
	w.clock = w.c.gapClock.Load()
	w.depth, w.line, w.alive = 0, 0, 0
	for w.depth < len(w.chain) {
		if hook := w.c.testHookLookup; hook != nil {
			hook()
		}
		switch out := w.step(); {
		case out == readOther || out == readDone && (w.alive == 0 || w.leaf):
			return readDone
		case out != readDone:
			return out
		}
	}
	return readDone
}

// step finds the run below the last one that begins with the next block, and
// passes it. It returns readOther when there was none at some moment of the step.
func (w *walker) step() outcome {
	c := w.c
	key, root := w.ns, uint64(flagRoot)
	if w.line != 0 {
		key, root = childKey(place{line: w.line, off: uint16(w.off)}), 0
	}
	tag := edgeTag(key, root, w.chain[w.depth])
	desc := c.edges.desc.Load()
	for {
		if hook := c.testHookLookup; hook != nil {
			hook()
		}
		home := edgeHome(desc, tag)
		for l := home; ; l++ {
			for k := 1; k <= edgeSlots; k++ {
				slot := atomic.LoadUint64(c.edges.w(l, k))
				if uint32(slot>>32) != tag {
					continue
				}
				if out := w.pass(uint32(slot), key, root); out != readOther {
					return out
				}
			}
			if atomic.LoadUint64(c.edges.w(l, 0)) == 0 {
				break
			}
		}
		// The entry may have moved to another home behind this back.
		if desc = c.edges.desc.Load(); edgeHome(desc, tag) == home {
			return readOther
		}
	}
}

// pass reads the run at line and, when it is the one that key and the next block
// name, takes its coverage in.
func (w *walker) pass(line uint32, key, root uint64) outcome {
	for range spins {
		var head [asm.RunHeaderWords]uint64
		n, ok := asm.ReadRun(w.c.arena.w(line, 0), w.chain[w.depth:], &head)
		if !ok {
			continue
		}
		if n == 0 || head[runKey] != key || head[runShape]&flagRoot != root {
			return readOther
		}
		if hook := w.c.testHookLookup; hook != nil {
			hook()
		}
		ext := uint32(head[runExt])
		gap := head[runGap]
		switch {
		case ext == 0 && w.line == 0:
			w.listInline(&head, n)
		case ext == 0:
			w.keepInline(&head, n)
		default:
			if w.line == 0 {
				w.listExt(ext, n)
			} else {
				w.keepExt(ext, n)
			}
			gap = atomic.LoadUint64(w.c.arena.w(line, runGap))
			if atomic.LoadUint64(w.c.arena.w(line, runVersion)) != head[runVersion] {
				w.undo()
				continue
			}
		}
		if w.line != 0 {
			if gap > w.clock || uint32(atomic.LoadUint64(w.c.arena.w(w.line, runShape))) != w.gen {
				return readRestart
			}
		} else {
			w.alive = len(w.dst) - w.base
		}
		w.line, w.gen, w.off = line, uint32(head[runShape]), n
		w.leaf = head[runShape]&flagParent == 0
		w.depth += n
		w.thin()
		return readDone
	}
	return readAgain
}

// undo takes back what was read of a run that changed meanwhile.
func (w *walker) undo() {
	if w.line == 0 {
		w.dst = w.dst[:w.base]
		return
	}
	alive := w.dst[w.base : w.base+w.alive]
	for i := range alive {
		alive[i].depth = uint32(w.depth)
	}
}

// thin moves the slots that hold everything so far to the front.
func (w *walker) thin() {
	alive := w.dst[w.base : w.base+w.alive]
	n := 0
	for i := range alive {
		if int(alive[i].depth) == w.depth {
			alive[n], alive[i] = alive[i], alive[n]
			n++
		}
	}
	w.alive = n
}

// listInline lists the holders of a root, of which n blocks matched.
func (w *walker) listInline(head *[asm.RunHeaderWords]uint64, n int) {
	for k := range inlineHolders {
		e := head[runEntry0+k]
		s := entrySlot(e)
		depth := min(n, int(uint16(e>>entryPrefix)))
		// A slot that lost its entry and got another meanwhile is seen twice.
		if depth == 0 || k > 0 && entrySlot(head[runEntry0]) == s || k > 1 && entrySlot(head[runEntry0+1]) == s {
			continue
		}
		w.dst = append(w.dst, slotDepth{slot: s, depth: uint32(depth)})
	}
}

// keepInline adds to the slots still alive what they hold of a run's first n
// blocks.
func (w *walker) keepInline(head *[asm.RunHeaderWords]uint64, n int) {
	alive := w.dst[w.base : w.base+w.alive]
	for i := range alive {
		d := 0
		for k := range inlineHolders {
			if e := head[runEntry0+k]; entrySlot(e) == alive[i].slot {
				d = min(n, int(uint16(e>>entryPrefix)))
				break
			}
		}
		alive[i].depth = uint32(w.depth + d)
	}
}

// extTable is the table of a holder block.
type extTable struct {
	bits, entries []uint64
}

func (w *walker) extTable(ext uint32) extTable {
	g := extShapeOf(atomic.LoadUint64(w.c.arena.w(ext, extGeometry)))
	all := w.c.arena.words(ext, extBits, g.width+g.table)
	return extTable{bits: all[:g.width], entries: all[g.width:]}
}

// listExt lists the holders of a root with an external block: bits first, then
// entries, so that a slot going from one to the other is seen at least once.
func (w *walker) listExt(ext uint32, n int) {
	t := w.extTable(ext)
	moves := w.c.arena.w(ext, extMoves)
	before := uint32(atomic.LoadUint64(moves))
	for i := range t.bits {
		for m := atomic.LoadUint64(&t.bits[i]); m != 0; m &= m - 1 {
			s := slot(i*64 + bits.TrailingZeros64(m))
			w.dst = append(w.dst, slotDepth{slot: s, depth: uint32(n)})
		}
	}
	byBit := len(w.dst)
	if hook := w.c.testHookLookup; hook != nil {
		hook()
	}
	for i := range t.entries {
		e := atomic.LoadUint64(&t.entries[i])
		depth := min(n, int(uint16(e>>entryPrefix)))
		if depth == 0 || int(entrySlot(e)) < len(t.bits)*64 && w.listed(entrySlot(e), byBit) {
			continue
		}
		w.dst = append(w.dst, slotDepth{slot: entrySlot(e), depth: uint32(depth)})
	}
	if uint32(atomic.LoadUint64(moves)) != before {
		w.dedupe()
	}
}

// listed reports whether s is among the slots listed by bit, which ascend.
func (w *walker) listed(s slot, byBit int) bool {
	_, ok := slices.BinarySearchFunc(w.dst[w.base:byBit], s, func(d slotDepth, s slot) int {
		return int(d.slot) - int(s)
	})
	return ok
}

// dedupe takes out slots listed twice because they moved meanwhile.
func (w *walker) dedupe() {
	all := w.dst[w.base:]
	slices.SortFunc(all, func(a, b slotDepth) int { return int(a.slot) - int(b.slot) })
	all = slices.CompactFunc(all, func(a, b slotDepth) bool { return a.slot == b.slot })
	w.dst = w.dst[:w.base+len(all)]
}

// keepExt adds to the slots still alive what they hold of a run's first n blocks.
func (w *walker) keepExt(ext uint32, n int) {
	t := w.extTable(ext)
	alive := w.dst[w.base : w.base+w.alive]
	for i := range alive {
		alive[i].depth = uint32(w.depth + t.depth(alive[i].slot, n))
	}
}

// depth is how many of a run's first n blocks s holds.
func (t *extTable) depth(s slot, n int) int {
	if k := int(s) / 64; k < len(t.bits) && atomic.LoadUint64(&t.bits[k])>>(s%64)&1 != 0 {
		return n
	}
	i := extHome(s, len(t.entries))
	for range t.entries {
		e := atomic.LoadUint64(&t.entries[i])
		if entrySlot(e) == s {
			return min(n, int(uint16(e>>entryPrefix)))
		}
		if e == 0 {
			return 0
		}
		if i++; i == len(t.entries) {
			i = 0
		}
	}
	return 0
}
