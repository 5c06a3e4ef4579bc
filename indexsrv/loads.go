// SPDX-License-Identifier: Apache-2.0

// Before: gRPC, shared memory's socket, a program that embeds the host. After: what
// relays' records and the streams' sinks left at each rank.

package indexsrv

import (
	"cmp"
	"context"
	"slices"
	"time"

	"kindex/internal/lookup"
	"kindex/relay/client"
	"kindex/relay/feed"
)

// Paces of a watcher of loads. Records come about every 100 ms of each engine: what
// comes within loadPause is told together. What a rank holds changes with every batch
// and is told at each turn of loadTick.
const (
	loadPause = 20 * time.Millisecond
	loadTick  = time.Second
)

// Following says of a worker's streams what a program that embeds the host may want to
// mend.
type Following struct {
	// Unserved: the server that its ranks' events were to come from serves no contract
	// of event streams.
	Unserved bool
	// BlockSize is that of the engine's blocks where it is another one than registered;
	// 0: it is not.
	BlockSize int
	Held      uint64 // blocks, all ranks
}

// Following describes a registered worker of the default group; ok is false where there
// is none.
func (h *Host) Following(model, instance string) (f Following, ok bool) {
	h.reg.mu.Lock()
	defer h.reg.mu.Unlock()
	m := h.reg.find(makeModelName("", model, ""))
	if m == nil || m.workers[instance] == nil {
		return f, false
	}
	for _, r := range *m.workers[instance].ranks.Load() {
		f.Held += r.stream.sink.held.Load()
		if n := r.stream.sink.otherSize.Load(); n != 0 {
			f.BlockSize = int(n)
		}
		if r.cfg.Relay != nil && r.cfg.Relay.unserved() {
			f.Unserved = true
		}
	}
	return f, true
}

// loadRecord is what was last said of a rank's load. It is immutable.
type loadRecord struct {
	taken time.Time // when it was so, by this host's clock
	said  lookup.LoadRecord
}

// newLoadRecord reads l, which came at now. Zeros that the contract calls unknown are.
func newLoadRecord(l *client.Load, now time.Time) *loadRecord {
	r := &loadRecord{taken: now.Add(-time.Duration(l.GetAgeMs()) * time.Millisecond)}
	r.said = lookup.LoadRecord{
		Sample: l.GetSample(), Running: int64(l.GetRunningRequests()), Waiting: int64(l.GetWaitingRequests()), Usage: l.GetTokenUsage(),
		WaitingUncached: -1, ActiveUsage: -1, Throughput: -1, MaxRunning: -1, PrefillPending: -1, SilenceMS: -1,
		ReportsSteps: l.GetEngineReportsSteps(),
	}
	s := &r.said
	optional(&s.WaitingUncached, l.WaitingUncachedTokens)
	optional(&s.PrefillPending, l.PrefillPendingTokens)
	optional(&s.SilenceMS, l.EngineSilenceMs)
	if v := l.ActiveTokenUsage; v != nil {
		s.ActiveUsage = *v
	}
	if v := l.GetGenThroughput(); v > 0 {
		s.Throughput = v
	}
	if n := l.GetMaxRunningRequests(); n > 0 {
		s.MaxRunning = int64(n)
	}
	return r
}

func optional(to *int64, v *uint32) {
	if v != nil {
		*to = int64(*v)
	}
}

// at returns the record as it is told at now.
func (r *loadRecord) at(now time.Time) *lookup.LoadRecord {
	if r == nil {
		return nil
	}
	said := r.said
	said.Age = max(now.Sub(r.taken), 0)
	return &said
}

var _ client.LoadHandler = (*relayed)(nil)

// Load implements [client.LoadHandler].
func (r *relayed) Load(l *client.Load) {
	r.load.Store(newLoadRecord(l, time.Now()))
	if r.hooks.Load != nil {
		r.hooks.Load()
	}
}

// record returns what was last said of the stream's load; nil: nothing. Lock-free.
func (s *stream) record() *loadRecord {
	if s.relayed == nil {
		return nil
	}
	return s.relayed.load.Load()
}

// Loads implements [lookup.Index]. It ends with ErrUnavailable when the host stops.
func (h *Host) Loads(ctx context.Context, f lookup.Filter, fn func(*lookup.LoadUpdate) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	w := loadWatch{want: chosen(f), seen: map[*rank]seenLoad{}}
	tick := time.NewTicker(loadTick)
	defer tick.Stop()
	for whole, all := true, true; ; whole = false {
		_, changed := h.reg.loads.next()
		_, members := h.reg.changes.next()
		u := w.step(h.reg, time.Now(), all)
		select {
		case <-h.closing: // what it takes out is not gone from the fleet
			return errStopping
		default:
		}
		if u.Whole = whole; whole || len(u.Loads)+len(u.Gone) > 0 {
			if err := fn(u); err != nil {
				return err
			}
		}
		var err error
		if all, err = h.pauseLoads(ctx, changed, members, tick.C); err != nil {
			return err
		}
	}
}

// pauseLoads waits for a change, and then for those that come with it. all reports
// whether what changes with every batch is due.
func (h *Host) pauseLoads(ctx context.Context, changed, members <-chan struct{}, tick <-chan time.Time) (all bool, err error) {
	var more <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false, lookup.OfContext(ctx)
		case <-h.closing:
			return false, errStopping
		case <-tick:
			return true, nil
		case <-changed:
			changed = nil
		case <-members:
			members = nil
		case <-more:
			return false, nil
		}
		if more == nil {
			t := time.NewTimer(loadPause)
			defer t.Stop()
			more = t.C
		}
	}
}

// loadWatch is what one watcher of loads was told.
type loadWatch struct {
	want func(modelName) bool
	seen map[*rank]seenLoad
	turn uint64
}

// seenLoad is a rank as it was told.
type seenLoad struct {
	name    lookup.LoadName
	record  *loadRecord
	state   feed.State
	held    uint64
	applied int64
	turn    uint64 // that it was there in
}

// step returns what w's watcher does not know yet; unless all is set, of what changes
// with every batch only of ranks that have something else to tell.
func (w *loadWatch) step(g *registry, now time.Time, all bool) *lookup.LoadUpdate {
	u := &lookup.LoadUpdate{}
	w.turn++
	for _, r := range g.ranksOf(w.want) {
		old, ok := w.seen[r]
		is := seenLoad{
			name: old.name, record: r.stream.record(), state: r.stream.current(),
			held: r.stream.sink.held.Load(), applied: r.stream.sink.applied.Load(), turn: w.turn,
		}
		if !ok {
			n := r.worker.model.name
			is.name = lookup.LoadName{Instance: r.worker.id.text, Model: n.model, Group: n.group, Tenant: n.tenant, Rank: r.number}
		}
		if ok && old.record == is.record && old.state == is.state && (!all || old.held == is.held && old.applied == is.applied) {
			old.turn = w.turn
			w.seen[r] = old
			continue
		}
		w.seen[r] = is
		l := lookup.Load{LoadName: is.name, Status: is.state.String(), Held: is.held, EventAge: -1, Record: is.record.at(now)}
		if is.applied != 0 {
			l.EventAge = max(time.Duration(now.UnixNano()-is.applied), 0)
		}
		u.Loads = append(u.Loads, l)
	}
	again := map[lookup.LoadName]bool{}
	for i := range u.Loads {
		again[u.Loads[i].LoadName] = true
	}
	for r, s := range w.seen {
		if s.turn == w.turn {
			continue
		}
		delete(w.seen, r)
		if !again[s.name] { // else another one has its name
			u.Gone = append(u.Gone, s.name)
		}
	}
	slices.SortFunc(u.Gone, compareLoadNames)
	return u
}

func compareLoadNames(a, b lookup.LoadName) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Rank, b.Rank))
}

// ranksOf returns all ranks of the models that want accepts, in no order.
func (g *registry) ranksOf(want func(modelName) bool) []*rank {
	g.mu.Lock()
	defer g.mu.Unlock()
	rs := make([]*rank, 0, g.streams)
	for n, m := range *g.models.Load() {
		if !want(n) {
			continue
		}
		for _, w := range m.workers {
			rs = append(rs, *w.ranks.Load()...)
		}
	}
	return rs
}
