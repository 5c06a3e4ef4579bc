// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// command is one writer's call, resolved so that it is applied without a model.
type command struct {
	kind     int
	s, other slot
	ns       kv.Namespace
	parent   kv.EngineHash // of other; has says whether there is one
	has      bool
	engines  []kv.EngineHash
	contents []kv.ContentHash
}

const (
	cmdStore = iota
	cmdRemove
	cmdClear
	cmdAdopt
	cmdClone // other, which was cleared before, takes over what s holds
)

func (x *command) apply(c core, held []uint64) error {
	switch x.kind {
	case cmdStore:
		var at pos
		if x.has {
			if at = c.find(x.other, x.parent); at == 0 {
				return fmt.Errorf("parent %#x of slot %d is not there", x.parent, x.other)
			}
		}
		_, err := c.store(x.s, x.ns, at, x.engines, x.contents, held, nil)
		return err
	case cmdRemove:
		c.remove(x.s, x.engines, nil)
	case cmdClear:
		c.clear(x.s)
	case cmdAdopt:
		at := c.find(x.other, x.parent)
		if at == 0 {
			return fmt.Errorf("%#x of slot %d is not there", x.parent, x.other)
		}
		_, _, err := c.adopt(x.s, at, x.engines[0])
		return err
	case cmdClone:
		return c.clone(x.s, x.other)
	}
	return nil
}

// script is a writer's commands and what lookups must answer after each.
type script struct {
	slots    int
	queries  [][]kv.ContentHash
	commands []command
	// depths[k] is the state after k commands: by query, then by slot.
	depths [][]uint16
}

// makeScript draws commands over few chains, so that everything is hot: chains of
// several runs, holes from both ends and the middle, stores below holes, moves.
func makeScript(seed uint64, slots, blocks, commands int) *script {
	r := rand.New(rand.NewPCG(seed, 77))
	s := &script{slots: slots}
	for q := range 5 {
		chain := make([]kv.ContentHash, blocks)
		for i := range chain {
			chain[i] = kv.ContentHash(i)
			if i >= blocks*q/6 && q > 0 {
				chain[i] += kv.ContentHash(1000 * q)
			}
		}
		s.queries = append(s.queries, chain)
	}
	model := newNaiveCore()
	for i := range slots {
		model.open(slot(i + 1))
	}
	held := make([]uint64, blocks/64+1)
	s.depths = append(s.depths, s.state(model))
	for len(s.commands) < commands {
		x := s.draw(r, model)
		if x.kind == cmdClone {
			first := command{kind: cmdClear, s: x.other}
			_ = first.apply(model, held)
			s.commands = append(s.commands, first)
			s.depths = append(s.depths, s.state(model))
		}
		if err := x.apply(model, held); err != nil {
			continue
		}
		s.commands = append(s.commands, x)
		s.depths = append(s.depths, s.state(model))
	}
	return s
}

func (s *script) state(c core) []uint16 {
	out := make([]uint16, len(s.queries)*s.slots)
	for q, chain := range s.queries {
		for _, d := range c.lookup(1, chain, nil) {
			out[q*s.slots+int(d.slot)-1] = uint16(d.depth)
		}
	}
	return out
}

// engine names block i of query q alike for two of three slots, and by a hash of
// its own for each other.
func (s *script) engine(x slot, q, i int) kv.EngineHash {
	e := kv.EngineHash(uint64(s.queries[q][i])*1000003 + uint64(i))
	if x%3 == 0 {
		e |= kv.EngineHash(x) << 40
	}
	return e
}

func (s *script) draw(r *rand.Rand, model *naiveCore) command {
	x := command{s: slot(1 + r.IntN(s.slots)), ns: 1}
	q := r.IntN(len(s.queries))
	n := len(s.queries[q])
	lo := r.IntN(n)
	hi := lo + 1 + r.IntN(n-lo)
	if r.IntN(3) == 0 {
		lo, hi = r.IntN(8)*n/8, n
	}
	switch k := r.IntN(40); {
	case k < 18:
		x.kind, x.other = cmdStore, x.s
		if lo > 0 && r.IntN(3) > 0 {
			x.has, x.parent = true, s.engine(x.s, q, lo-1)
		} else {
			lo = 0
		}
		for i := lo; i < hi; i++ {
			x.engines = append(x.engines, s.engine(x.s, q, i))
		}
		if r.IntN(6) == 0 { // a hash moves here from wherever it is
			x.engines[r.IntN(len(x.engines))] = s.engine(x.s, r.IntN(len(s.queries)), r.IntN(n))
		}
		x.contents = s.queries[q][lo:hi]
	case k < 36:
		x.kind = cmdRemove
		if r.IntN(3) == 0 {
			lo, hi = r.IntN(n), n
		}
		for i := hi - 1; i >= lo; i-- {
			x.engines = append(x.engines, s.engine(x.s, q, i))
		}
	case k < 37:
		x.kind = cmdClear
	case k < 39:
		x.kind, x.other = cmdAdopt, slot(1+r.IntN(s.slots))
		x.parent = s.engine(x.other, q, lo)
		x.engines = []kv.EngineHash{s.engine(x.s, q, lo)}
	default:
		x.kind, x.other = cmdClone, slot(1+r.IntN(s.slots))
		if x.other == x.s {
			x.kind = cmdClear
		}
	}
	return x
}

// reader asks until the writer is done, and holds each answer between the least
// and the greatest depth that was true while it was asking.
func (s *script) reader(c core, seed uint64, begun, done *atomic.Int64, stop *atomic.Bool) (lookups int, err error) {
	r := rand.New(rand.NewPCG(seed, 3))
	dst := make([]slotDepth, 0, s.slots)
	var batch slotBatch
	for !stop.Load() {
		q := r.IntN(len(s.queries))
		from := done.Load()
		if chain, ok := c.(*chainCore); ok && r.IntN(3) == 0 {
			answers := batch.ask(chain, 1, s.queries)
			to := begun.Load()
			for q := range s.queries {
				if err := s.inBounds(q, int(from), int(to), answers[q]); err != nil {
					return lookups, fmt.Errorf("in a batch: %w", err)
				}
			}
			lookups++
			continue
		}
		dst = c.lookup(1, s.queries[q], dst[:0])
		to := begun.Load()
		lookups++
		if err := s.inBounds(q, int(from), int(to), dst); err != nil {
			return lookups, err
		}
	}
	return lookups, nil
}

// slotBatch asks a core for several chains in step.
type slotBatch struct {
	scratch batchScratch
	answers [batchMax][]slotDepth
}

func (b *slotBatch) ask(c *chainCore, ns kv.Namespace, chains [][]kv.ContentHash) [][]slotDepth {
	for i, chain := range chains {
		b.scratch.one[i].walk.start(c, ns, chain, nil)
		b.scratch.going[i] = uint8(i)
	}
	for n := len(chains); n > 0; {
		n = b.scratch.step(n)
	}
	for i := range chains {
		b.answers[i] = b.scratch.one[i].walk.appendSlots(b.answers[i][:0])
	}
	return b.answers[:len(chains)]
}

// inBounds holds an answer between the least and the greatest depth that was true
// while commands from to to were applied.
func (s *script) inBounds(q, from, to int, answer []slotDepth) error {
	got := make([]int, s.slots)
	for _, d := range answer {
		if got[d.slot-1] != 0 {
			return fmt.Errorf("slot %d twice in %v", d.slot, answer)
		}
		got[d.slot-1] = int(d.depth)
	}
	for i := range s.slots {
		lo, hi := 1<<30, 0
		for k := from; k <= to; k++ {
			d := int(s.depths[k][q*s.slots+i])
			lo, hi = min(lo, d), max(hi, d)
		}
		if got[i] < lo || got[i] > hi {
			return fmt.Errorf("query %d, slot %d, commands %d to %d: got depth %d, want %d to %d", q, i+1, from, to, got[i], lo, hi)
		}
	}
	return nil
}

// run applies s to c while readers ask, and returns the number of lookups.
func (s *script) run(t *testing.T, c core, seed uint64, readers int) int64 {
	t.Helper()
	for i := range s.slots {
		c.open(slot(i + 1))
	}
	var begun, done, lookups atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			n, err := s.reader(c, seed*100+uint64(i), &begun, &done, &stop)
			lookups.Add(int64(n))
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
	held := make([]uint64, len(s.queries[0])/64+1)
	for k := range s.commands {
		begun.Store(int64(k + 1))
		if err := s.commands[k].apply(c, held); err != nil {
			t.Errorf("seed %d, command %d: %v", seed, k, err)
			break
		}
		done.Store(int64(k + 1))
		if k%64 == 0 {
			runtime.Gosched()
		}
	}
	stop.Store(true)
	wg.Wait()
	return lookups.Load()
}

// TestChainBounds races readers against a writer and holds every single answer
// inside its bounds.
func TestChainBounds(t *testing.T) {
	seeds, commands := uint64(longtest.N(2, 10)), longtest.N(4000, 10000)
	for _, shape := range []struct{ slots, blocks int }{{3, 12}, {8, 40}, {70, 24}, {4, 700}} {
		t.Run(fmt.Sprintf("%d-slots-%d-blocks", shape.slots, shape.blocks), func(t *testing.T) {
			total, rows := int64(0), uint64(0)
			for seed := range seeds {
				s := makeScript(seed, shape.slots, shape.blocks, commands/(1+shape.slots/20)/(1+shape.blocks/200))
				c, err := newChainCore(Options{})
				if err != nil {
					t.Fatal(err)
				}
				c.arena.testEager = seed%2 == 1
				total += s.run(t, c, seed, 2)
				c.check()
				rows += c.rowsMade
			}
			t.Logf("%d lookups while writing, %d alias rows made", total, rows)
			if rows == 0 {
				t.Error("no alias row was made")
			}
		})
	}
}

// TestChainInterleaved lets the writer run in the middle of lookups, at every point
// between two reads, for some commands at a time, and holds the answers inside
// their bounds.
func TestChainInterleaved(t *testing.T) {
	seeds, commands := uint64(longtest.N(20, 100)), 3000
	for _, shape := range []struct{ slots, blocks int }{{3, 12}, {8, 40}, {70, 24}, {4, 700}} {
		t.Run(fmt.Sprintf("%d-slots-%d-blocks", shape.slots, shape.blocks), func(t *testing.T) {
			t.Parallel()
			for seed := range seeds / uint64(1+shape.slots/20) / uint64(1+shape.blocks/200) {
				s := makeScript(seed, shape.slots, shape.blocks, commands)
				if err := s.interleave(seed); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// interleave applies s while one lookup after another is under way.
func (s *script) interleave(seed uint64) error {
	c, err := newChainCore(Options{})
	if err != nil {
		return err
	}
	defer c.release()
	c.arena.testEager = seed%2 == 1
	for i := range s.slots {
		c.open(slot(i + 1))
	}
	r := rand.New(rand.NewPCG(seed, 5))
	held := make([]uint64, len(s.queries[0])/64+1)
	next, failed := 0, error(nil)
	c.testHookLookup = func() {
		n := r.IntN(24) - 18
		if r.IntN(30) == 0 {
			n = r.IntN(150)
		}
		for ; n > 0 && next < len(s.commands) && failed == nil; n-- {
			failed = s.commands[next].apply(c, held)
			next++
		}
	}
	var dst []slotDepth
	var batch slotBatch
	for next < len(s.commands) && failed == nil {
		q := r.IntN(len(s.queries))
		from := next
		if r.IntN(3) == 0 {
			for q, answer := range batch.ask(c, 1, s.queries) {
				if err := s.inBounds(q, from, next, answer); err != nil {
					return fmt.Errorf("in a batch: %w", err)
				}
			}
			continue
		}
		dst = c.lookup(1, s.queries[q], dst[:0])
		if err := s.inBounds(q, from, next, dst); err != nil {
			return err
		}
	}
	c.check()
	return failed
}
