// SPDX-License-Identifier: Apache-2.0

// Before: the command. After: summary.go.

package openloop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"sync"
	"time"

	"kindex/harness/mockworker/engine"
	"kindex/harness/trial"
	"kindex/numa"
)

const (
	// longAway is after how long nobody waits for a request any more without being told.
	longAway = 24 * time.Hour
	// defaultBlock is the block size where nobody says one, in tokens.
	defaultBlock = 16
	// inOrder bounds how long the next request waits for the one before to be with the
	// kernel, so that those due at one instant arrive in their order.
	inOrder = 2 * time.Millisecond
)

// Result is all that a replay saw.
type Result struct {
	Summary *Summary
	Records []Record
	Samples []Sample
}

// Run replays. It ends early, with what there is, when ctx does.
//
// Errors: of options, files, and an endpoint or a fleet that cannot be begun with; what
// goes wrong later is counted.
func Run(ctx context.Context, o *Options, stderr io.Writer) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	trace, err := ReadTrace(o.Trace, o.Rows, o.Seed)
	if err != nil {
		return nil, err
	}
	r := &replay{o: o, trace: trace, due: schedule(trace.Rows, o.Speedup)}
	if o.For > 0 {
		r.cut(o.For)
	}
	if o.OneByOne {
		clear(r.due)
	}
	if n := len(r.due); n > 0 && r.due[n-1] > longAway && stderr != nil {
		fmt.Fprintf(stderr, "harness replay: the last request is due only in %v: --for leaves out what is due later\n", r.due[n-1].Round(time.Second))
	}
	r.recs = newRecords(trace.Rows, r.due)
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	defer r.close()
	r.foresee(ctx, stderr)
	r.play(ctx, stderr)
	return r.result(ctx), nil
}

// replay is one run's state.
type replay struct {
	o      *Options
	trace  *Trace
	due    []time.Duration
	recs   []Record
	bodies *bodies
	client *client
	fleet  *fleet // nil: without an oracle
	notes  []string

	workers         []Worker
	shapes          []engine.Shape // of the fleet, for the oracle; none: nobody says
	block           int            // tokens
	oracle          *foreseen      // nil: none
	machine         trial.Machine
	model           string
	wall            time.Duration
	sending         time.Duration // until the last request was sent
	cpu, sendingCPU time.Duration // of this process, in all and until then
	most            int           // requests in flight, seen
	missing         int
	interrupted     bool
	inFlightSamples []Sample
	progress        *progress
	requests        sync.WaitGroup
	slow            bool          // the last write took longer than inOrder
	slowAt          time.Duration // due time of that
}

// cut leaves out rows that are due too late.
func (r *replay) cut(limit time.Duration) {
	for i, at := range r.due {
		if at > limit {
			r.due, r.trace.Rows = r.due[:i], r.trace.Rows[:i]
			return
		}
	}
}

// open asks the endpoint and the fleet what they are.
func (r *replay) open(ctx context.Context) error {
	r.machine = trial.ThisMachine()
	r.client = newClient(r.o, "")
	var err error
	if r.model = r.o.Model; r.model == "" {
		if r.model, err = r.client.firstModel(ctx, r.o.URL); err != nil {
			r.client.close()
			return err
		}
	}
	if r.bodies, err = newBodies(r.o, r.model); err != nil {
		return err
	}
	r.client.url = r.o.URL + r.bodies.path()
	r.block, r.shapes = r.o.BlockSize, r.o.Shape.shapes()
	if r.o.Oracle != "" {
		r.fleet = newFleet(r.o.Oracle)
		if r.workers, err = r.fleet.begin(ctx, r.o.Reset); err != nil {
			r.close()
			return err
		}
		for i := range r.workers {
			if r.o.Shape.Workers == 0 {
				r.shapes = append(r.shapes, r.workers[i].shape())
			}
		}
	}
	if r.block == 0 && len(r.shapes) > 0 {
		r.block = r.shapes[0].BlockSize
	}
	if r.block <= 0 {
		r.block = defaultBlock
	}
	return nil
}

func (r *replay) close() {
	r.client.close()
	if r.fleet != nil {
		r.fleet.close()
	}
}

// foresee computes what depends on nothing that happens from here on.
func (r *replay) foresee(ctx context.Context, stderr io.Writer) {
	reuse, most := &endless{}, make([]int, len(r.trace.Rows))
	for i := range r.trace.Rows {
		most[i] = reuse.see(&r.bodies.prompts, &r.trace.Rows[i])
		r.recs[i].PrefixReuse = most[i] / r.block * r.block
	}
	if len(r.shapes) == 0 {
		return
	}
	p := newProgress(stderr)
	o := &oracle{
		shapes: r.shapes, rows: r.trace.Rows, due: r.due, bodies: r.bodies, reuse: reuse, most: most, serial: r.o.OneByOne,
		say: func(done, all int) { p.sayf("before the first request: oracle, %d of %d", done, all) },
	}
	found, err := o.run(ctx)
	p.end()
	if err != nil {
		r.notes = append(r.notes, fmt.Sprintf("no oracle: %v", err))
		return
	}
	if found.refused > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%d rows are too long for the fleet: the oracle reuses nothing of them", found.refused))
	}
	r.oracle = found
	for i, n := range found.cached {
		r.recs[i].Oracle = n
	}
}

// id is what a request is known by. It is the same in every replay of a row, so that
// two replays differ in nothing that a gateway could go by.
func (r *replay) id(i int) string {
	return "replay-" + strconv.FormatUint(r.o.Seed, 10) + "-" + strconv.Itoa(r.trace.Rows[i].N)
}

// play sends all requests and waits for their answers.
func (r *replay) play(ctx context.Context, stderr io.Writer) {
	r.progress = newProgress(stderr)
	began, cpu := time.Now(), numa.ProcessCPU()
	r.client.began = began
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	if r.fleet != nil {
		watchers.Go(func() { r.fleet.watch(watching, r.client.since) })
	}
	watchers.Go(func() { r.watch(watching) })
	pace(ctx, began, r.due, func(i int) { r.one(ctx, i) })
	r.sending, r.sendingCPU = time.Since(began), time.Duration(numa.ProcessCPU()-cpu)
	r.requests.Wait()
	r.wall = time.Since(began)
	r.cpu = time.Duration(numa.ProcessCPU() - cpu)
	r.interrupted = ctx.Err() != nil
	stop()
	watchers.Wait()
}

// one sends a request that is due.
func (r *replay) one(ctx context.Context, i int) {
	rec := &r.recs[i]
	if int(r.client.inFlight.Load()) >= r.o.InFlight {
		rec.Error = errDropped
		rec.done.Store(true)
		return
	}
	row := &r.trace.Rows[i]
	r.most = max(r.most, int(r.client.inFlight.Load())+1)
	b := r.bodies.of(row)
	r.client.tokens.Add(int64(max(row.Input, 1)))
	written := make(chan struct{})
	var once sync.Once
	wrote := func() { once.Do(func() { close(written) }) }
	r.client.inFlight.Add(1)
	if r.o.OneByOne {
		rec.Due = r.client.since()
		r.client.send(ctx, rec, r.id(i), b, wrote)
		r.client.inFlight.Add(-1)
		return
	}
	r.requests.Go(func() {
		defer wrote()
		defer r.client.inFlight.Add(-1)
		r.client.send(ctx, rec, r.id(i), b, wrote)
	})
	r.order(i, written)
}

// order waits a moment for a request to be with the kernel if the next one is due at
// the same instant; not behind one that took too long.
func (r *replay) order(i int, written <-chan struct{}) {
	next := i + 1
	if next >= len(r.due) || r.due[next]-r.due[i] > inOrder || r.slow && r.slowAt == r.due[i] {
		return
	}
	timer := time.NewTimer(inOrder)
	defer timer.Stop()
	select {
	case <-written:
		r.slow = false
	case <-timer.C:
		r.slow, r.slowAt = true, r.due[i]
	}
}

// watch notes once a second what is on the way, and says it.
func (r *replay) watch(ctx context.Context) {
	tick := time.NewTicker(fleetEvery / 2)
	defer tick.Stop()
	for n := 0; ; n++ {
		c := r.client
		done, flying, waiting := int(c.done.Load()), int(c.inFlight.Load()), int(c.waiting.Load())
		if n%2 == 0 {
			r.inFlightSamples = append(r.inFlightSamples, Sample{c.since(), Worker{Name: clientName, Requests: done + flying, Running: flying - waiting, Waiting: waiting}})
		}
		r.progress.sayf("%s, %s: %d of %d requests done, %d in flight, %d errors, ITL p50 %.1f ms, %.0f prompt tokens/s",
			c.since().Round(time.Second), r.last(), done, len(r.due), flying, c.failed.Load(), ms(c.gaps.quantile(0.5)), float64(c.tokens.Load())/max(c.since().Seconds(), 0.001))
		if r.o.Watch != nil {
			r.o.Watch(r.standing())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.progress.end()
			if r.o.Watch != nil {
				r.o.Watch(r.standing())
			}
			return
		}
	}
}

// last says when the last request is due.
func (r *replay) last() string {
	at := time.Duration(0)
	if n := len(r.due); n > 0 {
		at = r.due[n-1]
	}
	if at == math.MaxInt64 {
		return "the last is never due"
	}
	return "the last is due at " + at.Round(time.Second).String()
}

// result joins and sums up. Joining may go on for a moment after ctx ended.
func (r *replay) result(ctx context.Context) *Result {
	if r.fleet != nil {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
		r.fleet.look(asking, r.wall)
		cancel()
		var err error
		if r.missing, err = r.fleet.settle(context.WithoutCancel(ctx), r.recs, r.id); err == nil && r.fleet.failures > 0 {
			err = r.fleet.failure
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			r.notes = append(r.notes, fmt.Sprintf("the fleet did not answer %d times, the last time: %v", max(r.fleet.failures, 1), err))
		}
		if r.missing > 0 {
			r.notes = append(r.notes, fmt.Sprintf("the fleet says nothing of %d answered requests", r.missing))
		}
		if r.fleet.lost > 0 {
			r.notes = append(r.notes, fmt.Sprintf("%d requests fell out of the fleet's log unread", r.fleet.lost))
		}
	}
	out := &Result{Records: r.recs, Samples: r.inFlightSamples}
	if r.fleet != nil {
		out.Samples = append(out.Samples, r.fleet.samples...)
	}
	out.Summary = r.summary()
	return out
}
