// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newPool(t testing.TB, o Options) *Pool {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // a test that cares for the error closes by itself
	return p
}

func add(t testing.TB, p *Pool, shard int) *Worker {
	t.Helper()
	w, err := p.Add(shard)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// do is a job of functions. Each may be nil.
type do struct {
	batches        int // that Prepare makes ready
	prepare, apply func(i int)
	i              int
}

func (d *do) Prepare() bool {
	if d.i == d.batches {
		return false
	}
	if d.prepare != nil {
		d.prepare(d.i)
	}
	return true
}

func (d *do) Apply() {
	if d.apply != nil {
		d.apply(d.i)
	}
	d.i++
}

// once is a job of one batch.
func once(apply func()) *do { return &do{batches: 1, apply: func(int) { apply() }} }

// spend takes a random while of a lane.
func spend(r *rand.Rand) {
	switch r.IntN(8) {
	case 0:
		runtime.Gosched()
	case 1:
		time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
	default:
		for n := r.IntN(2000); n > 0; n-- {
			_ = r.Uint64()
		}
	}
}

// TestOrder: many workers with jobs of random length on few lanes, which steal.
// Batches of a worker are prepared and applied in the order of their numbers,
// each applied before the next is prepared; a shard has one writer at a time.
func TestOrder(t *testing.T) {
	const workers, jobs = 40, 150
	p := newPool(t, Options{Queue: 4, Nodes: []Node{{ID: 0, Shards: 2, Lanes: 3}, {ID: 3, Shards: 1, Lanes: 2}}})
	writers := make([]atomic.Int32, p.Shards())
	var submitters, outsiders sync.WaitGroup
	var total atomic.Uint64
	var over atomic.Bool
	outsiders.Go(func() { // somebody who walks a shard now and then
		r := rand.New(rand.NewPCG(8, 8))
		for !over.Load() {
			shard := r.IntN(p.Shards())
			p.Turn(shard).Take()
			if n := writers[shard].Add(1); n != 1 {
				t.Errorf("shard %d has %d writers", shard, n)
			}
			spend(r)
			writers[shard].Add(-1)
			p.Turn(shard).Give()
			spend(r)
		}
	})
	for k := range workers {
		w := add(t, p, k%p.Shards())
		submitters.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(k)))
			var prepared, applied uint64 // the worker's: whoever runs it
			for range jobs {
				batches := r.IntN(4)
				total.Add(uint64(batches))
				seed := r.Uint64()
				j := &do{batches: batches}
				jr := rand.New(rand.NewPCG(seed, 1))
				j.prepare = func(int) {
					if prepared++; prepared != applied+1 {
						t.Errorf("worker %d: batch %d prepared when %d were applied", k, prepared, applied)
					}
					spend(jr)
				}
				j.apply = func(int) {
					if n := writers[w.Shard()].Add(1); n != 1 {
						t.Errorf("shard %d has %d writers", w.Shard(), n)
					}
					if applied++; applied != prepared {
						t.Errorf("worker %d: batch %d applied when %d were prepared", k, applied, prepared)
					}
					if jr.IntN(20) == 0 {
						spend(jr)
					}
					writers[w.Shard()].Add(-1)
				}
				hand := w.Submit
				if r.IntN(4) == 0 {
					hand = w.Do
				}
				if err := hand(j); err != nil {
					t.Error(err)
				}
			}
			if err := w.Fence(); err != nil {
				t.Error(err)
			}
			if prepared != applied {
				t.Errorf("worker %d: %d prepared, %d applied after the fence", k, prepared, applied)
			}
		})
	}
	submitters.Wait()
	over.Store(true)
	outsiders.Wait()
	var stats LaneStats
	for _, l := range p.Stats() {
		stats.Jobs += l.Jobs
		stats.Batches += l.Batches
		stats.Stolen += l.Stolen
		stats.Queued += l.Queued
		stats.Workers += l.Workers
		stats.PushedBack += l.PushedBack
		stats.Aside += l.Aside
	}
	if stats.Jobs != workers*jobs || stats.Batches != total.Load() || stats.Queued != 0 || stats.Workers != workers {
		t.Errorf("counted %+v, want %d jobs, %d batches, none queued, %d workers", stats, workers*jobs, total.Load(), workers)
	}
	if stats.Stolen == 0 || stats.PushedBack == 0 || stats.Aside == 0 {
		t.Errorf("nothing stolen, pushed back or put aside: %+v", stats)
	}
}

// TestSteal: while its lane is busy with another worker, a worker is taken over
// by the other lane of the node; one that is running stays.
func TestSteal(t *testing.T) {
	p := newPool(t, Options{Nodes: []Node{{Shards: 1, Lanes: 2}}})
	ws := []*Worker{add(t, p, 0), add(t, p, 0), add(t, p, 0)} // the third shares the first's lane
	if ws[0].home != ws[2].home || ws[0].home == ws[1].home {
		t.Fatal("three workers do not lie on two lanes as expected")
	}
	hold := make(chan struct{})
	begun := make(chan struct{})
	first := &do{batches: 1, prepare: func(int) { close(begun); <-hold }}
	if err := ws[0].Submit(first); err != nil {
		t.Fatal(err)
	}
	<-begun
	second := once(func() {})
	if err := ws[0].Submit(second); err != nil { // must wait for the first
		t.Fatal(err)
	}
	// Both hang if nobody steals.
	if err := errors.Join(ws[2].Submit(once(func() {})), ws[2].Fence()); err != nil {
		t.Fatal(err)
	}
	if ws[2].home == ws[0].home {
		t.Error("the worker stayed on the busy lane")
	}
	if err := ws[2].Do(once(func() {})); err != nil {
		t.Fatal(err)
	}
	if first.i != 0 || second.i != 0 {
		t.Error("a worker's second job ran before its first had ended")
	}
	if l, jobs := ws[0].queued(); jobs != 2 || l != ws[0].home {
		t.Errorf("%d jobs queued, want 2", jobs)
	}
	close(hold)
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	var stolen uint64
	for _, l := range p.Stats() {
		stolen += l.Stolen
	}
	if stolen == 0 || first.i != 1 || second.i != 1 {
		t.Errorf("%d stolen, %d and %d batches; want 1 or more, 1 and 1", stolen, first.i, second.i)
	}
}

// TestPushBack: a queue takes its bound and no more; who submits waits, or is
// told, and nothing is lost.
func TestPushBack(t *testing.T) {
	const queue = 3
	p := newPool(t, Options{Queue: queue, Nodes: []Node{{Shards: 1, Lanes: 1}}})
	w := add(t, p, 0)
	p.Turn(0).Take() // nothing can be applied
	var applied atomic.Int32
	for i := range queue {
		if err := w.TrySubmit(once(func() { applied.Add(1) })); err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
	}
	for range 10 {
		if err := w.TrySubmit(once(func() { applied.Add(1) })); !errors.Is(err, ErrFull) {
			t.Fatalf("past the bound: %v, want %v", err, ErrFull)
		}
	}
	entered := make(chan error)
	go func() { entered <- w.Submit(once(func() { applied.Add(1) })) }()
	select {
	case err := <-entered:
		t.Fatalf("submitted past the bound (%v)", err)
	case <-time.After(20 * time.Millisecond):
	}
	if st := p.Stats(); st[0].Queued != queue || st[0].PushedBack < 10 {
		t.Errorf("%+v, want %d queued and 10 or more pushed back", st[0], queue)
	}
	p.Turn(0).Give()
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	if err := w.Fence(); err != nil || applied.Load() != queue+1 {
		t.Errorf("%d applied (%v), want %d", applied.Load(), err, queue+1)
	}
}

// TestAside: a lane whose shard is being written prepares for others meanwhile,
// up to its bound, and applies what it put aside when it has the turn.
func TestAside(t *testing.T) {
	p := newPool(t, Options{Nodes: []Node{{Shards: 2, Lanes: 1}}})
	p.Turn(0).Take()
	var prepared, applied atomic.Int32
	var ws []*Worker
	for range maxAside - 1 {
		w := add(t, p, 0)
		ws = append(ws, w)
		j := &do{batches: 2, prepare: func(int) { prepared.Add(1) }, apply: func(int) { applied.Add(1) }}
		if err := w.Submit(j); err != nil {
			t.Fatal(err)
		}
	}
	other := add(t, p, 1)
	for range 3 { // goes on although all others wait
		if err := other.Do(once(func() {})); err != nil {
			t.Fatal(err)
		}
	}
	if prepared.Load() != maxAside-1 || applied.Load() != 0 {
		t.Errorf("%d prepared, %d applied; want %d, 0", prepared.Load(), applied.Load(), maxAside-1)
	}
	p.Turn(0).Give()
	for _, w := range ws {
		if err := w.Fence(); err != nil {
			t.Fatal(err)
		}
	}
	if prepared.Load() != 2*(maxAside-1) || applied.Load() != 2*(maxAside-1) {
		t.Errorf("%d prepared, %d applied; want %d each", prepared.Load(), applied.Load(), 2*(maxAside-1))
	}
	if st := p.Stats()[0]; st.Aside == 0 {
		t.Errorf("nothing was put aside: %+v", st)
	}
}

// TestFenceAndDrain: they wait for what was submitted before them, and not for
// what comes after.
func TestFenceAndDrain(t *testing.T) {
	p := newPool(t, Options{Nodes: []Node{{Shards: 1, Lanes: 2}}})
	a, b := add(t, p, 0), add(t, p, 0)
	if err := errors.Join(a.Fence(), p.Drain()); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	blocks := func() *do { return &do{batches: 1, prepare: func(int) { <-hold }} }
	jobs := []*do{blocks(), once(func() {})}
	for i, w := range []*Worker{a, b} {
		if err := w.Submit(jobs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Fence(); err != nil || jobs[1].i != 1 {
		t.Fatalf("fence of one worker: %d batches (%v), want 1", jobs[1].i, err)
	}
	drained := make(chan error)
	go func() { drained <- p.Drain() }()
	select {
	case <-drained:
		t.Fatal("drained while a job runs")
	case <-time.After(10 * time.Millisecond):
	}
	hold <- struct{}{}
	if err := <-drained; err != nil || jobs[0].i != 1 {
		t.Fatalf("drain: %d batches (%v), want 1", jobs[0].i, err)
	}
	// What comes after a fence has begun does not hold it up.
	first, second := blocks(), blocks()
	if err := errors.Join(a.Submit(first), a.Submit(second)); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	number := a.put - 1
	a.mu.Unlock()
	fenced := make(chan error)
	go func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		fenced <- a.until(number)
	}()
	hold <- struct{}{}
	if err := <-fenced; err != nil || first.i != 1 || second.i != 0 {
		t.Errorf("fence between two jobs: %d and %d batches (%v), want 1 and 0", first.i, second.i, err)
	}
	close(hold)
}

// TestPanic: a job that panics, in either half, or ends its goroutine, ends its
// worker alone.
func TestPanic(t *testing.T) {
	for name, job := range map[string]*do{
		"prepare": {batches: 1, prepare: func(int) { panic("boom") }},
		"apply":   once(func() { panic("boom") }),
		"goexit":  once(runtime.Goexit),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, Options{Queue: 4, Nodes: []Node{{Shards: 1, Lanes: 1}}})
			bad, good := add(t, p, 0), add(t, p, 0)
			p.Turn(0).Take()
			if err := good.Submit(once(func() {})); err != nil {
				t.Fatal(err)
			}
			never := once(func() {})
			if err := errors.Join(bad.Submit(job), bad.Submit(never)); err != nil {
				t.Fatal(err)
			}
			p.Turn(0).Give()
			var pe *PanicError
			if err := bad.Fence(); !errors.As(err, &pe) {
				t.Fatalf("fence: %v, want a PanicError", err)
			}
			if name != "goexit" && (pe.Value != "boom" || !strings.Contains(string(pe.Stack), "lanes_test.go")) {
				t.Errorf("panic %v with stack %q", pe.Value, pe.Stack)
			}
			if err := bad.Submit(never); !errors.As(err, &pe) {
				t.Errorf("submit to the failed worker: %v", err)
			}
			if err := bad.TrySubmit(never); !errors.As(err, &pe) {
				t.Errorf("submit to the failed worker: %v", err)
			}
			if err := good.Do(once(func() {})); err != nil {
				t.Errorf("another worker: %v", err)
			}
			if err := p.Drain(); !errors.As(err, &pe) {
				t.Errorf("drain: %v, want a PanicError", err)
			}
			if err := p.Close(); !errors.As(err, &pe) {
				t.Errorf("close: %v, want a PanicError", err)
			}
			if never.i != 0 {
				t.Error("a failed worker's job ran")
			}
		})
	}
}

// TestDoInPlace: who waits for a job runs it himself in an idle lane's place, one
// for each lane at most; what is submitted meanwhile runs after it.
func TestDoInPlace(t *testing.T) {
	p := newPool(t, Options{Nodes: []Node{{Shards: 1, Lanes: 1}}})
	a, b := add(t, p, 0), add(t, p, 0)
	waitIdle(p)
	me := goroutine()
	var order []string
	sent := make(chan error)
	err := a.Do(once(func() {
		if goroutine() != me {
			t.Error("the job ran elsewhere although the lane was idle")
		}
		order = append(order, "a1")
		if err := a.Submit(once(func() { order = append(order, "a2") })); err != nil {
			t.Error(err)
		}
		go func() {
			sent <- b.Do(once(func() {
				if goroutine() == me {
					t.Error("the lane's place was lent twice")
				}
				order = append(order, "b")
			}))
		}()
		for { // until it is queued: the lane's place is taken
			if _, jobs := b.queued(); jobs > 0 {
				break
			}
			runtime.Gosched()
		}
	}))
	if err := errors.Join(err, <-sent, a.Fence()); err != nil {
		t.Fatal(err)
	}
	if len(order) != 3 || order[0] != "a1" {
		t.Errorf("ran in the order %v, want a1 first of three", order)
	}
	waitIdle(p)
	var pe *PanicError
	p.Turn(0).Take()
	p.Turn(0).Give()
	if err := a.Do(once(func() { panic("boom") })); !errors.As(err, &pe) || pe.Value != "boom" {
		t.Errorf("a panic in place: %v", err)
	}
	if err := a.Do(once(func() {})); !errors.As(err, &pe) {
		t.Errorf("after it: %v", err)
	}
	if err := b.Do(once(func() {})); err != nil {
		t.Errorf("another worker: %v", err)
	}
}

func waitIdle(p *Pool) {
	for _, n := range p.nodes {
		for n.idle.Load() != int32(len(n.lanes)) {
			runtime.Gosched()
		}
	}
}

// goroutine returns the name of the calling goroutine.
func goroutine() string {
	var b [64]byte
	name, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), " [")
	return name
}

// TestClose: what was submitted has ended, what comes after is refused, who waits
// for room is told, and no goroutine is left (TestMain looks).
func TestClose(t *testing.T) {
	p := newPool(t, Options{Queue: 2, Nodes: []Node{{Shards: 1, Lanes: 2}}})
	w := add(t, p, 0)
	var applied atomic.Int32
	var submitters sync.WaitGroup
	for range 4 {
		submitters.Go(func() {
			for {
				switch err := w.Submit(once(func() { time.Sleep(time.Millisecond); applied.Add(1) })); {
				case errors.Is(err, ErrClosed):
					return
				case err != nil:
					t.Error(err)
					return
				}
			}
		})
	}
	for applied.Load() < 5 {
		runtime.Gosched()
	}
	gone := add(t, p, 0)
	if err := errors.Join(gone.Close(), gone.Close()); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if n := uint64(applied.Load()); n != w.put || w.n != 0 {
		t.Errorf("%d of %d jobs applied", n, w.put)
	}
	submitters.Wait()
	if _, err := p.Add(0); !errors.Is(err, ErrClosed) {
		t.Errorf("add after close: %v", err)
	}
	if err := gone.TrySubmit(once(func() {})); !errors.Is(err, ErrClosed) {
		t.Errorf("submit after close: %v", err)
	}
	if err := errors.Join(p.Close(), w.Fence(), p.Drain()); err != nil {
		t.Error(err)
	}
	for _, l := range p.Stats() {
		if l.Workers != 0 || l.Queued != 0 {
			t.Errorf("after close: %+v", l)
		}
	}
}

// TestOptions: what cannot be is refused in one line.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"lanes: no nodes": {},
		"lanes: node 2 has 0 shards and 1 lanes: it must have 1 or more of each": {Nodes: []Node{{ID: 2, Lanes: 1}}},
		"lanes: node 0 has 1 shards and 0 lanes: it must have 1 or more of each": {Nodes: []Node{{Shards: 1}}},
		"lanes: a queue of -1 jobs: it must have room for 1 or more":             {Queue: -1, Nodes: []Node{{Shards: 1, Lanes: 1}}},
	} {
		if _, err := New(o); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// TestPinned: lanes that are locked and pinned do the same, and CPUs that are not
// there are refused, with no goroutine left.
func TestPinned(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	if _, err := New(Options{Nodes: []Node{{Shards: 1, Lanes: 2, CPUs: []int{4095}}}}); err == nil {
		t.Error("lanes on CPU 4095 were started")
	}
	cpu := allowedCPU(t)
	p := newPool(t, Options{Nodes: []Node{{Shards: 1, Lanes: 2, CPUs: []int{cpu}}}})
	w := add(t, p, 0)
	for range 20 {
		at := -1
		if err := w.Do(once(func() { at = currentCPU(t) })); err != nil || at != cpu {
			t.Fatalf("job ran on CPU %d (%v), want %d", at, err, cpu)
		}
	}
	if st := p.Stats(); !st[0].Pinned || !st[1].Pinned {
		t.Errorf("not pinned: %+v", st)
	}
}
