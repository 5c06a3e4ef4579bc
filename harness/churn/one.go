// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"kindex/asm"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/numa"
	"kindex/shard"
)

// Slow counts what took long by the thread's CPU clock.
type Slow struct {
	Over100us int64   `json:"over_100us"`
	Over1ms   int64   `json:"over_1ms"`
	Longest   int64   `json:"longest_ns"`
	CPU       float64 `json:"cpu_s"` // in which they were counted
}

func (s *Slow) count(ns int64) {
	if ns > 100_000 {
		s.Over100us++
	}
	if ns > 1_000_000 {
		s.Over1ms++
	}
	s.Longest = max(s.Longest, ns)
	s.CPU += float64(ns) / 1e9
}

func (s *Slow) add(o Slow) {
	s.Over100us, s.Over1ms, s.Longest, s.CPU = s.Over100us+o.Over100us, s.Over1ms+o.Over1ms, max(s.Longest, o.Longest), s.CPU+o.CPU
}

// Slowest is one operation over 1 ms. Equal arguments give equal events, so that what
// is the index's own comes again at the same event in another trial.
type Slowest struct {
	Event int64  `json:"event"` // counted from the first, filling included
	Kind  string `json:"kind"`  // store or remove
	CPU   int64  `json:"cpu_ns"`
}

// mostSlow bounds how many are told of a trial.
const mostSlow = 1_000

// Segment is what a part of the churn took.
type Segment struct {
	Events      int64   `json:"events"`
	Blocks      int64   `json:"block_ops"`
	CPUPerEvent float64 `json:"cpu_ns_per_event"`
	CPUPerBlock float64 `json:"cpu_ns_per_block"`
	Slow        Slow    `json:"operations"` // of the writer
	Control     Slow    `json:"control"`    // clock reads with nothing between

	Lookup *trial.Latency `json:"lookup_ns"`

	Memberships   uint64             `json:"memberships"`
	PerMembership float64            `json:"bytes_per_membership"` // the index's accounts
	Purpose       map[string]float64 `json:"bytes_per_membership_by_purpose"`
	Resident      float64            `json:"resident_bytes_per_membership"`
	Heap          float64            `json:"go_heap_bytes_per_membership"`
}

// Result is what one trial measured.
type Result struct {
	trial.Report
	Index    string    `json:"index"`
	Level    string    `json:"cpu_features"`
	Workers  int       `json:"workers"`
	Clock    float64   `json:"clock_ns"` // taken off each event
	Fill     Segment   `json:"fill"`
	Segments []Segment `json:"segments"`
	Drift    Drift     `json:"drift"`
	Slow     Slow      `json:"operations"` // of all segments, filling left out
	Control  Slow      `json:"control"`
	Slowest  []Slowest `json:"over_1ms,omitempty"` // filling included
}

// Drift is by how much of itself the last segment differs from the second, in percent.
type Drift struct {
	CPU      float64 `json:"cpu_per_event"`
	P50      float64 `json:"lookup_p50"`
	P99      float64 `json:"lookup_p99"`
	Bytes    float64 `json:"bytes_per_membership"`
	Resident float64 `json:"resident"`
}

func driftOf(s []Segment) Drift {
	a, b := &s[1], &s[len(s)-1]
	of := func(x, y float64) float64 {
		if x == 0 {
			return 0
		}
		return (y/x - 1) * 100
	}
	return Drift{
		CPU: of(a.CPUPerEvent, b.CPUPerEvent), Bytes: of(a.PerMembership, b.PerMembership), Resident: of(a.Resident, b.Resident),
		P50: of(float64(a.Lookup.P50), float64(b.Lookup.P50)), P99: of(float64(a.Lookup.P99), float64(b.Lookup.P99)),
	}
}

const (
	chunkEvents  = 4_096
	chunkLookups = 64
	// sampled bounds the lookup times kept of a segment; past it each replaces one.
	sampled = 1 << 19
)

var kinds = map[bool]string{true: "store", false: "remove"}

// run is one trial.
type run struct {
	f      *fleet
	idx    shard.Index
	ns     kv.Namespace
	store  shard.Store
	remove shard.Remove
	worker map[uint32]int
	before trial.Bytes
	clock  float64

	chunk []event
	took  []int64 // by event of the chunk
	times []uint32
	seen  int // lookups of the segment
	q     question
	buf   []kv.Match
	exact trial.Exact
	began time.Time

	events  int64 // applied so far
	slowest []Slowest
}

// One measures once, in this process.
//
// Errors: the index's; ctx's.
func One(ctx context.Context, o Options, p *trial.Progress) (*Result, error) {
	if err := asm.SetLevel(o.Level); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	x := &run{
		f: newFleet(&o), worker: map[uint32]int{}, chunk: make([]event, chunkEvents), took: make([]int64, chunkEvents),
		times: make([]uint32, 0, sampled), buf: make([]kv.Match, 0, o.Workers), clock: trial.ThreadClockCost(),
		began: time.Now(),
	}
	x.touch()
	x.q.chain = make([]kv.ContentHash, 0, o.Length+longest*o.Decode)
	x.before = trial.BytesNow()
	if err := x.begin(&o); err != nil {
		return nil, err
	}
	r := &Result{Index: o.Index, Level: asm.Level(), Workers: o.Workers, Clock: x.clock}
	r.Report = trial.Report{Command: "churn", Corpus: "generated", Seed: o.Seed}
	var err error
	if r.Fill, err = x.segment(ctx, func(*Segment) bool { return x.f.full() }); err != nil {
		return nil, err
	}
	events := int64(o.Events)
	if events == 0 {
		events = int64(o.decoding() / 2)
	}
	start := time.Now()
	for i := range o.Segments {
		over := func(s *Segment) bool { return s.Events >= events }
		if o.Minutes > 0 {
			until := time.Duration(float64(i+1) / float64(o.Segments) * o.Minutes * float64(time.Minute))
			over = func(s *Segment) bool { return s.Events > 0 && time.Since(start) >= until }
		}
		s, err := x.segment(ctx, over)
		if err != nil {
			return nil, err
		}
		r.Segments = append(r.Segments, s)
		p.Sayf("segment %d of %d: %.0f ns of CPU an event, lookup p50 %d ns, %.2f bytes a membership", i+1, o.Segments, s.CPUPerEvent, s.Lookup.P50, s.PerMembership)
	}
	r.finish(x)
	return r, nil
}

// touch writes to what the workload will use, so that it is resident before anything is
// counted.
func (x *run) touch() {
	for i := range x.f.workers {
		ended := x.f.workers[i].ended
		for k := range ended {
			ended[k].ends = 1
		}
	}
	for i := range x.chunk {
		x.chunk[i].worker, x.took[i] = 1, 1
	}
	times := x.times[:cap(x.times)]
	for i := range times {
		times[i] = 1
	}
}

// finish sums up the segments.
func (r *Result) finish(x *run) {
	var cpu, p50, p99, p999 []float64
	samples := 0
	for _, s := range r.Segments {
		r.Ops, r.BlockOps = r.Ops+s.Events, r.BlockOps+s.Blocks
		cpu = append(cpu, s.CPUPerBlock)
		p50, p99, p999 = append(p50, float64(s.Lookup.P50)), append(p99, float64(s.Lookup.P99)), append(p999, float64(s.Lookup.P999))
		samples += s.Lookup.Samples
		r.Slow.add(s.Slow)
		r.Control.add(s.Control)
	}
	last := &r.Segments[len(r.Segments)-1]
	r.Lookup = &trial.Latency{Samples: samples, P50: uint32(trial.Median(p50)), P99: uint32(trial.Median(p99)), P999: uint32(trial.Median(p999)), Max: slices.MaxFunc(r.Segments, func(a, b Segment) int { return int(a.Lookup.Max) - int(b.Lookup.Max) }).Lookup.Max}
	r.CPUPerBlockOp = trial.Median(cpu)
	if r.CPUPerBlockOp > 0 {
		r.BlockOpsPerS = 1e9 / r.CPUPerBlockOp
	}
	r.Wall = time.Since(x.began).Seconds()
	st := x.idx.Stats()
	r.PerMembership = max(last.PerMembership, last.Resident)
	r.PerBlock = r.PerMembership * float64(st.Memberships) / float64(st.Blocks)
	r.Exact, r.Slowest = &x.exact, x.slowest
	r.Drift = driftOf(r.Segments)
}

// begin makes the index and stores the prompts.
func (x *run) begin(o *Options) (err error) {
	if x.idx, err = shard.New(o.Index, shard.Options{}); err != nil {
		return err
	}
	model := kv.MakeModelKey("", "churn", "default")
	x.ns = model.Namespace(kv.HashSeed)
	x.store = shard.Store{Namespace: x.ns}
	for i := range x.f.workers {
		w := &x.f.workers[i]
		if w.holder, err = x.idx.AddHolder(model); err != nil {
			return err
		}
		x.worker[uint32(w.holder)] = i
		for _, p := range w.prompts {
			if err := x.idx.Store(w.holder, &shard.Store{Namespace: x.ns, Engines: x.f.engines(p), Contents: x.f.prompts[p]}); err != nil {
				return err
			}
		}
	}
	return nil
}

// segment goes on until over.
func (x *run) segment(ctx context.Context, over func(*Segment) bool) (Segment, error) {
	s := Segment{}
	x.times, x.seen = x.times[:0], 0
	cpu := 0.0
	for !over(&s) {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		n := x.f.events(x.chunk)
		ns, err := x.apply(x.chunk[:n])
		if err != nil {
			return s, err
		}
		cpu += ns
		s.Events += int64(n)
		for i, ns := range x.took[:n] {
			s.Slow.count(ns)
			if ns > 1_000_000 && len(x.slowest) < mostSlow {
				x.slowest = append(x.slowest, Slowest{x.events + int64(i), kinds[x.chunk[i].store], ns})
			}
		}
		x.events += int64(n)
		x.control(n)
		for _, ns := range x.took[:n] {
			s.Control.count(ns)
		}
		x.lookups()
	}
	s.Blocks = s.Events
	if s.Events > 0 {
		s.CPUPerEvent = max(0, cpu/float64(s.Events)-x.clock)
		s.CPUPerBlock = s.CPUPerEvent // an event has one block
	}
	if s.Lookup = trial.NewLatency(x.times); s.Lookup == nil {
		s.Lookup = &trial.Latency{}
	}
	s.Lookup.Samples = x.seen
	return s, x.bytes(&s)
}

// apply applies events and returns the CPU time of all.
func (x *run) apply(events []event) (float64, error) {
	began := numa.ThreadCPU()
	last := began
	for i := range events {
		ev := &events[i]
		h := x.f.workers[ev.worker].holder
		var err error
		if ev.store {
			x.store.HasParent, x.store.Parent, x.store.Engines, x.store.Contents = true, ev.parent, ev.engine[:], ev.content[:]
			err = x.idx.Store(h, &x.store)
		} else {
			x.remove.Engines = ev.engine[:]
			err = x.idx.Remove(h, &x.remove)
		}
		if err != nil {
			return 0, err
		}
		now := numa.ThreadCPU()
		x.took[i] = now - last
		last = now
	}
	return float64(last - began), nil
}

// control reads the clock n times.
func (x *run) control(n int) {
	last := numa.ThreadCPU()
	for i := range n {
		now := numa.ThreadCPU()
		x.took[i] = now - last
		last = now
	}
}

var clockBase = time.Now()

// lookups asks for sequences that are being decoded.
func (x *run) lookups() {
	for range chunkLookups {
		x.f.ask(&x.q)
		began := time.Since(clockBase)
		x.buf = x.idx.Lookup(x.ns, x.q.chain, x.buf[:0])
		took := uint32(min(time.Since(clockBase)-began, 1<<32-1))
		x.exact.Lookups++
		if !x.right() {
			x.exact.Wrong++
		}
		x.seen++
		if len(x.times) < sampled {
			x.times = append(x.times, took)
		} else if i := x.f.rng.IntN(x.seen); i < sampled {
			x.times[i] = took
		}
	}
}

// right holds the last answer against what the workload knows.
func (x *run) right() bool {
	if len(x.buf) != x.q.holders {
		return false
	}
	own := 0
	for _, m := range x.buf {
		depth := x.f.o.Length
		if x.worker[m.Holder] == x.q.worker {
			depth = len(x.q.chain)
			own++
		}
		if int(m.Device) != depth || int(m.Any) != depth {
			return false
		}
	}
	return own == 1
}

// bytes reads what the index takes.
func (x *run) bytes(s *Segment) error {
	st := x.idx.Stats()
	held := 0
	for i := range x.f.workers {
		held += x.f.workers[i].held
	}
	if st.Memberships != uint64(held) {
		return fmt.Errorf("the index counts %d memberships, there must be %d", st.Memberships, held)
	}
	s.Memberships, s.Purpose = st.Memberships, map[string]float64{}
	n := float64(st.Memberships)
	for p, b := range st.Bytes {
		s.Purpose[shard.Purpose(p).String()] = float64(b) / n
		s.PerMembership += float64(b) / n
	}
	grew := trial.BytesNow().Since(x.before)
	s.Resident, s.Heap = float64(grew.Resident)/n, float64(grew.Heap)/n
	return nil
}
