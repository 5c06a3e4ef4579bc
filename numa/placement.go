// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"fmt"
	"slices"
)

// Placement says where memory should lie. The zero value, anywhere, leaves it to
// the kernel, which takes it near the thread that touches it first: for a Block
// that which made it, for a Region any.
type Placement struct {
	nodes      []int // ascending; none: anywhere
	interleave bool
}

// OnNode places memory on one node: bound to it while it has memory free, then
// preferred. Panics on a negative number.
func OnNode(id int) Placement { return placementOn([]int{id}, false) }

// Interleave spreads memory's pages, huge ones where there are, over nodes in
// turn.
func Interleave(nodes ...int) Placement {
	nodes = slices.Clone(nodes)
	slices.Sort(nodes)
	return placementOn(slices.Compact(nodes), true)
}

func placementOn(nodes []int, interleave bool) Placement {
	for _, id := range nodes {
		if id < 0 || id >= maxNodes {
			panic(fmt.Sprintf("BUG: numa: node %d", id))
		}
	}
	return Placement{nodes: nodes, interleave: interleave && len(nodes) > 0}
}

// Node returns the one node that p names, false where there is not exactly one.
func (p Placement) Node() (int, bool) {
	if p.interleave || len(p.nodes) != 1 {
		return 0, false
	}
	return p.nodes[0], true
}

// Nodes returns the nodes that p names; none: anywhere.
func (p Placement) Nodes() []int { return slices.Clone(p.nodes) }

// Anywhere reports whether p leaves the choice to the kernel.
func (p Placement) Anywhere() bool { return len(p.nodes) == 0 }

// holds reports whether a page on node id lies where p wants it.
func (p Placement) holds(id int) bool { return p.Anywhere() || slices.Contains(p.nodes, id) }

// String writes p for a log.
func (p Placement) String() string {
	switch {
	case p.Anywhere():
		return "anywhere"
	case p.interleave:
		return "interleaved over nodes " + formatList(p.nodes)
	}
	return "node " + formatList(p.nodes)
}

// Policy is how the kernel was told where memory should lie.
type Policy uint8

// The policies, from none to strict.
const (
	// PolicyFirstTouch: the kernel was told nothing. Either nothing was asked, or
	// it may not be told (a container that forbids mbind): memory lies near the
	// thread that touches it first, where there is room.
	PolicyFirstTouch Policy = iota
	// PolicyInterleaved: in turn over the nodes asked for.
	PolicyInterleaved
	// PolicyPreferred: on the node asked for, and elsewhere when it is full.
	PolicyPreferred
	// PolicyBound: on the node asked for, while there is memory free.
	PolicyBound
)

var policyNames = [...]string{"first-touch", "interleaved", "preferred", "bound"}

// String returns the metric label of p.
func (p Policy) String() string { return policyNames[p] }

// Placed is what became of a [Placement].
type Placed struct {
	Want   Placement
	Policy Policy
	// Why is one line on what was asked for and is not so; empty when all is.
	Why string
	// Checked counts bytes whose place was looked up right after they were taken,
	// a huge page by one of its pages; Remote those that lie where Want does not
	// want them. Both 0 where nothing was asked, or looking is forbidden.
	Checked, Remote uint64
}

// RemoteShare returns Remote's share of Checked, 0 to 1.
func (p *Placed) RemoteShare() float64 {
	if p.Checked == 0 {
		return 0
	}
	return float64(p.Remote) / float64(p.Checked)
}

// NodePages counts pages by the node that they lie on.
type NodePages struct {
	Node  int
	Pages uint64
}

// RemoteShare returns the share, 0 to 1, of pages that lie where p does not want
// them, 0 of no pages.
func (p Placement) RemoteShare(pages []NodePages) float64 {
	var all, remote uint64
	for _, n := range pages {
		all += n.Pages
		if !p.holds(n.Node) {
			remote += n.Pages
		}
	}
	if all == 0 {
		return 0
	}
	return float64(remote) / float64(all)
}
