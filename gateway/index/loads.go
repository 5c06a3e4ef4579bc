// SPDX-License-Identifier: Apache-2.0

// Before: an index host's stream of loads. After: the fleet's holders.

package index

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
	"kindex/internal/lookup"
)

// loads takes what an index tells of its ranks: loads become readings of the holders,
// what they hold their levels, and either a sign of life.
//
// Concurrency: one goroutine takes; any may ask.
type loads struct {
	idx      lookup.Index
	filter   lookup.Filter
	names    *names
	log      *slog.Logger
	readings atomic.Uint64

	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	table map[lookup.LoadName]*told
	up    bool
	why   string // not up

	whys    map[string]string // by model and instance, why a stream is not exact; at whysAt
	whysAt  time.Time
	reading bool // somebody asks for whys
}

// told is what was last told of a rank, and when.
type told struct {
	lookup.Load
	at     int64 // of receipt, by fleet.Now
	sample uint64
	taken  int64 // when its last record was so; minus one: none
}

// Paces of a stream of loads that breaks, chosen, not measured.
const (
	loadRetryFirst = 100 * time.Millisecond
	loadRetryMost  = 5 * time.Second
)

// Records closer together than that are one: of one sample whose age came with another
// delay, or without samples.
const (
	sameSample = 250 * time.Millisecond
	sameRecord = 10 * time.Millisecond
)

// startLoads begins to take idx's loads, of one group and tenant ("": default).
func startLoads(idx lookup.Index, group, tenant string, n *names, log *slog.Logger) *loads {
	ctx, cancel := context.WithCancel(context.Background())
	l := &loads{
		idx: idx, filter: lookup.Filter{Group: orElse(group, lookup.DefaultName), Tenant: orElse(tenant, lookup.DefaultName)},
		names: n, log: log, cancel: cancel, done: make(chan struct{}), table: map[lookup.LoadName]*told{},
	}
	go l.run(ctx)
	return l
}

func (l *loads) run(ctx context.Context) {
	defer close(l.done)
	pause := loadRetryFirst
	for ctx.Err() == nil {
		err := l.idx.Loads(ctx, l.filter, func(u *lookup.LoadUpdate) error {
			pause = loadRetryFirst
			l.take(u, fleet.Now())
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		l.down(err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, loadRetryMost)
	}
}

// take takes a step that came at now.
func (l *loads) take(u *lookup.LoadUpdate, now int64) {
	if u.Lost {
		l.down(nil)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up, l.why = true, ""
	if u.Whole {
		here := make(map[lookup.LoadName]bool, len(u.Loads))
		for i := range u.Loads {
			here[u.Loads[i].LoadName] = true
		}
		for n := range l.table {
			if !here[n] {
				l.forget(n)
			}
		}
	}
	for _, n := range u.Gone {
		l.forget(n)
	}
	for i := range u.Loads {
		load := &u.Loads[i]
		t := l.table[load.LoadName]
		if t == nil {
			t = &told{taken: -1}
			l.table[load.LoadName] = t
		}
		t.Load, t.at = *load, now
		l.tell(t)
	}
}

// forget takes back what was told of n. The caller holds mu.
func (l *loads) forget(n lookup.LoadName) {
	delete(l.table, n)
	if h := l.holder(&n); h != nil {
		h.SetHeld(-1)
	}
}

// holder returns whom n means, or nil.
func (l *loads) holder(n *lookup.LoadName) *fleet.Holder {
	w := l.names.find(n.Model, n.Instance)
	if w == nil || n.Rank < 0 || n.Rank >= len(w.Holders) {
		return nil
	}
	return w.Holders[n.Rank]
}

// tell makes t known to its holder. The caller holds mu.
func (l *loads) tell(t *told) {
	h := l.holder(&t.LoadName)
	if h == nil {
		return
	}
	h.SetHeld(int64(min(t.Held, 1<<62)))
	if t.EventAge >= 0 {
		h.Worker.Contact(max(t.at-int64(t.EventAge), 0))
	}
	if t.Record == nil {
		return
	}
	at := t.at - int64(t.Record.Age)
	if t.taken >= 0 && t.same(at) {
		return
	}
	t.taken, t.sample = at, t.Record.Sample
	r := reading(t.Record, at)
	h.StampAt(r, at)
	if h.SetReading(r) {
		l.readings.Add(1)
	}
	h.Worker.Contact(max(at, 0))
}

// same reports whether t's record, which was so at at, was told before.
func (t *told) same(at int64) bool {
	d := time.Duration(at - t.taken)
	if t.Record.Sample != 0 && t.Record.Sample == t.sample {
		return d.Abs() < sameSample
	}
	return d <= 0 || t.Record.Sample == 0 && d < sameRecord
}

// reading is r, which was so at at, as a holder's.
func reading(r *lookup.LoadRecord, at int64) *fleet.Reading {
	return &fleet.Reading{
		At: at, Pushed: true,
		Running: r.Running, Waiting: r.Waiting, WaitingUncached: r.WaitingUncached,
		Usage: r.Usage, ActiveUsage: r.ActiveUsage, Throughput: r.Throughput, MaxRunning: r.MaxRunning,
		PrefillPending: r.PrefillPending, SilenceMS: r.SilenceMS, ReportsSteps: r.ReportsSteps,
	}
}

// joined tells w's holders what was told before they were there.
func (l *loads) joined(w *fleet.Worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.each(w, func(_ lookup.LoadName, t *told) {
		t.taken = -1
		l.tell(t)
	})
}

// left forgets what w's holders were told.
func (l *loads) left(w *fleet.Worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range w.Holders {
		h.SetHeld(-1)
	}
}

// each calls fn with what was told of w's ranks. The caller holds mu.
func (l *loads) each(w *fleet.Worker, fn func(lookup.LoadName, *told)) {
	for _, m := range w.Spec.Models {
		for _, h := range w.Holders {
			n := lookup.LoadName{Instance: w.Spec.Instance, Model: m, Group: l.filter.Group, Tenant: l.filter.Tenant, Rank: h.Rank}
			if t := l.table[n]; t != nil {
				fn(n, t)
			}
		}
	}
}

// down notes that nothing is told now: levels are not known. Readings stay, and age.
func (l *loads) down(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.table {
		l.forget(n)
	}
	why := "the connection has broken"
	if err != nil {
		why = err.Error()
	}
	if l.up || l.why != why {
		l.log.Warn("the index tells no loads", "why", why)
	}
	l.up, l.why = false, why
}

// unready says whether hosts answer.
func (l *loads) unready() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up {
		return nil
	}
	return []string{"the index has not answered yet: " + orElse(l.why, "it is being connected to")}
}

// statuses of streams, the worst last.
var statuses = map[string]int{"": 0, "active": 1, "pending": 2, "degraded": 3, "failed": 4}

// stream says how w is followed.
func (l *loads) stream(w *fleet.Worker) Stream {
	s := Stream{}
	l.mu.Lock()
	l.each(w, func(_ lookup.LoadName, t *told) {
		s.Blocks += t.Held
		if statuses[t.Status] > statuses[s.Status] {
			s.Status = t.Status
		}
	})
	up, why := l.up, l.why
	l.mu.Unlock()
	switch {
	case s.Status == "" && up:
		return Stream{Status: "none", Why: "the index knows no such instance"}
	case s.Status == "":
		return Stream{Status: "pending", Why: orElse(why, "the index has not answered yet")}
	case s.Status != "active":
		s.Why = l.whyOf(w)
	}
	return s
}

// whysFor is how long what the index says of its streams is shown again.
const whysFor = time.Second

// whyOf returns why w's streams are not exact; "" while that is being asked for. It asks
// at most once a second.
func (l *loads) whyOf(w *fleet.Worker) string {
	l.mu.Lock()
	stale := time.Since(l.whysAt) > whysFor && !l.reading
	l.reading = l.reading || stale
	l.mu.Unlock()
	if stale {
		ctx, cancel := context.WithTimeout(context.Background(), whysFor)
		ws, err := l.idx.Workers(ctx, l.filter)
		cancel()
		l.mu.Lock()
		l.reading, l.whysAt = false, time.Now()
		if err == nil {
			l.whys = whys(ws)
		}
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range w.Spec.Models {
		if why := l.whys[m+"\x00"+w.Spec.Instance]; why != "" {
			return why
		}
	}
	return ""
}

func whys(ws []lookup.Worker) map[string]string {
	m := map[string]string{}
	for i := range ws {
		for k := range ws[i].Ranks {
			if why := ws[i].Ranks[k].LastError; why != "" {
				m[ws[i].Model+"\x00"+ws[i].Instance] = why
				break
			}
		}
	}
	return m
}

// count adds what l has counted to s.
func (l *loads) count(s *Stats) {
	s.Readings = l.readings.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.table {
		s.Blocks += t.Held
	}
}

// close ends the stream.
func (l *loads) close() {
	l.cancel()
	<-l.done
}

// errNoEvents is why a worker is followed no longer.
var errNoEvents = errors.New("it serves no event stream")
