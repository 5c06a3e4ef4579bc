// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"slices"

	"kindex/internal/kv"
)

// naiveCore is the core contract in plain maps, block by block and in the
// order of the words that state it: what [chainCore] is compared with.
//
// Concurrency: none.
type naiveCore struct {
	roots map[kv.Namespace]map[kv.ContentHash]*naiveNode
	slots map[slot]map[kv.EngineHash]*naiveNode
	nodes map[pos]*naiveNode
	last  pos
}

type naiveNode struct {
	id       pos
	ns       kv.Namespace
	content  kv.ContentHash
	parent   *naiveNode
	children map[kv.ContentHash]*naiveNode
	held     map[slot]map[kv.EngineHash]bool
}

func newNaiveCore() *naiveCore {
	return &naiveCore{
		roots: map[kv.Namespace]map[kv.ContentHash]*naiveNode{},
		slots: map[slot]map[kv.EngineHash]*naiveNode{},
		nodes: map[pos]*naiveNode{},
	}
}

func (c *naiveCore) open(s slot) {
	if s == 0 || c.slots[s] != nil {
		panic("BUG: shard: open of a slot in use")
	}
	c.slots[s] = map[kv.EngineHash]*naiveNode{}
}

func (c *naiveCore) close(s slot) {
	c.clear(s)
	delete(c.slots, s)
}

func (c *naiveCore) expect([]kv.EngineHash) {}

func (c *naiveCore) find(s slot, e kv.EngineHash) pos {
	if n := c.slots[s][e]; n != nil {
		return n.id
	}
	return 0
}

func (c *naiveCore) namespace(p pos) kv.Namespace { return c.nodes[p].ns }

// child returns the node below at, or the root of ns, made when it is missing.
func (c *naiveCore) child(at *naiveNode, ns kv.Namespace, content kv.ContentHash) *naiveNode {
	m := c.roots[ns]
	if at != nil {
		m, ns = at.children, at.ns
	} else if m == nil {
		m = map[kv.ContentHash]*naiveNode{}
		c.roots[ns] = m
	}
	n := m[content]
	if n == nil {
		c.last++
		n = &naiveNode{
			id: c.last, ns: ns, content: content, parent: at,
			children: map[kv.ContentHash]*naiveNode{}, held: map[slot]map[kv.EngineHash]bool{},
		}
		m[content] = n
		c.nodes[n.id] = n
	}
	return n
}

// prune takes away nodes that nobody holds and nothing hangs below.
func (c *naiveCore) prune(n *naiveNode) {
	for n != nil && c.nodes[n.id] == n && len(n.held) == 0 && len(n.children) == 0 {
		delete(c.nodes, n.id)
		if n.parent == nil {
			delete(c.roots[n.ns], n.content)
			if len(c.roots[n.ns]) == 0 {
				delete(c.roots, n.ns)
			}
		} else {
			delete(n.parent.children, n.content)
		}
		n = n.parent
	}
}

func (c *naiveCore) drop(s slot, e kv.EngineHash) *naiveNode {
	n := c.slots[s][e]
	if n == nil {
		return nil
	}
	delete(c.slots[s], e)
	delete(n.held[s], e)
	if len(n.held[s]) == 0 {
		delete(n.held, s)
	}
	return n
}

// hold returns the node that s held by e before. The caller prunes it once the
// whole event is applied.
func (c *naiveCore) hold(s slot, n *naiveNode, e kv.EngineHash) (old *naiveNode) {
	old = c.slots[s][e]
	if old == n {
		return old
	}
	c.drop(s, e)
	if n.held[s] == nil {
		n.held[s] = map[kv.EngineHash]bool{}
	}
	n.held[s][e] = true
	c.slots[s][e] = n
	return old
}

func (c *naiveCore) store(s slot, ns kv.Namespace, at pos, engines []kv.EngineHash, contents []kv.ContentHash, held []uint64, moved []kv.EngineHash) ([]kv.EngineHash, error) {
	n := c.nodes[at]
	var olds []*naiveNode
	path := make([]*naiveNode, 0, len(contents))
	for _, content := range contents {
		n = c.child(n, ns, content)
		path = append(path, n)
	}
	for i, e := range engines {
		held[i/64] &^= 1 << (i % 64)
		old := c.hold(s, path[i], e)
		switch old {
		case nil:
		case path[i]:
			held[i/64] |= 1 << (i % 64)
		default:
			moved = append(moved, e)
			olds = append(olds, old)
		}
	}
	for _, old := range olds {
		c.prune(old)
	}
	return moved, nil
}

func (*naiveCore) tighten(bool) {}

func (*naiveCore) taken() (used, bound uint64) { return 0, 0 }
func (*naiveCore) pressed() uint64             { return 0 }

func (c *naiveCore) adopt(s slot, p pos, e kv.EngineHash) (held, moved bool, err error) {
	n := c.nodes[p]
	old := c.hold(s, n, e)
	if old != nil && old != n {
		c.prune(old)
	}
	return old == n, old != nil && old != n, nil
}

func (c *naiveCore) remove(s slot, engines []kv.EngineHash, unknown []kv.EngineHash) []kv.EngineHash {
	for _, e := range engines {
		n := c.drop(s, e)
		if n == nil {
			unknown = append(unknown, e)
			continue
		}
		c.prune(n)
	}
	return unknown
}

func (c *naiveCore) clear(s slot) {
	for e := range c.slots[s] {
		c.prune(c.drop(s, e))
	}
}

func (c *naiveCore) clone(from, to slot) error {
	for e, n := range c.slots[from] {
		c.hold(to, n, e)
	}
	return nil
}

func (c *naiveCore) held(s slot) uint64 {
	seen := map[*naiveNode]bool{}
	for _, n := range c.slots[s] {
		seen[n] = true
	}
	return uint64(len(seen))
}

func (c *naiveCore) walk(s slot, fn func(*coreNode) bool) {
	need := map[*naiveNode]bool{}
	for _, n := range c.slots[s] {
		for ; n != nil && !need[n]; n = n.parent {
			need[n] = true
		}
	}
	done := map[*naiveNode]bool{}
	var visit func(n *naiveNode) bool
	visit = func(n *naiveNode) bool {
		if n == nil || done[n] {
			return true
		}
		if !visit(n.parent) {
			return false
		}
		done[n] = true
		out := coreNode{id: n.id, ns: n.ns, content: n.content}
		if n.parent != nil {
			out.parent = n.parent.id
		}
		for e := range n.held[s] {
			out.engines = append(out.engines, e)
		}
		slices.Sort(out.engines)
		return fn(&out)
	}
	for n := range need {
		if !visit(n) {
			return
		}
	}
}

func (c *naiveCore) lookup(ns kv.Namespace, chain []kv.ContentHash, dst []slotDepth) []slotDepth {
	base := len(dst)
	m := c.roots[ns]
	for i, content := range chain {
		n := m[content]
		if n == nil {
			break
		}
		if i == 0 {
			for s := range n.held {
				dst = append(dst, slotDepth{slot: s, depth: 1})
			}
		}
		for j := range dst[base:] {
			d := &dst[base+j]
			if d.depth == uint32(i) && n.held[d.slot] != nil {
				d.depth++
			}
		}
		m = n.children
	}
	return dst
}

func (c *naiveCore) stats(st *Stats) {
	st.Blocks = uint64(len(c.nodes))
}

func (c *naiveCore) check() {
	for s, m := range c.slots {
		for e, n := range m {
			if !n.held[s][e] || c.nodes[n.id] != n {
				panic("BUG: shard: naive core disagrees with itself")
			}
		}
	}
}
