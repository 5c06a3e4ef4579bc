// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"runtime"
	"sync"
	"sync/atomic"

	"kindex/harness/corpus"
	"kindex/harness/trial"
	"kindex/numa"
	"kindex/shard"
)

// Source makes what a measurement needs: fresh targets, and steps of the corpus.
type Source struct {
	Corpus    *corpus.Corpus
	NewTarget func() (*Target, error)
	Lanes     int
	Queries   int // threads that look up in [Lookups] and [Contend]
}

// Applied is what applying events took.
type Applied struct {
	Blocks int64 `json:"block_ops"`
	CPU    int64 `json:"cpu_ns"` // of the threads that applied them
	Wall   int64 `json:"wall_ns"`
}

// PerBlock returns the CPU nanoseconds a block.
func (a Applied) PerBlock() float64 {
	if a.Blocks == 0 {
		return 0
	}
	return float64(a.CPU) / float64(a.Blocks)
}

// Looked is what lookups took.
type Looked struct {
	Lookups int64          `json:"lookups"`
	Blocks  int64          `json:"block_ops"`
	Matches float64        `json:"matches_mean"`
	CPU     float64        `json:"cpu_ns_per_lookup"` // in a pass without clock reads, where there is one
	Wall    int64          `json:"wall_ns,omitempty"` // of the pass with clock reads
	Latency *trial.Latency `json:"lookup_ns"`

	// Passes of their own: answered by sets of holders; 32 at a time, in step.
	Grouped float64 `json:"cpu_ns_per_lookup_grouped,omitempty"`
	Batched float64 `json:"cpu_ns_per_lookup_batched,omitempty"`
}

// split takes events and lookups of steps apart, in order.
func split(steps []corpus.Step) (events, lookups []*corpus.Step) {
	for i := range steps {
		if s := &steps[i]; s.Kind == corpus.Lookup {
			lookups = append(lookups, s)
		} else {
			events = append(events, s)
		}
	}
	return events, lookups
}

func blocks(steps []*corpus.Step) int64 {
	n := int64(0)
	for _, s := range steps {
		n += int64(s.Blocks())
	}
	return n
}

// quiet collects garbage, so that no assist for what was made before is measured.
func quiet() { runtime.GC() }

// Bare applies all events on the calling thread, with no queue.
func Bare(src *Source) (*Target, Applied, error) {
	t, err := src.NewTarget()
	if err != nil {
		return nil, Applied{}, err
	}
	events, _ := split(src.Corpus.Steps(0, len(src.Corpus.Ops), nil))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	quiet()
	a, err := applyAll(t, events)
	return t, a, err
}

func applyAll(t *Target, events []*corpus.Step) (Applied, error) {
	by := newApplier(t)
	began, cpu := clock(), numa.ThreadCPU()
	for _, s := range events {
		if err := by.apply(s); err != nil {
			return Applied{}, err
		}
	}
	return Applied{Blocks: blocks(events), CPU: numa.ThreadCPU() - cpu, Wall: clock() - began}, nil
}

// BareMix applies the whole corpus in order on the calling thread, lookups inline.
func BareMix(src *Source) (Applied, error) {
	t, err := src.NewTarget()
	if err != nil {
		return Applied{}, err
	}
	steps := src.Corpus.Steps(0, len(src.Corpus.Ops), nil)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	quiet()
	by, buf := newApplier(t), t.Buffer()
	a := Applied{}
	began, cpu := clock(), numa.ThreadCPU()
	for i := range steps {
		s := &steps[i]
		if s.Kind == corpus.Lookup {
			buf = t.Lookup(s, buf)
		} else if err := by.apply(s); err != nil {
			return a, err
		}
		a.Blocks += int64(s.Blocks())
	}
	a.CPU, a.Wall = numa.ThreadCPU()-cpu, clock()-began
	return a, nil
}

// Write puts all events into the lanes' queues, then has them drained.
func Write(src *Source) (*Target, Applied, error) {
	t, err := src.NewTarget()
	if err != nil {
		return nil, Applied{}, err
	}
	events, _ := split(src.Corpus.Steps(0, len(src.Corpus.Ops), nil))
	l, err := NewLanes(t, src.Lanes, len(events)+1)
	if err != nil {
		return nil, Applied{}, err
	}
	for _, s := range events {
		l.put(s)
	}
	l.flush()
	quiet()
	began := clock()
	l.Open()
	l.drain()
	a := Applied{Blocks: blocks(events), Wall: clock() - began}
	a.CPU, err = l.Stop()
	return t, a, err
}

// Lookups applies the first half, times the later half's lookups, applies the rest
// and times all lookups.
func Lookups(src *Source) (t *Target, half, full Looked, err error) {
	n := len(src.Corpus.Ops)
	if t, err = src.NewTarget(); err != nil {
		return
	}
	first, _ := split(src.Corpus.Steps(0, n/2, nil))
	if _, err = applyAll(t, first); err != nil {
		return
	}
	second, _ := split(src.Corpus.Steps(n/2, n, nil))
	_, later := split(src.Corpus.Lookups(n/2, n)) // apart from the events, as all lookups are
	half = timeLookups(t, later, src.Queries)
	if _, err = applyAll(t, second); err != nil {
		return
	}
	return t, half, AllLookups(src, t), nil
}

// warmUp is how many lookups are made before any is timed.
const warmUp = 2_000

// timeLookups looks every prompt up on so many threads: one by one with the clock read
// around each, then without, then grouped, then batched.
func timeLookups(t *Target, lookups []*corpus.Step, threads int) Looked {
	quiet()
	out := Looked{Lookups: int64(len(lookups) * threads), Blocks: blocks(lookups) * int64(threads)}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var all []uint32
	var flat, grouped, batched, matches int64
	for range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			buf, times, found := t.Buffer(), make([]uint32, 0, len(lookups)), int64(0)
			for _, s := range lookups[:min(len(lookups), warmUp)] {
				buf = t.Lookup(s, buf)
			}
			start := clock()
			for _, s := range lookups {
				began := clock()
				buf = t.Lookup(s, buf)
				times = append(times, nanos(clock()-began))
				found += int64(len(buf))
			}
			wall := clock() - start
			before := numa.ThreadCPU()
			for _, s := range lookups {
				buf = t.Lookup(s, buf)
			}
			one := numa.ThreadCPU()
			var a shard.Answer
			for _, s := range lookups {
				a.Reset()
				t.Index.LookupGroups(t.Namespace, s.Contents, &a)
			}
			two := numa.ThreadCPU()
			b := t.newBatch()
			for i := 0; i < len(lookups); i += batchLookups {
				b.lookup(lookups[i:min(i+batchLookups, len(lookups))])
			}
			three := numa.ThreadCPU()
			mu.Lock()
			defer mu.Unlock()
			all, out.Wall = append(all, times...), max(out.Wall, wall)
			flat, grouped, batched, matches = flat+one-before, grouped+two-one, batched+three-two, matches+found
		})
	}
	wg.Wait()
	out.Latency = trial.NewLatency(all)
	if n := float64(out.Lookups); n > 0 {
		out.CPU, out.Grouped, out.Batched, out.Matches = float64(flat)/n, float64(grouped)/n, float64(batched)/n, float64(matches)/n
	}
	return out
}

func nanos(d int64) uint32 { return uint32(min(max(d, 0), 1<<32-1)) }

// Contend applies the first half; then lanes apply the second as fast as they can
// while query threads go round its lookups.
func Contend(src *Source) (t *Target, wrote Applied, looked Looked, err error) {
	n := len(src.Corpus.Ops)
	if t, err = src.NewTarget(); err != nil {
		return
	}
	first, _ := split(src.Corpus.Steps(0, n/2, nil))
	if _, err = applyAll(t, first); err != nil {
		return
	}
	second, later := split(src.Corpus.Steps(n/2, n, nil))
	l, err := NewLanes(t, src.Lanes, len(second)+1)
	if err != nil {
		return
	}
	for _, s := range second {
		l.put(s)
	}
	l.flush()
	quiet()
	var stop atomic.Bool
	var mu sync.Mutex
	var wg, ready sync.WaitGroup
	var all []uint32
	var cpu int64
	ready.Add(src.Queries)
	for range src.Queries {
		wg.Go(func() {
			times, used, n := goRound(t, later, &stop, ready.Done)
			mu.Lock()
			defer mu.Unlock()
			all, cpu, looked.Blocks = append(all, times...), cpu+used, looked.Blocks+n
		})
	}
	ready.Wait()
	began := clock()
	l.Open()
	l.drain()
	wrote = Applied{Blocks: blocks(second), Wall: clock() - began}
	stop.Store(true)
	wg.Wait()
	wrote.CPU, err = l.Stop()
	looked.Lookups = int64(len(all))
	if len(all) > 0 {
		looked.CPU, looked.Latency = float64(cpu)/float64(len(all)), trial.NewLatency(all)
	}
	return t, wrote, looked, err
}

// goRound looks up until told to stop, each lookup timed. It calls ready before it
// begins.
func goRound(t *Target, lookups []*corpus.Step, stop *atomic.Bool, ready func()) (times []uint32, cpu, blocks int64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	times, buf := make([]uint32, 0, 1<<20), t.Buffer()
	ready()
	if len(lookups) == 0 {
		return times, 0, 0
	}
	cpu = numa.ThreadCPU()
	for i := 0; i == 0 || !stop.Load(); i++ {
		s := lookups[i%len(lookups)]
		began := clock()
		buf = t.Lookup(s, buf)
		times = append(times, nanos(clock()-began))
		blocks += int64(len(s.Contents))
	}
	return times, numa.ThreadCPU() - cpu, blocks
}

// AllLookups times all lookups of the corpus in t, where all is applied.
func AllLookups(src *Source, t *Target) Looked {
	_, all := split(src.Corpus.Lookups(0, len(src.Corpus.Ops)))
	return timeLookups(t, all, src.Queries)
}
