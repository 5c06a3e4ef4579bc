// SPDX-License-Identifier: Apache-2.0

// Before: the registry's hooks, and a clock. After: workers' HTTP or gRPC servers, then
// the fleet's holders.

package load

import (
	"container/heap"
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
	"kindex/relay/load"
)

// Get reads a path of a worker's HTTP server: at most limit bytes.
type Get func(ctx context.Context, w *fleet.Worker, path string, limit int) (status int, body []byte, err error)

// Options say how workers are asked.
type Options struct {
	// Interval is between two questions to one worker, and how old a pushed reading may
	// be for the worker not to be asked. A worker's own Terms.LoadInterval overrules it.
	// 0: nobody is asked.
	Interval time.Duration
	Timeout  time.Duration // of one question
	AtOnce   int           // questions
	MaxBody  int64         // bytes of one answer
	TLS      *tls.Config   // to grpcs workers; nil: the system's authorities
	Get      Get
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{Interval: time.Second, Timeout: 2 * time.Second, AtOnce: 8, MaxBody: 4 << 20}
}

// The pace of who fails, chosen, not measured.
const (
	mostIntervals = 64          // between questions, at most
	mostPause     = time.Minute // or this, where that is less, but never under the interval
	lookDown      = time.Second // between looks at who is down, who is not asked
)

// Stats are a poller's counters.
type Stats struct {
	Asked    uint64 // questions
	Failed   uint64 // without a usable answer
	Readings uint64 // that became a holder's newest
	Spared   uint64 // questions that a pushed reading made needless
	Workers  int    // that may be asked
}

// Poller asks workers for their load.
//
// Concurrency: any goroutine.
type Poller struct {
	o    Options
	log  *slog.Logger
	ctx  context.Context
	end  context.CancelFunc
	busy sync.WaitGroup
	free chan struct{} // a token for each question that may begin

	mu    sync.Mutex
	queue queue // by due time
	byW   map[*fleet.Worker]*item
	kick  chan struct{} // the first of queue has changed

	asked, failed, readings, spared atomic.Uint64
}

// item is one worker.
type item struct {
	w     *fleet.Worker
	due   int64 // by fleet.Now
	at    int   // in the queue; -1: it is being asked
	gone  bool
	fails int
	meter *load.Meter // made when it is first asked; the asking goroutine's
	conn  closer      // of a gRPC worker; the same
}

// New returns a poller of nobody yet; nil options' parts are the defaults.
func New(o Options, log *slog.Logger) *Poller {
	def := DefaultOptions()
	if o.Timeout <= 0 {
		o.Timeout = def.Timeout
	}
	if o.AtOnce <= 0 {
		o.AtOnce = def.AtOnce
	}
	if o.MaxBody <= 0 {
		o.MaxBody = def.MaxBody
	}
	p := &Poller{o: o, log: log, free: make(chan struct{}, o.AtOnce), byW: map[*fleet.Worker]*item{}, kick: make(chan struct{}, 1)}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.busy.Go(p.run)
	return p
}

// interval is how often w is asked; 0: never.
func (p *Poller) interval(w *fleet.Worker) time.Duration {
	if d := w.Terms().LoadInterval; d > 0 {
		return d
	}
	return p.o.Interval
}

// Joined is the registry's hook: w is asked from now on, for the first time within a
// tenth of its interval.
func (p *Poller) Joined(w *fleet.Worker) {
	d := p.interval(w)
	if d <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byW[w] != nil {
		return
	}
	it := &item{w: w, due: fleet.Now() + rand.Int64N(int64(d)/10+1)}
	p.byW[w] = it
	p.push(it)
}

// Changed is the registry's hook: w's own interval may be another one now.
func (p *Poller) Changed(w *fleet.Worker) {
	d := p.interval(w)
	p.mu.Lock()
	it := p.byW[w]
	if it != nil && it.at >= 0 {
		if soon := fleet.Now() + int64(d); it.due > soon {
			heap.Remove(&p.queue, it.at)
			it.due = soon
			p.push(it)
		}
	}
	p.mu.Unlock()
	if it == nil {
		p.Joined(w)
	}
}

// Left is the registry's hook: w is asked no more, and what is under way counts for
// nothing.
func (p *Poller) Left(w *fleet.Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	it := p.byW[w]
	if it == nil {
		return
	}
	delete(p.byW, w)
	it.gone = true
	if it.at >= 0 {
		heap.Remove(&p.queue, it.at)
		it.close()
	}
}

// push makes it due as it says. The caller holds mu.
func (p *Poller) push(it *item) {
	heap.Push(&p.queue, it)
	if it.at == 0 {
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// run asks whoever is due, until the end.
func (p *Poller) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case p.free <- struct{}{}:
		case <-p.ctx.Done():
			return
		}
		it := p.next(timer)
		if it == nil {
			return
		}
		p.busy.Go(func() {
			defer func() { <-p.free }()
			p.one(it)
		})
	}
}

// next waits for who is due first and takes it out of the queue; nil: the end.
func (p *Poller) next(timer *time.Timer) *item {
	for {
		wait := time.Hour
		p.mu.Lock()
		if len(p.queue) > 0 {
			if wait = time.Duration(p.queue[0].due - fleet.Now()); wait <= 0 {
				it, ok := heap.Pop(&p.queue).(*item)
				p.mu.Unlock()
				if !ok {
					panic("BUG: load: the queue holds something else than items")
				}
				return it
			}
		}
		p.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-p.kick:
		case <-p.ctx.Done():
			return nil
		}
	}
}

// one asks it, where nothing was pushed, and makes it due again.
func (p *Poller) one(it *item) {
	d := max(p.interval(it.w), time.Millisecond)
	now := fleet.Now()
	due := now + int64(float64(d)*(0.9+rand.Float64()/5))
	if state := it.w.State(); state == fleet.NotReady || state == fleet.Failed {
		due = now + int64(min(d, lookDown)) // its health says when it can be asked again
		it.fails = 0
	} else if at, fresh := pushed(it.w, now, d); fresh {
		p.spared.Add(1)
		due = max(at+int64(d), now+int64(d)/10)
	} else if err := p.ask(it); err != nil {
		p.failed.Add(1)
		pause := min(d<<min(it.fails, 6), max(mostPause, d), d*mostIntervals)
		if it.fails++; it.fails == 1 || it.fails == 4 {
			p.log.Info("a worker does not tell its load", "worker", it.w.ID, "url", it.w.Spec.URL, "error", err)
		}
		due = fleet.Now() + int64(float64(pause)*(0.9+rand.Float64()/5))
	} else {
		it.fails = 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if it.gone || p.ctx.Err() != nil {
		it.close()
		return
	}
	it.due = due
	p.push(it)
}

// pushed reports whether all of w's holders were told by a push less than d ago, and
// when the oldest of these was so.
func pushed(w *fleet.Worker, now int64, d time.Duration) (at int64, fresh bool) {
	at = now
	for _, h := range w.Holders {
		r := h.Reading()
		if r == nil || !r.Pushed || now-r.At >= int64(d) {
			return 0, false
		}
		at = min(at, r.At)
	}
	return at, len(w.Holders) > 0
}

// ask asks once and tells the holders.
func (p *Poller) ask(it *item) error {
	if it.meter == nil {
		if err := p.open(it); err != nil {
			return err
		}
	}
	p.asked.Add(1)
	began := fleet.Now()
	if err := it.meter.Pull(p.ctx); err != nil {
		return err
	}
	p.mu.Lock()
	gone := it.gone
	p.mu.Unlock()
	if gone {
		return nil
	}
	it.w.Contact(began)
	now, clock := fleet.Now(), time.Now()
	for i, h := range it.w.Holders {
		r := it.meter.Rank(i)
		if r == nil {
			continue
		}
		at := now - int64(r.Age(clock))
		if old := h.Reading(); old != nil && at-old.At < int64(time.Millisecond) {
			continue // the same, or one that was pushed
		}
		next := reading(r, at, clock)
		h.StampAt(next, at)
		if h.SetReading(next) {
			p.readings.Add(1)
		}
	}
	return nil
}

// reading is r, which was so at at, as a holder's.
func reading(r *load.Reading, at int64, now time.Time) *fleet.Reading {
	f := &fleet.Reading{
		At:      at,
		Running: count(r.Running), Waiting: count(r.Waiting), WaitingUncached: count(r.WaitingUncached),
		Usage: share(r.Usage), ActiveUsage: share(r.ActiveUsage), Throughput: share(r.Throughput), MaxRunning: count(r.MaxRunning),
		PrefillPending: count(r.PrefillPending), SilenceMS: -1, ReportsSteps: r.ReportsSteps,
	}
	if d, ok := r.Silence(now); ok {
		f.SilenceMS = d.Milliseconds()
	}
	return f
}

func count(v load.Opt[uint32]) int64 {
	if !v.Known {
		return -1
	}
	return int64(v.Value)
}

func share(v load.Opt[float64]) float64 {
	if !v.Known {
		return -1
	}
	return v.Value
}

// Stats returns what was counted so far.
func (p *Poller) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Asked: p.asked.Load(), Failed: p.failed.Load(), Readings: p.readings.Load(), Spared: p.spared.Load(), Workers: len(p.byW)}
}

// Close ends all questions.
func (p *Poller) Close() {
	p.end()
	p.busy.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, it := range p.queue {
		it.close()
	}
	p.queue, p.byW = nil, nil
}
