// SPDX-License-Identifier: Apache-2.0

// Hop before: Shard, for whoever wants all that a holder holds.
// Hop after: none.

package shard

import (
	"math"
	"runtime"

	"kindex/internal/kv"
)

// wanted is a run in a walk.
type wanted struct {
	need    int // blocks of it that the walk visits
	visited bool
}

// chainPieces is one walk of one slot, in pieces between which the writer does to
// other slots what it likes. Of what a piece relies on nothing changes while this
// slot holds what it holds:
//
//   - A run of which it holds something, or below which it does, is not freed, nor
//     shortened above that: so line, index, content, parent and namespace stay.
//   - The row by which it names a run is not cut nor freed while it uses it. It may
//     move to another piece of the arena, as the run's holder block may: both are
//     looked up anew in each piece.
//   - Its set of runs, its rows and its exceptions are its own.
//
// Runs, edges and bitmaps of others come and go; new runs may hang below those that
// are visited.
type chainPieces struct {
	c  *chainCore
	s  slot
	st *slotState

	runs  map[uint32]*wanted // by line
	order []uint32           // lines of the runs that s holds something of

	bucket, left int // of st.runs: where collecting goes on
	collected    bool
	own          map[uint32][]kv.EngineHash // exceptions by position

	at      int      // in order
	path    []uint32 // to order[at], the deepest first: still to be visited
	scratch []kv.EngineHash
}

// piecesOf begins a walk of s.
func (c *chainCore) piecesOf(s slot) *chainPieces {
	return &chainPieces{c: c, s: s, st: c.slot(s), runs: map[uint32]*wanted{}, left: -1}
}

func (c *chainCore) walk(s slot, fn func(*coreNode) bool) {
	p := c.piecesOf(s)
	p.next(math.MaxInt, func(n *coreNode) int {
		if !fn(n) {
			return -1
		}
		return 0
	})
}

// Costs of the steps that are no position, in units of [pieceUnits].
const (
	unitsOfRun       = 8
	unitsOfException = 4
	stopWalk         = -1
)

// next visits positions, parents first, until units are spent, as fn counts them; it
// reports whether there is more. fn ends the walk by returning a number below 0.
func (p *chainPieces) next(units int, fn func(*coreNode) int) (more bool) {
	defer runtime.KeepAlive(p.c)
	if !p.collected {
		if units = p.collect(units); units <= 0 {
			return true
		}
	}
	for {
		for len(p.path) == 0 {
			if p.at == len(p.order) {
				return false
			}
			p.ascend(p.order[p.at])
			p.at++
		}
		if units <= 0 {
			return true
		}
		k := len(p.path) - 1
		line := p.path[k]
		p.path = p.path[:k]
		spent := p.visitRun(line, fn)
		if spent == stopWalk {
			return false
		}
		units -= spent
	}
}

// collect finds out which blocks of which runs are visited, and returns the units
// that are left; above 0 it is done.
func (p *chainPieces) collect(units int) int {
	c, buckets := p.c, p.st.runs.buckets
	for ; p.bucket < len(buckets); p.bucket++ {
		b := buckets[p.bucket]
		if p.left < 0 {
			p.left = len(b)
		}
		for p.left > 0 {
			if units <= 0 {
				return units
			}
			p.left--
			line := c.runs.at(b[p.left]).line
			units -= unitsOfRun * p.want(line, c.top(c.holding(line, p.s)))
			p.order = append(p.order, line)
		}
		p.left = -1
	}
	p.collected = true
	if p.own == nil && p.st.exc != nil {
		p.prepare()
		units -= unitsOfException * len(p.st.exc.byHash)
	}
	return max(units, 1)
}

// prepare sorts the slot's exceptions by position.
func (p *chainPieces) prepare() {
	x := p.st.exc
	if x == nil {
		return
	}
	p.own = make(map[uint32][]kv.EngineHash, len(x.byPos))
	for e, at := range x.byHash {
		p.own[at] = append(p.own[at], kv.EngineHash(e))
	}
}

// want makes the walk visit at least need blocks of the run at line, and those
// above it. It returns how many runs it looked at.
func (p *chainPieces) want(line uint32, need int) (runs int) {
	if r := p.runs[line]; r != nil {
		r.need = max(r.need, need)
		return 1 // its ancestors are wanted already
	}
	p.runs[line] = &wanted{need: need}
	runs = 1
	for up := p.c.parent(line); up.line != 0; up = p.c.parent(up.line) {
		runs++
		if r := p.runs[up.line]; r != nil {
			r.need = max(r.need, int(up.off))
			break
		}
		p.runs[up.line] = &wanted{need: int(up.off)}
	}
	return runs
}

// ascend puts the run at line, and those above it that were not visited, into the
// path.
func (p *chainPieces) ascend(line uint32) {
	for l := line; l != 0 && !p.runs[l].visited; l = p.c.parent(l).line {
		p.runs[l].visited = true
		p.path = append(p.path, l)
	}
}

// visitRun visits the wanted blocks of the run at line, whose ancestors were visited.
// It returns what that cost, or stopWalk.
func (p *chainPieces) visitRun(line uint32, fn func(*coreNode) int) (units int) {
	c := p.c
	idx := c.index(line)
	row := p.st.rowOf(idx)
	held := c.holding(line, p.s)
	n := coreNode{ns: kv.Namespace(*c.arena.w(c.runs.at(idx).root, runKey))}
	if up := c.parent(line); up.line != 0 {
		n.parent = pos(c.position(up.line, int(up.off)-1))
	}
	units = unitsOfRun
	for off := range p.runs[line].need {
		at := idx<<offsetBits | uint32(off)
		n.id = pos(at)
		n.content = kv.ContentHash(c.content(line, off, off+1)[0])
		p.scratch = p.scratch[:0]
		if c.holds(held, off) {
			canonical := true
			if p.st.exc != nil {
				if x, ok := p.st.exc.byPos[at]; ok {
					canonical = x.canonical
				}
			}
			if canonical {
				p.scratch = append(p.scratch, kv.EngineHash(c.engineOf(row<<offsetBits|uint32(off))))
			}
			p.scratch = append(p.scratch, p.own[at]...)
		}
		n.engines = p.scratch
		spent := fn(&n)
		if spent < 0 {
			return stopWalk
		}
		units += spent
		n.parent = n.id
	}
	return units
}
