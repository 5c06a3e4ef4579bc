// SPDX-License-Identifier: Apache-2.0

// Before: HTTP, gRPC, a program that embeds the host. After: the registry.

package indexsrv

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"kindex/internal/lookup"
	"kindex/relay/feed"
)

// watchPause is the least time between two steps of a watch: what changes
// meanwhile comes as one.
const watchPause = 10 * time.Millisecond

var _ lookup.Index = (*Host)(nil)

var errStopping = refuse(ErrUnavailable, "this host is stopping")

// Workers implements [lookup.Index]. It waits for each stream to be between two
// batches. The error is the context's end.
func (h *Host) Workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error) {
	if err := lookup.OfContext(ctx); err != nil {
		return nil, err
	}
	if err := f.Check(); err != nil {
		return nil, err
	}
	ws := h.reg.workers(chosen(f))
	out := make([]lookup.Worker, 0, len(ws))
	for _, w := range ws {
		out = append(out, w.show())
	}
	return out, nil
}

// chosen returns which models f chooses.
func chosen(f lookup.Filter) func(modelName) bool {
	return func(n modelName) bool {
		return (f.Model == "" || n.model == f.Model) && (f.Group == "" || n.group == f.Group) && (f.Tenant == "" || n.tenant == f.Tenant)
	}
}

// show describes w now.
func (w *worker) show() lookup.Worker {
	n := w.model.name
	d := lookup.Worker{
		Instance: w.id.text, Number: w.id.number, Model: n.model, Group: n.group, Tenant: n.tenant,
		BlockSize: w.model.blockSize, Source: sourceZMQ,
	}
	worst := feed.StateActive
	for _, r := range *w.ranks.Load() {
		st := r.stream.status()
		shown := lookup.Rank{
			Rank: r.number, Endpoint: r.cfg.Endpoint, ReplayEndpoint: r.cfg.ReplayEndpoint,
			Status: st.State.String(), LastError: st.LastError,
			Epoch: st.Epoch, HasSeq: st.HasSeq, LastSeq: st.LastSeq,
			Gaps: st.Gaps, Recovered: st.Recovered, Lost: st.Lost, Restarts: st.Restarts, Duplicates: st.Duplicates,
			Snapshots: st.Snapshots, Resets: st.Resets, RelayRanks: st.RelayRanks,
			Resumed: st.Resumed, Cold: st.Cold,
			Orphans: st.Orphans, Memberships: st.Memberships, Dropped: st.Dropped,
			Shard: r.shard, Node: r.node,
			Held: st.HeldBatches, EngineTime: st.EngineTime,
		}
		if !st.LastBatch.IsZero() {
			shown.LastBatch = float64(st.LastBatch.UnixNano()) / 1e9
		}
		d.Ranks = append(d.Ranks, shown)
		worst = max(worst, st.State)
		if r.cfg.Relay != nil {
			d.Source = sourceRelay
		}
	}
	d.Status = worst.String()
	return d
}

// tableChanges tells watchers that a worker came or went, or that a stream's
// standing changed.
//
// Concurrency: any goroutine; note may be called with a stream's lock held.
type tableChanges struct {
	mu      sync.Mutex
	version uint64
	changed chan struct{} // closed at the next change; nil: nobody waits
}

// note records a change.
func (c *tableChanges) note() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// next returns the version now and what is closed at the next change.
func (c *tableChanges) next() (uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.version, c.changed
}

// Watch implements [lookup.Index]. It ends with ErrUnavailable when the host stops.
func (h *Host) Watch(ctx context.Context, f lookup.Filter, fn func(*lookup.Update) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	t := tableWatch{want: chosen(f), seen: map[lookup.WorkerName]seenWorker{}}
	for whole := true; ; whole = false {
		version, changed := h.reg.changes.next()
		u := t.step(h.reg)
		select {
		case <-h.closing: // what it takes out is not gone from the fleet
			return errStopping
		default:
		}
		u.Epoch, u.Version, u.Whole = h.epoch, version, whole
		if whole || len(u.Workers)+len(u.Gone) > 0 {
			if err := fn(u); err != nil {
				return err
			}
		}
		if err := h.pause(ctx, changed); err != nil {
			return err
		}
	}
}

// pause waits for a change, and then a little for those that come with it.
func (h *Host) pause(ctx context.Context, changed <-chan struct{}) error {
	var more <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return lookup.OfContext(ctx)
		case <-h.closing:
			return errStopping
		case <-changed:
			t := time.NewTimer(watchPause)
			defer t.Stop()
			changed, more = nil, t.C
		case <-more:
			return nil
		}
	}
}

// tableWatch is what one watcher was told.
type tableWatch struct {
	want func(modelName) bool
	seen map[lookup.WorkerName]seenWorker
}

// seenWorker is a worker as it was told.
type seenWorker struct {
	order  uint64
	ranks  *[]*rank
	states string
}

// step returns what t's watcher does not know yet.
func (t *tableWatch) step(g *registry) *lookup.Update {
	u := &lookup.Update{}
	here := map[lookup.WorkerName]bool{}
	var states []byte
	for _, w := range g.workers(t.want) {
		n := w.model.name
		name := lookup.WorkerName{Instance: w.id.text, Model: n.model, Group: n.group, Tenant: n.tenant}
		ranks := w.ranks.Load()
		if len(*ranks) == 0 {
			continue // on its way out
		}
		here[name] = true
		states = states[:0]
		for _, r := range *ranks {
			states = append(states, byte(r.stream.current()))
		}
		was, ok := t.seen[name]
		if ok && was.order == w.order && was.ranks == ranks && was.states == string(states) {
			continue
		}
		t.seen[name] = seenWorker{order: w.order, ranks: ranks, states: string(states)}
		u.Workers = append(u.Workers, w.show())
	}
	for name := range t.seen {
		if !here[name] {
			u.Gone = append(u.Gone, name)
			delete(t.seen, name)
		}
	}
	slices.SortFunc(u.Gone, func(a, b lookup.WorkerName) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Instance, b.Instance))
	})
	return u
}
