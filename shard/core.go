// SPDX-License-Identifier: Apache-2.0

package shard

import "kindex/internal/kv"

// slot is one set of memberships within a core: a holder's copies in one tier,
// or the union of several tiers. Slot 0 is never given out.
type slot uint16

// pos is a core's own handle of one position. 0 is no position. A handle is
// valid until the core's next mutating call, except that the position a store
// began at and positions some slot holds stay valid through a store.
type pos uint64

// slotDepth is one slot's answer to a lookup.
type slotDepth struct {
	slot  slot
	depth uint32 // leading blocks of the chain that slot holds, at least 1
}

// coreNode is one position in a core's walk of one slot.
type coreNode struct {
	id, parent pos // parent 0: a root
	ns         kv.Namespace
	content    kv.ContentHash
	engines    []kv.EngineHash // by which the slot holds it; empty: a hole; valid during the call
}

// core is an index of slots: per slot a map from engine hash to position, and
// lookups over all of them. It knows nothing of tiers, copies, orphans or
// namespaces' meaning: [Shard] keeps those.
//
// Concurrency: lookup is safe at any time from any goroutine against one writer.
// Every other method belongs to the writer.
type core interface {
	// open makes s usable, empty. s was never open, or was closed.
	open(s slot)
	// close clears s for good.
	close(s slot)

	// tighten says whether stores and adoptions that want memory are refused from
	// now on as if there were none left.
	tighten(on bool)
	// taken returns the bytes that count against the bound, and the bound; 0 where
	// there is none. Cost: none worth naming.
	taken() (used, bound uint64)
	// pressed is [Sized.Pressed].
	pressed() uint64
	// expect says that a store or removal of engines is about to come. It changes
	// nothing.
	expect(engines []kv.EngineHash)
	// find returns the position that s holds by e, or 0.
	find(s slot, e kv.EngineHash) pos
	// namespace returns the namespace whose tree p lies in.
	namespace(p pos) kv.Namespace

	// store makes s hold the chain of contents below at (0: at ns's root), block
	// i by engines[i]. If s maps an engine hash to another position, that
	// mapping goes first (the latest store wins; of equal hashes within one call
	// the last wins), and the hash is appended to moved. Bit i of held is set
	// when s already held block i by engines[i] at that very position, and is
	// cleared otherwise. A hash that stands at two places of one call has moved:
	// it is appended to moved at least once, and its bits in held mean nothing.
	//
	// Shape: len(engines) == len(contents) >= 1; len(held)*64 >= len(engines).
	// Errors: ErrArenaFull, with nothing stored; the hashes that s maps to another
	// position than the call does (or perhaps to the same) are gone all the same,
	// and appended to moved.
	store(s slot, ns kv.Namespace, at pos, engines []kv.EngineHash, contents []kv.ContentHash, held []uint64, moved []kv.EngineHash) ([]kv.EngineHash, error)
	// adopt makes s hold the existing position p by e, under store's rules; moved
	// says that the hash went from another position.
	adopt(s slot, p pos, e kv.EngineHash) (held, moved bool, err error)

	// remove ends s's mapping of each engine hash, in order, and appends those
	// that s lacked to unknown.
	remove(s slot, engines []kv.EngineHash, unknown []kv.EngineHash) []kv.EngineHash
	// clear empties s.
	clear(s slot)
	// clone makes to, which is open and empty, hold what from holds.
	// Errors: ErrArenaFull, with to left empty.
	clone(from, to slot) error

	// held returns the number of positions that s holds.
	held(s slot) uint64
	// walk visits the positions that s holds and the holes above them, parents
	// first, until fn returns false.
	walk(s slot, fn func(*coreNode) bool)

	// lookup appends one entry for each slot that holds at least chain[0].
	lookup(ns kv.Namespace, chain []kv.ContentHash, dst []slotDepth) []slotDepth

	// stats fills in what the core knows of Blocks, Runs and Bytes.
	stats(st *Stats)
	// check panics when an invariant of the structure is broken. Tests only.
	check()
}
