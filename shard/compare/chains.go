// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"slices"

	"kindex/internal/kv"
	"kindex/shard"
)

// chainSet remembers every chain ever met, the longest of those that go on from
// one another.
type chainSet struct {
	known map[path]int // every position met -> chain that ends there, or -1
	all   []chain
	nodes map[uint64]chainNode
}

type chain struct {
	ns       kv.Namespace
	contents []kv.ContentHash
}

// chainNode is one node of the walk at hand.
type chainNode struct {
	p       path
	parent  uint64
	content kv.ContentHash
	depth   int
}

func newChainSet() chainSet {
	return chainSet{known: make(map[path]int), nodes: make(map[uint64]chainNode)}
}

// collect adds the chains of h's content.
func (s *chainSet) collect(idx shard.Index, h shard.Holder) error {
	clear(s.nodes)
	return idx.Walk(h, func(n *shard.Node) bool {
		p, depth := rootPath(n.Namespace), 0
		up, ok := s.nodes[n.Parent]
		if ok {
			p, depth = up.p, up.depth
		}
		cn := chainNode{p.child(n.Content), n.Parent, n.Content, depth + 1}
		s.nodes[n.ID] = cn
		if _, met := s.known[cn.p]; met {
			return true
		}
		if end, met := s.known[p]; ok && met && end >= 0 { // goes on from a chain's end: take its place
			s.all[end].contents = append(s.all[end].contents, n.Content)
			s.known[p] = -1
			s.known[cn.p] = end
			return true
		}
		s.known[cn.p] = len(s.all)
		s.all = append(s.all, chain{n.Namespace, s.contents(cn)})
		return true
	})
}

// contents returns the chain down to n.
func (s *chainSet) contents(n chainNode) []kv.ContentHash {
	out := make([]kv.ContentHash, n.depth)
	for i := range slices.Backward(out) {
		out[i] = n.content
		n = s.nodes[n.parent]
	}
	return out
}
