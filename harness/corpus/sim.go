// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
)

// Params are the arguments of rule SIM1.
type Params struct {
	Duplication int // copies of the request list, which share no content
	Length      int // hash ids that each of a row's becomes; input lengths grow alike
	Workers     int
	GPUBlocks   int // blocks that a worker caches
	Seed        uint64
}

// DefaultParams are those of the published corpora, but for the duplication.
func DefaultParams() Params {
	return Params{Duplication: 1, Length: 4, Workers: 128, GPUBlocks: 16_384, Seed: 42}
}

// maxDuplicated bounds the requests of a simulation.
const maxDuplicated = 20_000_000

// Validate reports what cannot be right, the flag's name first.
func (p Params) Validate(rows int) error {
	switch {
	case p.Duplication < 1 || p.Duplication > 10_000:
		return fmt.Errorf("--dup %d: must be 1 to 10000", p.Duplication)
	case p.Length < 1 || p.Length > 1_000:
		return fmt.Errorf("--len %d: must be 1 to 1000", p.Length)
	case p.Workers < 1 || p.Workers > MaxWorkers:
		return fmt.Errorf("--workers %d: must be 1 to %d", p.Workers, MaxWorkers)
	case p.GPUBlocks < 1 || p.GPUBlocks > 1<<24:
		return fmt.Errorf("--gpu-blocks %d: must be 1 to %d", p.GPUBlocks, 1<<24)
	case rows*p.Duplication > maxDuplicated:
		return fmt.Errorf("--dup %d: %d rows make more than %d requests", p.Duplication, rows, maxDuplicated)
	}
	return nil
}

// The simulated engine's speed, in microseconds.
const (
	prefillBlock = 200   // for each block not cached
	decodeToken  = 2_000 // for each token
)

// A simOp is an operation of one worker before nodes have their numbers.
type simOp struct {
	time   uint64 // us
	at     uint32 // as in Op, by provisional node
	n      uint32
	worker uint16
	kind   Kind
}

// simulation is what all workers share: the prefix tree by provisional numbers.
// Prompts' nodes come first, copy by copy, then decoded blocks as they appear.
type simulation struct {
	p       Params
	rows    []Row
	paths   [][]uint32 // per row, its prompt's nodes in copy 0
	parents []uint32
	// contents of copy 0's nodes; copy k adds k*ids. Decoded blocks have none.
	contents []uint32
	ids      uint32
	per      int // nodes of one copy
	ops      []simOp
	removed  []uint32
	at       []uint32 // per node: 1 + its slot in the worker being simulated, 0: not visible
	over     bool     // more nodes than a corpus may have
}

// Simulate makes a corpus from rows by rule SIM1: every worker alone, driven by its
// own requests as by an engine with prefix caching and LRU eviction.
//
//   - Copy k of the list adds k*(greatest id + 1) to every hash id. A hash id h
//     becomes h*Length to h*Length+Length-1, of four blocks each, alike in content.
//   - Request i of the whole list goes to worker mix(Seed+i) modulo Workers.
//   - It is looked up when it arrives and admitted in order of arrival: once its
//     uncached blocks fit what is free or idle, the cached prefix is pinned and the
//     least recently released blocks are evicted, told in one event.
//   - Prefill ends 200 us later for each uncached block: every block not visible by
//     then becomes visible, told in one event for each unbroken run. Of one that
//     another request published meanwhile the second copy is free again at once.
//   - Decode takes 2,000 us a token; whenever prompt and output fill a block it takes
//     one, evicting one (an event of its own) if none is free, and tells it. It stores
//     no more once nothing can be evicted.
//   - At its end it releases its blocks, the last first.
//   - A worker's own time is stretched to the window; all operations are in order of
//     (deadline, lookups first, worker, its own order). Nodes and contents get their
//     numbers by first appearance.
//
// progress, if not nil, is told the workers done. Errors: what Params.Validate says; ctx's.
func Simulate(ctx context.Context, rows []Row, p Params, progress func(done, of int)) (*Corpus, error) {
	if len(rows) == 0 {
		return nil, errors.New("no request")
	}
	if err := p.Validate(len(rows)); err != nil {
		return nil, err
	}
	s := &simulation{p: p, rows: rows}
	if err := s.intern(); err != nil {
		return nil, err
	}
	lists := make([][]uint32, p.Workers) // requests of each worker, by number in the whole list
	for i := range len(rows) * p.Duplication {
		w := mix(p.Seed+uint64(i)) % uint64(p.Workers)
		lists[w] = append(lists[w], uint32(i))
	}
	var ends []int // of each worker's operations
	for w, list := range lists {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		newEngine(s, uint16(w)).run(list)
		ends = append(ends, len(s.ops))
		if progress != nil {
			progress(w+1, p.Workers)
		}
	}
	return s.corpus(ends)
}

// intern gives the nodes and contents of one copy their provisional numbers.
func (s *simulation) intern() error {
	contents := map[uint64]uint32{}
	nodes := map[uint64]uint32{}
	s.paths = make([][]uint32, len(s.rows))
	total := 0
	for i := range s.rows {
		r := &s.rows[i]
		n := min(int(r.Input)*s.p.Length/DefaultBlockSize, len(r.IDs)*s.p.Length*BlocksPerID)
		if total += n; total > MaxBlockOps {
			return fmt.Errorf("the requests have over %d blocks", MaxBlockOps)
		}
		path := make([]uint32, n)
		above := NoNode
		for b := range n {
			expanded := r.IDs[b/BlocksPerID/s.p.Length]*uint64(s.p.Length) + uint64(b/BlocksPerID%s.p.Length)
			c, ok := contents[expanded]
			if !ok {
				c = uint32(len(contents))
				contents[expanded] = c
			}
			key := uint64(above)<<32 | uint64(c)
			x, ok := nodes[key]
			if !ok {
				x = uint32(len(s.parents))
				nodes[key] = x
				s.parents = append(s.parents, above)
				s.contents = append(s.contents, c)
			}
			path[b], above = x, x
		}
		s.paths[i] = path
	}
	s.per, s.ids = len(s.parents), uint32(len(contents))
	if s.per*s.p.Duplication >= maxNodes {
		return fmt.Errorf("the requests have over %d different blocks", maxNodes)
	}
	for k := 1; k < s.p.Duplication; k++ {
		base := uint32(k * s.per)
		for _, p := range s.parents[:s.per] {
			if p != NoNode {
				p += base
			}
			s.parents = append(s.parents, p)
		}
	}
	s.at = make([]uint32, len(s.parents))
	return nil
}

// decoded adds a node of fresh content.
func (s *simulation) decoded(above uint32) uint32 {
	s.parents = append(s.parents, above)
	s.at = append(s.at, 0)
	return uint32(len(s.parents) - 1)
}

// A request on its worker.
type request struct {
	number uint32
	base   uint32   // of its copy's nodes
	path   []uint32 // its prompt in copy 0
	held   []uint32 // visible blocks that it pins, in order
	hits   int
	tokens uint64 // prompt and output so far
	end    uint64 // prompt and output in all
	last   uint32 // node of its last block
	full   bool   // stores no more
}

// An alarm is what happens next to a request.
type alarm struct {
	time, made uint64
	what       uint8
	req        *request
}

const (
	arrives uint8 = iota
	prefilled
	blockFull
	ends
)

// alarms is a heap by time, then by order of creation.
type alarms []alarm

func (h alarms) Len() int { return len(h) }
func (h alarms) Less(i, j int) bool {
	return h[i].time < h[j].time || h[i].time == h[j].time && h[i].made < h[j].made
}
func (h alarms) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push and Pop are for container/heap.
func (h *alarms) Push(x any) {
	if a, ok := x.(alarm); ok {
		*h = append(*h, a)
	}
}

// Pop implements heap.Interface.
func (h *alarms) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	*h = (*h)[:last]
	return a
}

var _ heap.Interface = (*alarms)(nil)
