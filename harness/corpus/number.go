// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// corpus puts all workers' operations in order and gives nodes and contents their
// numbers. ends are where each worker's operations end in s.ops.
func (s *simulation) corpus(ends []int) (*Corpus, error) {
	if s.over {
		return nil, fmt.Errorf("over %d different blocks: take a smaller --dup or --len", maxNodes)
	}
	begin := 0
	dues := make([]uint32, len(s.ops))
	for _, end := range ends {
		if end > begin {
			first, last := s.ops[begin].time, s.ops[end-1].time
			for i := begin; i < end && last > first; i++ {
				hi, lo := bits.Mul64(s.ops[i].time-first, Window)
				q, _ := bits.Div64(hi, lo, last-first)
				dues[i] = uint32(q)
			}
		}
		begin = end
	}
	order := make([]uint32, len(s.ops))
	for i := range order {
		order[i] = uint32(i)
	}
	// s.ops is by worker, then in its own order: i itself ends every tie.
	slices.SortFunc(order, func(i, j uint32) int {
		if d := cmp.Compare(dues[i], dues[j]); d != 0 {
			return d
		}
		a, b := s.ops[i].kind == Lookup, s.ops[j].kind == Lookup
		if a != b {
			if a {
				return -1
			}
			return 1
		}
		return cmp.Compare(i, j)
	})
	n := newNumbering(s)
	ops := make([]Op, len(order))
	removed := make([]uint32, 0, len(s.removed))
	var total int64
	for k, i := range order {
		o := s.ops[i]
		op := Op{Due: dues[i], At: o.at, N: o.n, Worker: o.worker, Kind: o.kind}
		switch {
		case o.kind == Remove:
			op.At = uint32(len(removed))
			for _, x := range s.removed[o.at : o.at+o.n] {
				removed = append(removed, n.of[x]-1)
			}
		case o.at != NoNode:
			op.At = n.node(o.at)
		}
		if total += int64(o.n); total > MaxBlockOps {
			return nil, fmt.Errorf("over %d block operations: take a smaller --dup or --len", MaxBlockOps)
		}
		ops[k] = op
	}
	return &Corpus{
		Workers: s.p.Workers, BlockSize: DefaultBlockSize,
		Parents: n.parents, Contents: n.contents, Ops: ops, Removed: removed,
	}, nil
}

// numbering numbers nodes and contents in order of first appearance.
type numbering struct {
	s        *simulation
	of       []uint32 // 1 + number of a provisional node, 0: not yet
	content  []uint32 // the same of a copy's content
	next     uint32   // content
	parents  []uint32
	contents []uint32
	stack    []uint32
}

func newNumbering(s *simulation) *numbering {
	return &numbering{
		s: s, of: make([]uint32, len(s.parents)), content: make([]uint32, int(s.ids)*s.p.Duplication),
		parents: make([]uint32, 0, len(s.parents)), contents: make([]uint32, 0, len(s.parents)),
	}
}

// node returns the number of provisional node x, numbering its path first.
func (n *numbering) node(x uint32) uint32 {
	for y := x; y != NoNode && n.of[y] == 0; y = n.s.parents[y] {
		n.stack = append(n.stack, y)
	}
	for _, y := range slices.Backward(n.stack) {
		parent := NoNode
		if p := n.s.parents[y]; p != NoNode {
			parent = n.of[p] - 1
		}
		n.parents = append(n.parents, parent)
		n.contents = append(n.contents, n.contentOf(y))
		n.of[y] = uint32(len(n.parents))
	}
	n.stack = n.stack[:0]
	return n.of[x] - 1
}

func (n *numbering) contentOf(x uint32) uint32 {
	per := uint32(n.s.per)
	if int(x) >= n.s.per*n.s.p.Duplication {
		n.next++
		return n.next - 1
	}
	c := &n.content[x/per*n.s.ids+n.s.contents[x%per]]
	if *c == 0 {
		n.next++
		*c = n.next
	}
	return *c - 1
}
