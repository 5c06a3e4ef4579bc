// SPDX-License-Identifier: Apache-2.0

// Before: engines' own servers, for those workers whose load nobody pushes. After: the
// fleet's holders.

package gateway

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"kindex/gateway/fleet"
	"kindex/relay/load"
)

// Times of the poller. Chosen, not measured.
const (
	pollLook  = 500 * time.Millisecond // between looks at who is to be asked
	pollGrace = time.Second            // what pushes its load has begun to by then
	pushStale = 5 * time.Second        // what pushed its load, and has not for so long, is asked
)

// poller asks workers for their load that do not push it, by a relay's meter for each.
//
// Concurrency: look is called by one goroutine.
type poller struct {
	every  time.Duration
	log    *slog.Logger
	meters map[*fleet.Worker]*polled
	ended  sync.WaitGroup
}

// polled is one worker that is asked.
type polled struct {
	meter  *load.Meter
	cancel context.CancelFunc
	seen   []uint64 // samples taken of each rank
	joined int64    // when it was first looked at, by fleet.Now
}

func newPoller(every time.Duration, log *slog.Logger) *poller {
	return &poller{every: every, log: log, meters: map[*fleet.Worker]*polled{}}
}

// run looks after all workers that all returns, until ctx ends.
func (p *poller) run(ctx context.Context, all func() []*fleet.Worker) {
	tick := time.NewTicker(min(pollLook, p.every))
	defer tick.Stop()
	defer p.ended.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.look(ctx, all(), fleet.Now())
	}
}

// look begins and ends to ask, and takes what was answered.
func (p *poller) look(ctx context.Context, all []*fleet.Worker, now int64) {
	here := make(map[*fleet.Worker]bool, len(all))
	for _, w := range all {
		if w.Spec.GRPC() {
			continue // its service pushes
		}
		here[w] = true
		m := p.meters[w]
		if m == nil {
			m = &polled{joined: now, seen: make([]uint64, len(w.Holders))}
			p.meters[w] = m
		}
		switch wanted := p.wanted(w, m, now); {
		case wanted && m.meter == nil:
			p.begin(ctx, w, m)
		case !wanted && m.meter != nil:
			m.end()
		}
		m.take(w, time.Now(), now)
	}
	for w, m := range p.meters {
		if !here[w] {
			m.end()
			delete(p.meters, w)
		}
	}
}

// wanted reports whether w is to be asked: nothing pushes, or has for a while.
func (p *poller) wanted(w *fleet.Worker, m *polled, now int64) bool {
	if now-m.joined < int64(pollGrace) {
		return false
	}
	for _, h := range w.Holders {
		r := h.Reading()
		if r == nil || !r.Pushed || now-r.At > int64(pushStale) {
			return true
		}
	}
	return false
}

func (p *poller) begin(ctx context.Context, w *fleet.Worker, m *polled) {
	every := p.every
	if d := w.Terms().LoadInterval; d > 0 {
		every = d
	}
	engine := w.Spec.Engine
	if engine == "" {
		engine = fleet.VLLM
	}
	meter, err := load.New(load.Config{Engine: engine, Ranks: len(w.Holders), Metrics: w.Spec.URL, Token: w.Terms().APIKey, Interval: every})
	if err != nil {
		p.log.Debug("a worker's load is not asked for", "worker", w.Spec.URL, "error", err)
		m.joined = fleet.Now() // tried again after the grace
		return
	}
	ctx, m.cancel = context.WithCancel(ctx)
	m.meter = meter
	p.ended.Go(func() { meter.Run(ctx) })
}

func (m *polled) end() {
	if m.cancel != nil {
		m.cancel()
	}
	m.meter, m.cancel = nil, nil
}

// take hands what was answered since the last look to w's holders. Both times are now.
func (m *polled) take(w *fleet.Worker, wall time.Time, now int64) {
	if m.meter == nil {
		return
	}
	for i, h := range w.Holders {
		r := m.meter.Rank(i)
		if r == nil || r.Sample == m.seen[i] {
			continue
		}
		m.seen[i] = r.Sample
		at := now - int64(r.Age(wall))
		asked := pulledReading(r, at, wall)
		h.StampAt(asked, at)
		h.SetReading(asked)
		w.Contact(max(at, 0))
	}
}

// pulledReading is r, which was so at at, as a holder's.
func pulledReading(r *load.Reading, at int64, wall time.Time) *fleet.Reading {
	whole := func(o load.Opt[uint32]) int64 {
		if !o.Known {
			return -1
		}
		return int64(o.Value)
	}
	share := func(o load.Opt[float64]) float64 {
		if !o.Known {
			return -1
		}
		return o.Value
	}
	silent := int64(-1)
	if d, ok := r.Silence(wall); ok {
		silent = d.Milliseconds()
	}
	return &fleet.Reading{
		At: at, Running: whole(r.Running), Waiting: whole(r.Waiting), WaitingUncached: whole(r.WaitingUncached),
		Usage: share(r.Usage), ActiveUsage: share(r.ActiveUsage), Throughput: share(r.Throughput),
		MaxRunning: whole(r.MaxRunning), PrefillPending: whole(r.PrefillPending), SilenceMS: silent, ReportsSteps: r.ReportsSteps,
	}
}
