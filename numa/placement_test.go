// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"slices"
	"testing"
)

// TestPlacement holds what a placement says of itself.
func TestPlacement(t *testing.T) {
	f := func(p Placement, text string, nodes []int, one bool) {
		t.Helper()
		if got := p.String(); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
		if got := p.Nodes(); !slices.Equal(got, nodes) || p.Anywhere() != (len(nodes) == 0) {
			t.Errorf("%s: nodes %v, want %v", text, got, nodes)
		}
		if id, ok := p.Node(); ok != one || one && id != nodes[0] {
			t.Errorf("%s: one node: %d, %v", text, id, ok)
		}
	}
	f(Placement{}, "anywhere", nil, false)
	f(Interleave(), "anywhere", nil, false)
	f(OnNode(8), "node 8", []int{8}, true)
	f(Interleave(3, 1, 2, 1), "interleaved over nodes 1-3", []int{1, 2, 3}, false)
	f(Interleave(5), "interleaved over nodes 5", []int{5}, false)

	pages := []NodePages{{0, 30}, {1, 10}}
	for _, c := range []struct {
		p    Placement
		want float64
	}{{OnNode(0), 0.25}, {OnNode(1), 0.75}, {OnNode(2), 1}, {Interleave(0, 1), 0}, {Placement{}, 0}} {
		if got := c.p.RemoteShare(pages); got != c.want {
			t.Errorf("%s: share %v of %v is remote, want %v", c.p, got, pages, c.want)
		}
	}
	if got := OnNode(0).RemoteShare(nil); got != 0 {
		t.Errorf("share of nothing: %v", got)
	}
}
