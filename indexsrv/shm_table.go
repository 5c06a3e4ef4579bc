// SPDX-License-Identifier: Apache-2.0

// Before: the registry. After: the clients of shared memory, who make holder numbers
// of instances and back.

package indexsrv

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	"kindex/internal/shm"
)

// shmTable is the registry as the clients of shared memory are told it.
type shmTable struct {
	reg *registry

	mu   sync.Mutex
	last *shm.Table
}

// Table implements [shm.Tables].
func (t *shmTable) Table() (*shm.Table, <-chan struct{}) {
	_, changed := t.reg.changes.next() // before it is looked at: what comes after is told
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil || t.last.Version != t.reg.members.Load() {
		t.last = t.reg.shmTable()
	}
	return t.last, changed
}

// shmTable describes all registered ranks.
func (g *registry) shmTable() *shm.Table {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &shm.Table{Version: g.members.Load()}
	for n, m := range *g.models.Load() {
		t.Models = append(t.Models, shm.Model{Number: m.number, Tenant: n.tenant, Name: n.model, Group: n.group, BlockSize: m.blockSize})
		for _, w := range m.workers {
			for _, r := range *w.ranks.Load() {
				t.Holders = append(t.Holders, shm.Holder{
					Holder: uint32(r.holder), Rank: r.number, Model: m.number, Order: w.order, Instance: w.id.text, Number: w.id.number,
				})
			}
		}
	}
	slices.SortFunc(t.Models, func(a, b shm.Model) int { return cmp.Compare(a.Number, b.Number) })
	slices.SortFunc(t.Holders, func(a, b shm.Holder) int { return cmp.Compare(a.Holder, b.Holder) })
	return t
}

// event logs who comes and goes.
func (p *shmPart) event(e shm.Event) {
	level, what := slog.LevelInfo, ""
	switch e.Kind {
	case shm.EventDenied:
		who := actor{who: "uid:" + strconv.FormatUint(uint64(e.Who.UID), 10), remote: e.Who.String(), via: "shm"}
		p.h.gate.audit.refused(who, p.h.cfg.Shm.Listen, reasonPeer, "it is not on shm-allow")
		return
	case shm.EventJoined:
		what = "joined"
	case shm.EventLeft:
		what = "left"
	case shm.EventRefused:
		level, what = slog.LevelWarn, "refused"
	case shm.EventDropped:
		level, what = slog.LevelWarn, "dropped"
	}
	attrs := []slog.Attr{
		slog.String("socket", p.h.cfg.Shm.Listen), slog.Uint64("uid", uint64(e.Who.UID)), slog.Int("pid", int(e.Who.PID)),
	}
	if e.Why != nil {
		attrs = append(attrs, slog.Any("why", e.Why))
	}
	p.h.log.LogAttrs(context.Background(), level, "client of shared memory "+what, attrs...)
}

// Ask implements [shm.Asker]: the workers, once or with their changes, or their loads.
func (p *shmPart) Ask(ctx context.Context, body []byte, say func([]byte) error) (int, error) {
	var q shm.WorkersQuestion
	err := json.Unmarshal(body, &q)
	if err != nil {
		err = refuse(ErrInvalid, "the question cannot be read: %v", err)
		return kindNumber(err), err
	}
	tell := func(v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return say(b)
	}
	f := lookup.Filter{Model: q.Model, Group: q.Group, Tenant: q.Tenant}
	switch {
	case q.Loads:
		var enc lookuppb.LoadEncoder
		err = p.h.Loads(ctx, f, func(u *lookup.LoadUpdate) error { return enc.Each(u, say) })
	case q.Watch:
		err = p.h.Watch(ctx, f, func(u *lookup.Update) error { return tell(u) })
	default:
		var ws []lookup.Worker
		if ws, err = p.h.Workers(ctx, f); err == nil {
			err = tell(&lookup.Update{Epoch: p.h.epoch, Whole: true, Workers: ws})
		}
	}
	return kindNumber(err), err
}

// kindNumber is err's kind as a number of the socket: 0 where it has none.
func kindNumber(err error) int {
	if err == nil {
		return 0
	}
	kind := lookup.KindOf(err)
	return slices.Index(lookup.Kinds(), kind) + 1
}
