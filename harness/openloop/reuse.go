// SPDX-License-Identifier: Apache-2.0

// Before: run.go, which has rows and their order. After: oracle.go, summary.go.

package openloop

// endless is a prefix cache without bounds that sees rows in the order in which they
// are due, each computed in no time: what it finds is prefix reuse, of the trace alone.
//
// Answers are not in it: a trace's next turn has ids of its own.
type endless struct {
	root node
}

// node is one id behind its prefix.
type node struct {
	children map[uint64]*node
	tokens   int // that were seen of it: the last id of a prompt is cut
	rows     int // whose prompts begin so
}

// see returns how many tokens of a row's prompt the cache has, and takes it in. The last
// token of a prompt is always computed; a cache of blocks reuses whole ones alone.
func (c *endless) see(p *prompts, r *Row) int {
	input := max(r.Input, 1)
	at, found, whole := &c.root, 0, true
	for k, left := 0, input; left > 0; k++ {
		want := min(left, TokensPerID)
		key := p.key(r, k)
		child := at.children[key]
		if child == nil {
			child = &node{}
			if at.children == nil {
				at.children = make(map[uint64]*node)
			}
			at.children[key] = child
		}
		if whole {
			found += min(want, child.tokens)
			whole = child.tokens >= TokensPerID && want == TokensPerID
		}
		child.tokens = max(child.tokens, want)
		child.rows++
		at = child
		left -= want
	}
	return min(found, input-1)
}

// common returns how many leading tokens of a row's prompt more than so many of the
// rows seen begin with.
func (c *endless) common(p *prompts, r *Row, rows int) int {
	at, n := &c.root, 0
	for k, left := 0, max(r.Input, 1); left > 0; k++ {
		if at = at.children[p.key(r, k)]; at == nil || at.rows <= rows {
			break
		}
		n += min(left, TokensPerID)
		left -= TokensPerID
	}
	return n
}
