// SPDX-License-Identifier: Apache-2.0

package openloop

import "slices"

// cache is a single prefix cache that sees rows in the order in which they are due, each
// computed in no time: what an oracle knows of the trace alone.
//
// Evicted are the ids used longest ago, a prefix after what hangs from it. Answers take
// room and are never asked for again, since a trace's next turn has ids of its own.
type cache struct {
	capacity int // tokens; 0: endless
	block    int // tokens: only whole blocks are reused
	held     int // tokens
	root     node
	newest   *node // a ring by last use; nil: empty
}

// node is one id behind its prefix.
type node struct {
	parent     *node
	children   map[uint64]*node
	key        uint64
	tokens     int // that were seen of it: the last id of a prompt is cut
	prev, next *node
}

// see returns how many tokens of a row's prompt the cache has, and takes it in.
func (c *cache) see(p *prompts, r *Row, output int) int {
	input := max(r.Input, 1)
	at, found, whole := &c.root, 0, true
	path := make([]*node, 0, p.ids(r)+1)
	for k, left := 0, input; left > 0; k++ {
		want := min(left, TokensPerID)
		key := p.key(r, k)
		child := at.children[key]
		if child == nil {
			child = c.add(at, key)
		}
		if whole {
			found += min(want, child.tokens)
			whole = child.tokens >= TokensPerID && want == TokensPerID
		}
		if grow := want - child.tokens; grow > 0 {
			child.tokens += grow
			c.held += grow
		}
		path = append(path, child)
		at = child
		left -= want
	}
	if c.capacity > 0 {
		if output > 0 {
			tail := c.add(at, keyOwn|keyShared|uint64(r.N)) // no prompt's
			tail.tokens = output
			c.held += output
			path = append(path, tail)
		}
		for _, n := range slices.Backward(path) { // prefixes last: they are used by more
			c.use(n)
		}
		for c.held > c.capacity && c.newest != nil {
			c.evict(c.newest.next)
		}
	}
	// The last token is always computed, and so its block.
	return min(found, input-1) / c.block * c.block
}

func (c *cache) add(parent *node, key uint64) *node {
	n := &node{parent: parent, key: key}
	if parent.children == nil {
		parent.children = make(map[uint64]*node)
	}
	parent.children[key] = n
	return n
}

// use makes n the newest. The ring's next after the newest is the oldest.
func (c *cache) use(n *node) {
	if c.newest == n {
		return
	}
	c.unlink(n)
	if c.newest == nil {
		n.prev, n.next = n, n
	} else {
		n.prev, n.next = c.newest, c.newest.next
		n.prev.next, n.next.prev = n, n
	}
	c.newest = n
}

func (c *cache) unlink(n *node) {
	if n.next == nil {
		return
	}
	if n.next == n {
		c.newest = nil
	} else {
		n.prev.next, n.next.prev = n.next, n.prev
		if c.newest == n {
			c.newest = n.prev
		}
	}
	n.prev, n.next = nil, nil
}

// evict drops the oldest, which nothing hangs from: whatever used it used its prefix
// after it.
func (c *cache) evict(n *node) {
	c.unlink(n)
	c.held -= n.tokens
	delete(n.parent.children, n.key)
}
