// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"slices"
	"strings"
	"sync"
)

// Account is what became of all memory with one placement that lives now.
type Account struct {
	Want   Placement
	Pieces uint64 // regions and blocks
	Bytes  uint64 // usable prefixes of regions, all of blocks
	// ByPolicy splits Bytes by how the kernel was told.
	ByPolicy [len(policyNames)]uint64
	// Checked and Remote are sums of [Placed]'s.
	Checked, Remote uint64
	// Pages are places sampled now, by node; nil where the kernel does not say.
	Pages []NodePages
	// Why says of one piece why it is not as asked; empty when all are.
	Why string
}

// piece is a region or a block.
type piece interface {
	PagesByNode(samples int) ([]NodePages, error)
	Placed() Placed
	size() uint64
}

// live are the pieces whose place was asked for. The lock is held while their pages
// are looked at, so that none goes away meanwhile.
var live struct {
	sync.Mutex
	pieces map[piece]struct{}
}

// enlist counts p from now on, if its place was asked for.
func enlist(p piece, want Placement) {
	if want.Anywhere() {
		return
	}
	live.Lock()
	defer live.Unlock()
	if live.pieces == nil {
		live.pieces = map[piece]struct{}{}
	}
	live.pieces[p] = struct{}{}
}

// delist counts p no more. Called before its memory goes.
func delist(p piece) {
	live.Lock()
	defer live.Unlock()
	delete(live.pieces, p)
}

// Accounts returns what became of all memory whose place was asked for, a line for
// each placement, in the order of their names. Up to samples places of each piece
// are looked at.
//
// Concurrency: any goroutine. Whoever takes or gives back placed memory waits
// meanwhile.
// Cost: about 0.2 us a sample; for metrics and tests.
func Accounts(samples int) []Account {
	live.Lock()
	defer live.Unlock()
	var out []Account
	for p := range live.pieces {
		placed, size := p.Placed(), p.size()
		name := placed.Want.String()
		i := slices.IndexFunc(out, func(a Account) bool { return a.Want.String() == name })
		if i < 0 {
			i = len(out)
			out = append(out, Account{Want: placed.Want})
		}
		a := &out[i]
		a.Pieces++
		a.Bytes += size
		a.ByPolicy[placed.Policy] += size
		a.Checked += placed.Checked
		a.Remote += placed.Remote
		// The same one each time, whatever the map's order.
		a.Why = max(a.Why, placed.Why)
		pages, err := p.PagesByNode(samples)
		if err != nil {
			continue // forbidden: nobody knows
		}
		for _, n := range pages {
			a.Pages = addPages(a.Pages, n.Node, n.Pages)
		}
	}
	slices.SortFunc(out, func(a, b Account) int { return strings.Compare(a.Want.String(), b.Want.String()) })
	return out
}

// addPages adds n pages on node id to pages, ascending by node.
func addPages(pages []NodePages, id int, n uint64) []NodePages {
	i, ok := slices.BinarySearchFunc(pages, id, func(p NodePages, id int) int { return p.Node - id })
	if !ok {
		pages = slices.Insert(pages, i, NodePages{Node: id})
	}
	pages[i].Pages += n
	return pages
}
