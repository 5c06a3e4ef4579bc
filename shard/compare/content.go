// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"fmt"
	"slices"

	"kindex/internal/kv"
	"kindex/shard"
)

// path names a position by a 64-bit hash over its namespace and the contents
// down to it: equal on both sides, whatever the indexes' own IDs. Positions by
// the million may be told apart by it (two collide at odds of 1 to 2^64), and
// the summary below multiplies no risk: a collision could only hide a fault.
type path uint64

func rootPath(ns kv.Namespace) path { return path(mix(0x6b69_6e64, uint64(ns))) }

func (p path) child(c kv.ContentHash) path { return path(mix(uint64(p), uint64(c))) }

// mix joins x to h by two rounds of MurmurHash3's 64-bit finalizer, so that
// swapping or repeating values does not cancel out.
func mix(h, x uint64) uint64 { return fmix(h*0x9e37_79b9_7f4a_7c15 + fmix(x+1)) }

func fmix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51_afd7_ed55_8ccd
	x ^= x >> 33
	x *= 0xc4ce_b9fe_1a85_ec53
	return x ^ x>>33
}

// summary is what one holder holds and has counted.
type summary struct {
	content
	counters shard.HolderStats
}

// content sums one holder's content up, independent of order.
type content struct {
	hash        uint64
	held, holes uint64
	copies      uint64
}

// walker sums contents and keeps its scratch: the path of each node by its ID.
type walker struct {
	nodes map[uint64]path
}

func (w *walker) init() { w.nodes = make(map[uint64]path) }

// sum walks h and returns its content, or what is wrong with the walk itself.
func (w *walker) sum(idx shard.Index, h shard.Holder) (content, error) {
	clear(w.nodes)
	var s content
	err := walkPaths(idx, h, w.nodes, func(n *shard.Node, p path) {
		if len(n.Copies) == 0 {
			s.holes++
			s.hash += mix(uint64(p), 1)
			return
		}
		s.held++
		for _, c := range n.Copies {
			s.copies++
			s.hash += mix(mix(uint64(p), uint64(c.Engine)), uint64(c.Tier)<<48|uint64(c.Group)<<32|uint64(c.Count))
		}
	})
	return s, err
}

// walkPaths visits h's nodes with their paths, and checks what any walk must
// be: parents first, each node once, one namespace a tree, no count of 0.
func walkPaths(idx shard.Index, h shard.Holder, nodes map[uint64]path, fn func(*shard.Node, path)) error {
	var bad error
	err := idx.Walk(h, func(n *shard.Node) bool {
		up := rootPath(n.Namespace)
		if n.Parent != 0 {
			var ok bool
			if up, ok = nodes[n.Parent]; !ok {
				bad = fmt.Errorf("walk: node %d comes before its parent %d", n.ID, n.Parent)
				return false
			}
		}
		if _, ok := nodes[n.ID]; ok || n.ID == 0 {
			bad = fmt.Errorf("walk: node %d comes twice or is 0", n.ID)
			return false
		}
		for _, c := range n.Copies {
			if c.Count == 0 || c.Tier >= kv.LocalTiers {
				bad = fmt.Errorf("walk: node %d has a copy that is none: %+v", n.ID, c)
				return false
			}
		}
		p := up.child(n.Content)
		nodes[n.ID] = p
		fn(n, p)
		return true
	})
	if err != nil {
		return fmt.Errorf("walk: %w", err)
	}
	return bad
}

// flatNode is one node as plain values, for messages.
type flatNode struct {
	p      path
	chain  []kv.ContentHash
	ns     kv.Namespace
	copies []shard.Copy
}

// flatten returns h's whole content by path. Only for messages: it keeps each
// node's chain.
func flatten(idx shard.Index, h shard.Holder) (map[path]flatNode, []path, error) {
	flat := make(map[path]flatNode)
	var order []path
	nodes := make(map[uint64]path)
	chains := make(map[uint64][]kv.ContentHash)
	err := walkPaths(idx, h, nodes, func(n *shard.Node, p path) {
		chain := append(slices.Clone(chains[n.Parent]), n.Content)
		chains[n.ID] = chain
		copies := slices.Clone(n.Copies)
		slices.SortFunc(copies, func(a, b shard.Copy) int {
			return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Count, b.Count))
		})
		if _, twice := flat[p]; twice {
			order = append(order, p) // shown twice below
		}
		flat[p] = flatNode{p, chain, n.Namespace, copies}
		order = append(order, p)
	})
	return flat, order, err
}

// diffContent words the first difference between two contents that are known
// to differ.
func diffContent(got *side, gp Place, want *side, wp Place) error {
	g, gorder, err := flatten(got.Indexes[gp.Index], gp.Holder)
	if err != nil {
		return fmt.Errorf("%s: %w", got.Name, err)
	}
	w, worder, err := flatten(want.Indexes[wp.Index], wp.Holder)
	if err != nil {
		return fmt.Errorf("%s: %w", want.Name, err)
	}
	for _, p := range worder {
		wn := w[p]
		gn, ok := g[p]
		if !ok {
			return fmt.Errorf("content: %s: %s has nothing there, %s %s", chainString(wn.ns, wn.chain), got.Name, want.Name, copiesString(wn.copies))
		}
		if !slices.Equal(gn.copies, wn.copies) {
			return fmt.Errorf("content: %s: %s has %s, %s %s", chainString(wn.ns, wn.chain), got.Name, copiesString(gn.copies), want.Name, copiesString(wn.copies))
		}
	}
	for _, p := range gorder {
		if _, ok := w[p]; !ok {
			return fmt.Errorf("content: %s: %s has %s, %s nothing there", chainString(g[p].ns, g[p].chain), got.Name, copiesString(g[p].copies), want.Name)
		}
	}
	return fmt.Errorf("content: %s walks %d nodes, %s %d", got.Name, len(gorder), want.Name, len(worder))
}

func copiesString(copies []shard.Copy) string {
	if len(copies) == 0 {
		return "a hole"
	}
	out := ""
	for i, c := range copies {
		if i > 0 {
			out += ", "
		}
		if i == 8 {
			return out + fmt.Sprintf("... (%d copies)", len(copies))
		}
		out += fmt.Sprintf("%x on %s group %d x%d", uint64(c.Engine), c.Tier, c.Group, c.Count)
	}
	return out
}
