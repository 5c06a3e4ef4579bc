// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"sync"

	"kindex/internal/kv"
)

// Reference is the contract of [Index] in plain maps, one lock around all,
// written for reading. It is the oracle of every other index.
//
// Cost: a lookup visits every holder.
type Reference struct {
	mu      sync.RWMutex
	opts    Options
	roots   map[kv.Namespace]*refNode
	holders map[Holder]*refHolder
	next    Holder
	nextID  uint64
}

// refNode is one position.
type refNode struct {
	id       uint64
	ns       kv.Namespace
	parent   *refNode // nil at a root, which is no position itself
	content  kv.ContentHash
	children map[kv.ContentHash]*refNode
	holds    int // engine hashes of all holders that map here
}

// refPlace is where a copy of an engine hash lies.
type refPlace struct {
	tier  kv.Tier
	group uint8
}

// refBlock is one engine hash that a holder has: its position, and how many
// copies lie where. It goes when its last copy goes.
type refBlock struct {
	node   *refNode
	copies map[refPlace]uint32
}

// refHolder is the state of one holder.
type refHolder struct {
	model  kv.ModelKey
	blocks map[kv.EngineHash]*refBlock
	held   map[*refNode]map[kv.EngineHash]*refBlock
	room   []*refOrphan // in order of arrival
	stats  HolderStats
}

// refOrphan is a store that waits for an engine hash.
type refOrphan struct {
	waitsFor kv.EngineHash
	store    Store
	out      []bool // blocks taken out by a removal
	bytes    uint64
	bare     bool // its tokens are gone: it cannot be hashed again
}

// NewReference returns an empty reference index.
func NewReference(o Options) *Reference {
	o.setDefaults()
	return &Reference{opts: o, roots: map[kv.Namespace]*refNode{}, holders: map[Holder]*refHolder{}, next: o.FirstHolder}
}

// AddHolder implements [Index].
func (r *Reference) AddHolder(m kv.ModelKey) (Holder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.holders) >= MaxHolders {
		return 0, ErrHolders
	}
	id := r.next
	r.next += Holder(r.opts.HolderStride)
	r.holders[id] = &refHolder{
		model:  m,
		blocks: map[kv.EngineHash]*refBlock{},
		held:   map[*refNode]map[kv.EngineHash]*refBlock{},
	}
	return id, nil
}

// Store implements [Index].
func (r *Reference) Store(h Holder, st *Store) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rh := r.holders[h]
	if rh == nil {
		return ErrUnknownHolder
	}
	if err := st.valid(); err != nil {
		return err
	}
	if st.placeholder() {
		for _, e := range st.Engines {
			r.storePlaceholder(rh, st, e)
		}
		return nil
	}
	if st.HasParent && rh.blocks[st.Parent] == nil {
		rh.wait(r.opts, &refOrphan{waitsFor: st.Parent, store: st.clone(), out: make([]bool, len(st.Engines)), bytes: st.bytes()})
		return nil
	}
	r.settle(rh, r.apply(rh, st, make([]bool, len(st.Engines))))
	return nil
}

// storePlaceholder adds a copy of a block told before, waits with a block that
// waits, or counts a hash nobody told.
func (r *Reference) storePlaceholder(rh *refHolder, st *Store, e kv.EngineHash) {
	switch {
	case rh.blocks[e] != nil:
		rh.blocks[e].copies[refPlace{st.Tier, st.Group}]++
	case rh.waiting(e):
		one := Store{Tier: st.Tier, Group: st.Group, Engines: []kv.EngineHash{e}}
		rh.wait(r.opts, &refOrphan{waitsFor: e, store: one, out: make([]bool, 1), bytes: one.bytes()})
	default:
		rh.stats.StoreUnknown++
	}
}

// apply stores st's blocks but those taken out, and returns the engine hashes
// now stored. Its parent, if any, is held.
func (r *Reference) apply(rh *refHolder, st *Store, out []bool) []kv.EngineHash {
	at := r.root(st.Namespace)
	contents := st.Contents
	if st.HasParent {
		at = rh.blocks[st.Parent].node
		if at.ns != st.Namespace {
			if st.Stated {
				rh.stats.Contradictions++
			}
			if st.Blocks.Len() > 0 {
				contents = st.Blocks.AppendHashes(nil, rh.model.Seed(at.ns))
			}
		}
	}
	var stored []kv.EngineHash
	var left []*refNode
	for i, e := range st.Engines {
		at = r.child(at, contents[i])
		if out[i] {
			left = append(left, at)
			continue
		}
		if b := rh.blocks[e]; b != nil && b.node != at {
			rh.stats.Moved++
			rh.forget(e)
			left = append(left, b.node)
		}
		if rh.blocks[e] == nil {
			rh.keep(e, at)
		}
		rh.blocks[e].copies[refPlace{st.Tier, st.Group}]++
		stored = append(stored, e)
	}
	for _, n := range left {
		r.prune(n)
	}
	return stored
}

// settle applies the orphans of stored, in the order they came, then theirs.
func (r *Reference) settle(rh *refHolder, stored []kv.EngineHash) {
	for len(stored) > 0 {
		e := stored[0]
		stored = stored[1:]
		var now, later []*refOrphan
		for _, o := range rh.room {
			if o.waitsFor == e {
				now = append(now, o)
				rh.leaves(o)
			} else {
				later = append(later, o)
			}
		}
		rh.room = later
		for _, o := range now {
			if o.store.placeholder() {
				rh.blocks[e].copies[refPlace{o.store.Tier, o.store.Group}]++
				continue
			}
			if o.bare && rh.blocks[e].node.ns != o.store.Namespace {
				rh.stats.OrphansDropped += o.blocks()
				continue
			}
			stored = append(stored, r.apply(rh, &o.store, o.out)...)
		}
	}
}

// wait puts o into the room and drops the oldest past the bounds.
func (rh *refHolder) wait(opts Options, o *refOrphan) {
	if uint64(len(o.out)) > opts.MaxOrphanBlocks || o.bytes > opts.MaxOrphanBytes {
		rh.stats.OrphansDropped += uint64(len(o.out))
		return
	}
	rh.room = append(rh.room, o)
	rh.stats.Orphans += o.blocks()
	rh.stats.OrphanBytes += o.bytes
	for rh.stats.Orphans > opts.MaxOrphanBlocks || rh.stats.OrphanBytes > opts.MaxOrphanBytes {
		oldest := rh.room[0]
		rh.room = rh.room[1:]
		rh.leaves(oldest)
		rh.stats.OrphansDropped += oldest.blocks()
	}
}

// leaves takes o, which left the room, out of the totals.
func (rh *refHolder) leaves(o *refOrphan) {
	rh.stats.Orphans -= o.blocks()
	rh.stats.OrphanBytes -= o.bytes
}

// blocks counts o's waiting blocks.
func (o *refOrphan) blocks() (n uint64) {
	for _, out := range o.out {
		if !out {
			n++
		}
	}
	return n
}

// waiting reports whether a block named e waits for a parent.
func (rh *refHolder) waiting(e kv.EngineHash) bool {
	for _, o := range rh.room {
		for i, w := range o.store.Engines {
			if w == e && !o.out[i] && !o.store.placeholder() {
				return true
			}
		}
	}
	return false
}

// Remove implements [Index].
func (r *Reference) Remove(h Holder, rm *Remove) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rh := r.holders[h]
	if rh == nil {
		return ErrUnknownHolder
	}
	if err := rm.valid(); err != nil {
		return err
	}
	at := refPlace{rm.Tier, rm.Group}
	for _, e := range rm.Engines {
		b := rh.blocks[e]
		switch {
		case rh.takeOut(at, e):
		case b == nil || b.copies[at] == 0:
			rh.stats.RemoveUnknown++
		case b.copies[at] > 1:
			b.copies[at]--
		default:
			delete(b.copies, at)
			if len(b.copies) == 0 {
				rh.forget(e)
				r.prune(b.node)
			}
		}
	}
	return nil
}

// takeOut takes the oldest waiting copy of e in that place out of the room.
func (rh *refHolder) takeOut(at refPlace, engine kv.EngineHash) bool {
	for n, o := range rh.room {
		if o.store.Tier != at.tier || o.store.Group != at.group {
			continue
		}
		for i, e := range o.store.Engines {
			if e != engine || o.out[i] {
				continue
			}
			o.out[i] = true
			rh.stats.Orphans--
			if o.blocks() == 0 {
				rh.leaves(o)
				rh.room = append(rh.room[:n:n], rh.room[n+1:]...)
			}
			return true
		}
	}
	return false
}

// keep maps e to n.
func (rh *refHolder) keep(e kv.EngineHash, n *refNode) {
	b := &refBlock{node: n, copies: map[refPlace]uint32{}}
	rh.blocks[e] = b
	if rh.held[n] == nil {
		rh.held[n] = map[kv.EngineHash]*refBlock{}
	}
	rh.held[n][e] = b
	n.holds++
}

// forget ends e's mapping and its copies in all tiers.
func (rh *refHolder) forget(e kv.EngineHash) {
	n := rh.blocks[e].node
	delete(rh.blocks, e)
	delete(rh.held[n], e)
	if len(rh.held[n]) == 0 {
		delete(rh.held, n)
	}
	n.holds--
}

// Clear implements [Index].
func (r *Reference) Clear(h Holder) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rh := r.holders[h]
	if rh == nil {
		return ErrUnknownHolder
	}
	r.clear(rh)
	return nil
}

func (r *Reference) clear(rh *refHolder) {
	for _, b := range rh.blocks {
		b.node.holds--
	}
	for _, b := range rh.blocks {
		r.prune(b.node)
	}
	clear(rh.blocks)
	clear(rh.held)
	rh.room = nil
	rh.stats.Orphans, rh.stats.OrphanBytes = 0, 0
}

// Drop implements [Index].
func (r *Reference) Drop(h Holder) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rh := r.holders[h]
	if rh == nil {
		return ErrUnknownHolder
	}
	r.clear(rh)
	delete(r.holders, h)
	return nil
}

// root returns the root of ns, which is above all positions.
func (r *Reference) root(ns kv.Namespace) *refNode {
	n := r.roots[ns]
	if n == nil {
		n = &refNode{ns: ns, children: map[kv.ContentHash]*refNode{}}
		r.roots[ns] = n
	}
	return n
}

func (r *Reference) child(n *refNode, c kv.ContentHash) *refNode {
	ch := n.children[c]
	if ch == nil {
		r.nextID++
		ch = &refNode{id: r.nextID, ns: n.ns, parent: n, content: c, children: map[kv.ContentHash]*refNode{}}
		n.children[c] = ch
	}
	return ch
}

// prune takes n and the positions above it out of the tree while nobody holds
// them and nothing hangs below.
func (r *Reference) prune(n *refNode) {
	for n != nil && n.holds == 0 && len(n.children) == 0 {
		if n.parent == nil {
			if r.roots[n.ns] == n {
				delete(r.roots, n.ns)
			}
			return
		}
		if n.parent.children[n.content] == n {
			delete(n.parent.children, n.content)
		}
		n = n.parent
	}
}

// Lookup implements [Index].
func (r *Reference) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var path []*refNode
	n := r.roots[ns]
	for _, c := range chain {
		if n == nil {
			break
		}
		if n = n.children[c]; n != nil {
			path = append(path, n)
		}
	}
	for h, rh := range r.holders {
		m := kv.Match{Holder: uint32(h)}
		m.Device = rh.depth(path, 0, kv.TierDevice)
		m.Host = rh.depth(path, m.Device, kv.TierHost)
		m.Any = rh.depth(path, m.Host, kv.TierDisk)
		if m.Any > 0 {
			dst = append(dst, m)
		}
	}
	return dst
}

// depth counts the leading positions of path that rh holds in tiers up to
// slowest; from of them it is known to hold.
func (rh *refHolder) depth(path []*refNode, from uint32, slowest kv.Tier) uint32 {
	for k := from; k < uint32(len(path)); k++ {
		if !rh.holds(path[k], slowest) {
			return k
		}
	}
	return uint32(len(path))
}

// holds reports whether rh has a copy of n in a tier up to slowest.
func (rh *refHolder) holds(n *refNode, slowest kv.Tier) bool {
	for _, b := range rh.held[n] {
		for at := range b.copies {
			if at.tier <= slowest {
				return true
			}
		}
	}
	return false
}

// Walk implements [Index].
func (r *Reference) Walk(h Holder, fn func(*Node) bool) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	rh := r.holders[h]
	if rh == nil {
		return ErrUnknownHolder
	}
	above := map[*refNode]bool{} // held positions and those above them
	for n := range rh.held {
		for ; n != nil && !above[n]; n = n.parent {
			above[n] = true
		}
	}
	for n := range above {
		if n.parent == nil && !r.walkBelow(rh, n, above, fn) {
			return nil
		}
	}
	return nil
}

// walkBelow visits the positions below n, parents first. Depth is bounded by
// the longest chain, so it keeps its own stack.
func (r *Reference) walkBelow(rh *refHolder, root *refNode, above map[*refNode]bool, fn func(*Node) bool) bool {
	stack := []*refNode{root}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n.parent != nil && !fn(rh.node(n)) {
			return false
		}
		for _, ch := range n.children {
			if above[ch] {
				stack = append(stack, ch)
			}
		}
	}
	return true
}

// node describes n as rh holds it.
func (rh *refHolder) node(n *refNode) *Node {
	out := &Node{ID: n.id, Parent: n.parent.id, Namespace: n.ns, Content: n.content}
	for e, b := range rh.held[n] {
		for at, count := range b.copies {
			out.Copies = append(out.Copies, Copy{Engine: e, Tier: at.tier, Group: at.group, Count: count})
		}
	}
	return out
}

// HolderStats implements [Index].
func (r *Reference) HolderStats(h Holder) (HolderStats, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	rh := r.holders[h]
	if rh == nil {
		return HolderStats{}, ErrUnknownHolder
	}
	st := rh.stats
	st.Memberships = uint64(len(rh.held))
	for _, b := range rh.blocks {
		for _, count := range b.copies {
			st.SecondCopies += uint64(count - 1)
		}
	}
	return st, nil
}

// Stats implements [Index]. Bytes are a rough estimate.
func (r *Reference) Stats() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	st := Stats{Holders: uint64(len(r.holders))}
	for _, rh := range r.holders {
		st.Memberships += uint64(len(rh.held))
		st.Bytes[PurposeStreams] += rh.stats.OrphanBytes + uint64(len(rh.blocks))*refBlockBytes
	}
	seen := map[*refNode]bool{}
	for _, rh := range r.holders {
		for n := range rh.held {
			seen[n] = true
		}
	}
	st.Blocks = uint64(len(seen))
	st.Bytes[PurposeRuns] = st.Blocks * refNodeBytes
	return st
}

// Rough sizes of one block and one node with their map entries, in bytes;
// chosen, not measured.
const (
	refBlockBytes = 512
	refNodeBytes  = 256
)

// Load returns the memberships and the holders of all r.
func (r *Reference) Load() (memberships, holders uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, rh := range r.holders {
		memberships += uint64(len(rh.held))
	}
	return memberships, uint64(len(r.holders))
}
