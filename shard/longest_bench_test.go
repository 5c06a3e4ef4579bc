// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/numa"
)

// BenchmarkWriterLongest fills an index and churns it, some ten million blocks
// stored and removed in all, and reports the CPU time of its writer's operations:
// the median, the tail and the longest ones, each with what grew meanwhile. Prompts
// share beginnings, chains are decoded block by block, what was stored first goes
// first, an eighth of the workers name blocks by hashes of their own, and workers
// are cleared now and then.
func BenchmarkWriterLongest(b *testing.B) {
	for _, c := range []struct{ holders, room, turns int }{{128, 16_384, 40}, {4, 250_000, 6}} {
		b.Run(fmt.Sprintf("holders=%d/blocks=%d", c.holders, c.room), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				d := newLongest(b, c.holders, c.room)
				d.turns = c.turns
				for d.blocks < 10_000_000 {
					d.step()
				}
				d.report(b)
			}
		})
	}
}

// timed is one operation of the writer.
type timed struct {
	ns   int64
	what string
}

// longest drives an index and keeps the times of its operations.
type longest struct {
	b       testing.TB
	x       Index
	chain   *chainCore
	r       *rand.Rand
	holders []*longestHolder
	room    int // blocks a holder holds
	blocks  int // stored and removed
	turns   int // a prompt's own blocks: turns squared at most
	chains  int
	ns      []uint32 // all times
	top     []timed  // the longest ones, ascending
}

// longestHolder is one worker's cache.
type longestHolder struct {
	id     Holder
	seed   uint64
	chains []*longestChain // oldest first
	refs   map[kv.EngineHash]int32
}

type longestChain struct {
	contents []kv.ContentHash
	engines  []kv.EngineHash
}

func newLongest(b testing.TB, holders, room int) *longest {
	x, err := New("chain", Options{})
	if err != nil {
		b.Fatal(err)
	}
	d := &longest{b: b, x: x, chain: x.(*Shard).chain, r: rand.New(rand.NewPCG(5, 5)), room: room}
	for i := range holders {
		id, err := x.AddHolder(kv.ModelKey(1))
		if err != nil {
			b.Fatal(err)
		}
		h := &longestHolder{id: id, refs: map[kv.EngineHash]int32{}}
		if i%8 == 0 {
			h.seed = uint64(i) + 1
		}
		d.holders = append(d.holders, h)
	}
	return d
}

// extend adds n blocks to ch, told apart by tag, under h's seed.
func (h *longestHolder) extend(ch *longestChain, n int, tag uint64) {
	last := h.seed
	if k := len(ch.engines); k > 0 {
		last = uint64(ch.engines[k-1])
	}
	for range n {
		c := (tag<<20 + uint64(len(ch.contents)) + 1) * 0x9E3779B97F4A7C15
		ch.contents = append(ch.contents, kv.ContentHash(c))
		last = (last ^ c) * 0xD6E8FEB86659FD93
		last ^= last >> 32
		ch.engines = append(ch.engines, kv.EngineHash(last))
	}
}

// step is one request at one worker: a prompt, or the decoding of a few chains; then
// evictions.
func (d *longest) step() {
	h := d.holders[d.r.IntN(len(d.holders))]
	switch k := d.r.IntN(1000); {
	case k == 0 && d.r.IntN(1+d.room/len(d.holders)/100) == 0:
		d.time(fmt.Sprintf("clear of %d blocks", len(h.refs)), func() error { return d.x.Clear(h.id) })
		h.chains, h.refs = nil, map[kv.EngineHash]int32{}
	case k < 500 || len(h.chains) == 0:
		ch := &longestChain{}
		if d.r.IntN(3) > 0 { // a system prompt, or a conversation somebody had
			h.extend(ch, 20+10*d.r.IntN(12), uint64(1+d.r.IntN(40)))
		}
		d.chains++
		h.extend(ch, 1+d.r.IntN(d.turns)*d.r.IntN(d.turns), uint64(1000+d.chains-d.r.IntN(20)))
		d.store(h, ch, 0)
		h.chains = append(h.chains, ch)
	default:
		ch := h.chains[len(h.chains)-1-d.r.IntN(min(len(h.chains), 4))]
		for range 1 + d.r.IntN(20) {
			d.chains++
			n := len(ch.engines)
			h.extend(ch, 1, uint64(1000+d.chains))
			d.store(h, ch, n)
		}
	}
	for len(h.refs) > d.room {
		d.evict(h)
	}
}

// store tells the blocks of ch from first on that h does not hold.
func (d *longest) store(h *longestHolder, ch *longestChain, first int) {
	for ; first < len(ch.engines) && h.refs[ch.engines[first]] > 0; first++ {
		h.refs[ch.engines[first]]++
	}
	if first == len(ch.engines) {
		return
	}
	for _, e := range ch.engines[first:] {
		h.refs[e]++
	}
	st := Store{Namespace: 1, Engines: ch.engines[first:], Contents: ch.contents[first:]}
	if first > 0 {
		st.Parent, st.HasParent = ch.engines[first-1], true
	}
	d.blocks += len(st.Engines)
	d.time(fmt.Sprintf("store of %d blocks", len(st.Engines)), func() error { return d.x.Store(h.id, &st) })
}

// evict takes the oldest chain of h away, from its end upwards.
func (d *longest) evict(h *longestHolder) {
	ch := h.chains[0]
	h.chains = h.chains[1:]
	var gone []kv.EngineHash
	for _, e := range slices.Backward(ch.engines) {
		if h.refs[e]--; h.refs[e] == 0 {
			delete(h.refs, e)
			gone = append(gone, e)
		}
	}
	for len(gone) > 0 {
		n := min(len(gone), 1+d.r.IntN(300))
		rm := Remove{Engines: gone[:n]}
		gone = gone[n:]
		d.blocks += n
		d.time(fmt.Sprintf("removal of %d blocks", n), func() error { return d.x.Remove(h.id, &rm) })
	}
}

// grown is what growth an operation may have paid for.
type grown struct {
	arena, edges uint32
	gone         uint64
	dict         uint64
}

func (d *longest) grown() grown {
	a := &d.chain.arena
	return grown{arena: a.usable, edges: d.chain.edgeState.usable, gone: a.goneLines, dict: d.chain.dict.table.Lines}
}

const longestTop = 12

func (d *longest) time(what string, op func() error) {
	before := d.grown()
	begin := numa.ThreadCPU()
	err := op()
	ns := numa.ThreadCPU() - begin
	if err != nil {
		d.b.Fatal(err)
	}
	d.ns = append(d.ns, uint32(min(ns, 1<<32-1)))
	if len(d.top) == longestTop && ns <= d.top[0].ns {
		return
	}
	after := d.grown()
	if after.arena != before.arena {
		what += fmt.Sprintf(", arena +%d KiB", (after.arena-before.arena)>>4)
	}
	if after.edges != before.edges {
		what += fmt.Sprintf(", edges +%d KiB", (after.edges-before.edges)>>4)
	}
	if after.gone > before.gone {
		what += fmt.Sprintf(", %d KiB given back", (after.gone-before.gone)>>4)
	}
	if after.dict != before.dict {
		what += fmt.Sprintf(", dictionary %d to %d lines", before.dict, after.dict)
	}
	what += fmt.Sprintf(" (operation %d)", len(d.ns))
	d.top = append(d.top, timed{ns, what})
	slices.SortFunc(d.top, func(a, b timed) int { return int(a.ns - b.ns) })
	d.top = d.top[max(0, len(d.top)-longestTop):]
}

func (d *longest) report(b *testing.B) {
	st := d.x.Stats()
	slices.Sort(d.ns)
	at := func(p float64) float64 { return float64(d.ns[int(p*float64(len(d.ns)-1))]) }
	b.ReportMetric(at(0.5), "p50-cpu-ns")
	b.ReportMetric(at(0.99), "p99-cpu-ns")
	b.ReportMetric(at(0.9999), "p99.99-cpu-ns")
	b.ReportMetric(at(1), "longest-cpu-ns")
	over := len(d.ns) - func() int { n, _ := slices.BinarySearch(d.ns, 1_000_000); return n }()
	b.ReportMetric(float64(over), "over-1ms")
	var out strings.Builder
	for _, t := range slices.Backward(d.top) {
		fmt.Fprintf(&out, "\n%8.1f us  %s", float64(t.ns)/1e3, t.what)
	}
	b.Logf("%d operations, %d blocks, %d memberships in %d runs, %d KiB given back; the longest:%s",
		len(d.ns), d.blocks, st.Memberships, st.Runs, d.chain.arena.goneLines>>4, out.String())
}
