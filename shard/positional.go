// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"cmp"
	"slices"
	"sync"

	"kindex/internal/kv"
)

// Hop before: Shard, with tiers and copies turned into slots. Hop after: none,
// this is the end of the write path; lookups start here from Shard.Lookup.

// maxPositions bounds the entries of a positional core: handles are 32-bit.
const maxPositions = 1<<32 - 1

// positionalCore is the index as a tree of single positions, each an entry
// with the set of slots that hold it, found by (entry above, content hash).
// It spends an entry and a map slot a block where the chain core spends 16
// bytes, and owes nothing to the chain core's structure: an independent second
// answer, and the one to fall back on.
//
// Concurrency: as core says; mutators hold mu for writing, lookup for reading.
// The writer's own reads need no lock, since nobody else writes.
type positionalCore struct {
	mu          sync.RWMutex
	entries     []posEntry
	free        []uint32 // entries to use again
	edges       map[posEdge]uint32
	roots       map[kv.Namespace]uint32
	slots       []*posSlot
	heldEntries uint64 // entries that some slot holds
	walkGen     uint32 // of posEntry.seen

	bound uint64 // bytes, as taken reckons them; 0: none
	tight bool
}

// posEntry is one position, or the root of one namespace's tree (which nobody
// holds). It lives while a slot holds it or a child stands on it.
type posEntry struct {
	ns       kv.Namespace
	content  kv.ContentHash
	parent   uint32 // 0: a root
	children uint32
	seen     uint32 // walk generation that visited it
	set      slotSet
}

// posEdge leads from an entry to its child.
type posEdge struct {
	parent  uint32
	content kv.ContentHash
}

// posSlot is one slot's side: which entry it holds by which engine hash.
type posSlot struct {
	by map[kv.EngineHash]uint32
	// twins counts, for entries held by several engine hashes, those beyond
	// the first. Nearly always empty.
	twins map[uint32]uint32
	n     uint64 // entries held
}

var _ core = (*positionalCore)(nil)

// newPositionalCore returns an empty positional core. It lives on the Go heap, so
// that Options.ArenaBytes bounds it by what taken reckons.
func newPositionalCore(o Options) *positionalCore {
	return &positionalCore{
		bound:   o.ArenaBytes,
		entries: make([]posEntry, 1),
		edges:   make(map[posEdge]uint32),
		roots:   make(map[kv.Namespace]uint32),
	}
}

func (c *positionalCore) open(s slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.slots) <= int(s) {
		c.slots = append(c.slots, nil)
	}
	c.slots[s] = &posSlot{by: make(map[kv.EngineHash]uint32)}
}

func (c *positionalCore) close(s slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.empty(s)
	c.slots[s] = nil
}

func (c *positionalCore) expect([]kv.EngineHash) {}

func (c *positionalCore) find(s slot, e kv.EngineHash) pos { return pos(c.slots[s].by[e]) }

func (c *positionalCore) namespace(p pos) kv.Namespace { return c.entries[p].ns }

func (c *positionalCore) store(s slot, ns kv.Namespace, at pos, engines []kv.EngineHash, contents []kv.ContentHash, held []uint64, moved []kv.EngineHash) ([]kv.EngineHash, error) {
	if c.refuses() || uint64(len(c.entries))+uint64(len(engines))+1 > maxPositions {
		if there := c.follow(ns, at, contents); len(there) < len(contents) {
			return c.refuse(s, engines, there, moved), ErrArenaFull
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cur := uint32(at)
	if at == 0 {
		cur = c.root(ns)
	}
	for i, e := range engines {
		cur = c.child(cur, contents[i])
		was, movedOne := c.hold(s, cur, e)
		if movedOne {
			moved = append(moved, e)
		}
		if was {
			held[i/64] |= 1 << (i % 64)
		} else {
			held[i/64] &^= 1 << (i % 64)
		}
	}
	return moved, nil
}

func (c *positionalCore) adopt(s slot, p pos, e kv.EngineHash) (held, moved bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	held, moved = c.hold(s, uint32(p), e)
	return held, moved, nil
}

func (c *positionalCore) remove(s slot, engines, unknown []kv.EngineHash) []kv.EngineHash {
	c.mu.Lock()
	defer c.mu.Unlock()
	sl := c.slots[s]
	for _, e := range engines {
		id, ok := sl.by[e]
		if !ok {
			unknown = append(unknown, e)
			continue
		}
		delete(sl.by, e)
		c.release(s, id)
	}
	return unknown
}

func (c *positionalCore) clear(s slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.empty(s)
}

func (c *positionalCore) clone(from, to slot) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	src, dst := c.slots[from], c.slots[to]
	for e, id := range src.by {
		dst.by[e] = id
		c.entries[id].set.add(to)
	}
	for id, n := range src.twins {
		if dst.twins == nil {
			dst.twins = make(map[uint32]uint32, len(src.twins))
		}
		dst.twins[id] = n
	}
	dst.n = src.n
	return nil
}

func (c *positionalCore) held(s slot) uint64 { return c.slots[s].n }

// lookup narrows the candidates level by level. dst holds, from base on, first
// the slots that hold everything so far, then those that fell out, each with
// the depth it reached.
func (c *positionalCore) lookup(ns kv.Namespace, chain []kv.ContentHash, dst []slotDepth) []slotDepth {
	if len(chain) == 0 {
		return dst
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	cur, ok := c.roots[ns]
	if !ok {
		return dst
	}
	base := len(dst)
	alive := 0
	for i, content := range chain {
		cur, ok = c.edges[posEdge{cur, content}]
		if !ok {
			break
		}
		set := &c.entries[cur].set
		if i == 0 {
			dst = set.appendTo(dst)
			alive = len(dst) - base
			continue
		}
		for j := base; j < base+alive; {
			if set.has(dst[j].slot) {
				dst[j].depth++
				j++
				continue
			}
			alive--
			dst[j], dst[base+alive] = dst[base+alive], dst[j]
		}
		if alive == 0 {
			break
		}
	}
	return dst
}

// walk sorts what s holds by entry and engine hash, so that it visits in the
// same order whenever the history was the same.
func (c *positionalCore) walk(s slot, fn func(*coreNode) bool) {
	type holding struct {
		id     uint32
		engine kv.EngineHash
	}
	sl := c.slots[s]
	all := make([]holding, 0, len(sl.by))
	for e, id := range sl.by {
		all = append(all, holding{id, e})
	}
	slices.SortFunc(all, func(a, b holding) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.engine, b.engine))
	})
	c.walkGen++
	if c.walkGen == 0 { // wrapped: forget all marks
		for i := range c.entries {
			c.entries[i].seen = 0
		}
		c.walkGen = 1
	}
	engines := make([]kv.EngineHash, 0, len(all))
	for _, h := range all {
		engines = append(engines, h.engine)
	}
	// from returns what s holds entry id by.
	from := func(id uint32) []kv.EngineHash {
		lo, _ := slices.BinarySearchFunc(all, id, func(h holding, id uint32) int { return cmp.Compare(h.id, id) })
		hi := lo
		for hi < len(all) && all[hi].id == id {
			hi++
		}
		return engines[lo:hi:hi]
	}
	var path []uint32
	for _, h := range all {
		path = path[:0]
		for id := h.id; c.entries[id].seen != c.walkGen && c.entries[id].parent != 0; id = c.entries[id].parent {
			path = append(path, id)
		}
		for _, id := range slices.Backward(path) {
			en := &c.entries[id]
			en.seen = c.walkGen
			n := coreNode{id: pos(id), parent: pos(en.parent), ns: en.ns, content: en.content, engines: from(id)}
			if c.entries[en.parent].parent == 0 {
				n.parent = 0
			}
			if !fn(&n) {
				return
			}
		}
	}
}

func (c *positionalCore) stats(st *Stats) {
	st.Blocks = c.heldEntries
	live := uint64(len(c.entries) - len(c.free))
	st.Bytes[PurposeRuns] += live * entryBytes
	st.Bytes[PurposeFree] += uint64(cap(c.entries))*entryBytes - live*entryBytes + uint64(cap(c.free))*4
	st.Bytes[PurposeEdges] += mapBytes(len(c.edges), edgeBytes+4) + mapBytes(len(c.roots), 12)
	for i := range c.entries {
		st.Bytes[PurposeHolders] += c.entries[i].set.bytes()
	}
	for _, sl := range c.slots {
		if sl != nil {
			st.Bytes[PurposeDictionary] += mapBytes(len(sl.by), 12) + mapBytes(len(sl.twins), 8)
		}
	}
}

// Sizes in bytes of the structures, checked by a test.
const (
	entryBytes = 56 // posEntry
	edgeBytes  = 16 // posEdge
	moreBytes  = 48 // slotMore
)

// mapBytes estimates a Go map of n entries of size bytes each: groups of eight
// with a control byte each, between 7/16 and 7/8 full.
func mapBytes(n int, size uint64) uint64 {
	if n == 0 {
		return 0
	}
	return uint64(n) * (size + 1) * 3 / 2
}

// root returns the entry of ns's root, new if need be.
func (c *positionalCore) root(ns kv.Namespace) uint32 {
	id, ok := c.roots[ns]
	if !ok {
		id = c.alloc()
		c.entries[id].ns = ns
		c.roots[ns] = id
	}
	return id
}

// child returns the entry below parent for content, new if need be.
func (c *positionalCore) child(parent uint32, content kv.ContentHash) uint32 {
	key := posEdge{parent, content}
	id, ok := c.edges[key]
	if ok {
		return id
	}
	id = c.alloc()
	en := &c.entries[id]
	en.ns, en.content, en.parent = c.entries[parent].ns, content, parent
	c.entries[parent].children++
	c.edges[key] = id
	return id
}

func (c *positionalCore) alloc() uint32 {
	if n := len(c.free); n > 0 {
		id := c.free[n-1]
		c.free = c.free[:n-1]
		return id
	}
	c.entries = append(c.entries, posEntry{})
	return uint32(len(c.entries) - 1)
}

// hold makes s hold entry id by e. The old entry is let go only after the new
// one is held: the other order could free the entry being stood on.
func (c *positionalCore) hold(s slot, id uint32, e kv.EngineHash) (was, moved bool) {
	sl := c.slots[s]
	old, mapped := sl.by[e]
	if mapped && old == id {
		return true, false
	}
	sl.by[e] = id
	en := &c.entries[id]
	if en.set.add(s) {
		sl.n++
		if en.set.n == 1 {
			c.heldEntries++
		}
	} else {
		if sl.twins == nil {
			sl.twins = make(map[uint32]uint32)
		}
		sl.twins[id]++
	}
	if mapped {
		c.release(s, old)
	}
	return false, mapped
}

// release ends one of the mappings by which s holds entry id.
func (c *positionalCore) release(s slot, id uint32) {
	sl := c.slots[s]
	if n := sl.twins[id]; n > 0 {
		if n == 1 {
			delete(sl.twins, id)
		} else {
			sl.twins[id] = n - 1
		}
		return
	}
	sl.n--
	en := &c.entries[id]
	en.set.remove(s)
	if en.set.n == 0 {
		c.heldEntries--
		c.prune(id)
	}
}

// prune frees entry id, and those above it, while nobody needs them.
func (c *positionalCore) prune(id uint32) {
	for {
		en := &c.entries[id]
		if en.set.n > 0 || en.children > 0 {
			return
		}
		parent := en.parent
		if parent == 0 {
			delete(c.roots, en.ns)
		} else {
			delete(c.edges, posEdge{parent, en.content})
			c.entries[parent].children--
		}
		*en = posEntry{}
		c.free = append(c.free, id)
		if parent == 0 {
			return
		}
		id = parent
	}
}

// empty lets go of all that s holds.
func (c *positionalCore) empty(s slot) {
	sl := c.slots[s]
	for _, id := range sl.by {
		c.release(s, id)
	}
	*sl = posSlot{by: make(map[kv.EngineHash]uint32)}
}

// check compares every redundant piece of the structure with its source.
func (c *positionalCore) check() {
	must := func(ok bool, what string) {
		if !ok {
			panic("positional core: " + what)
		}
	}
	free := make(map[uint32]bool, len(c.free))
	for _, id := range c.free {
		must(!free[id], "entry freed twice")
		free[id] = true
	}
	children := make(map[uint32]uint32)
	var live, held, roots uint64
	for i := 1; i < len(c.entries); i++ {
		id, en := uint32(i), &c.entries[i]
		if free[id] {
			must(en.set.n == 0 && en.children == 0, "freed entry in use")
			continue
		}
		en.set.check()
		if en.set.n > 0 {
			held++
		}
		if en.parent == 0 {
			roots++
			must(c.roots[en.ns] == id, "root not found by its namespace")
			must(en.set.n == 0, "root held")
			must(en.children > 0, "root without children")
			continue
		}
		live++
		must(en.set.n > 0 || en.children > 0, "entry that nobody needs")
		must(!free[en.parent], "entry under a freed one")
		must(c.entries[en.parent].ns == en.ns, "entry in another namespace than its parent")
		must(c.edges[posEdge{en.parent, en.content}] == id, "entry not found from above")
		children[en.parent]++
	}
	must(held == c.heldEntries, "count of held entries")
	must(live == uint64(len(c.edges)), "edges that lead nowhere")
	must(roots == uint64(len(c.roots)), "roots that lead nowhere")
	for i := 1; i < len(c.entries); i++ {
		must(c.entries[i].children == children[uint32(i)], "count of children")
	}
	c.checkSlots(must)
}

// checkSlots compares each slot's map with the entries' sets.
func (c *positionalCore) checkSlots(must func(bool, string)) {
	memberships := 0
	for s, sl := range c.slots {
		if sl == nil {
			continue
		}
		by := make(map[uint32]uint32)
		for _, id := range sl.by {
			by[id]++
		}
		must(uint64(len(by)) == sl.n, "count of a slot's entries")
		twins := 0
		for id, n := range by {
			must(c.entries[id].set.has(slot(s)), "entry does not know its slot")
			if n > 1 {
				twins++
				must(sl.twins[id] == n-1, "count of twins")
			}
		}
		must(twins == len(sl.twins), "twins of entries not held")
		memberships += len(by)
	}
	for i := range c.entries {
		memberships -= int(c.entries[i].set.n)
	}
	must(memberships == 0, "entry with slots that do not hold it")
}
