// SPDX-License-Identifier: Apache-2.0

// Before: the gateway, which runs it beside its servers. After: the overlay, and the
// index once more.

package route

import (
	"context"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/overlay"
	"kindex/internal/lookup"
)

// pace is how often a router looks after what is over.
const pace = 100 * time.Millisecond

// claims bounds the answers that are held against the index in one go.
const claims = 64

// Run looks after what requests left behind, until ctx ends: predictions that are over,
// and answers that told of more than the index knew, for which it is asked again.
func (r *Router) Run(ctx context.Context) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var a lookup.Answer
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if r.o.Overlay != nil {
			r.o.Overlay.Sweep(fleet.Now())
			r.confirm(ctx, &a)
		}
	}
}

// alarmPace is how often it is looked whether lookups match anybody.
const alarmPace = 100 * pace

// Alarm tells in the log where the index names nobody of the fleet, until ctx ends. A
// router that shares its overlay with one that runs needs this alone.
func (r *Router) Alarm(ctx context.Context) {
	tick := time.NewTicker(alarmPace)
	defer tick.Stop()
	alarm := alarm{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			alarm.look(r)
		}
	}
}

// confirm asks the index again for what answers told of and it had not.
func (r *Router) confirm(ctx context.Context, a *lookup.Answer) {
	for range claims {
		c := r.o.Overlay.Due(fleet.Now())
		if c == nil {
			return
		}
		indexed, err := r.holds(ctx, c, a)
		if err == nil {
			r.o.Overlay.Settle(c, indexed, fleet.Now())
		}
	}
}

// holds returns how many blocks of a claim the index has of its holder.
func (r *Router) holds(ctx context.Context, c *overlay.Claimed, a *lookup.Answer) (uint32, error) {
	if r.o.Index == nil {
		return 0, nil
	}
	w := c.Holder.Worker
	q := lookup.Query{
		Model: c.Names.Model, Group: r.o.Group, Tenant: r.o.Tenant, LoRA: c.Names.LoRA, Salt: c.Names.Salt,
		Hashes: c.Hashes, Only: []string{w.Spec.Instance},
	}
	if err := r.o.Index.Lookup(ctx, &q, a); err != nil {
		return 0, err
	}
	for i := range a.Matches {
		if m := &a.Matches[i]; m.Rank == c.Holder.Rank && m.Instance == w.Spec.Instance {
			return m.Any, nil
		}
	}
	return 0, nil
}

// alarm tells of lookups that never match anybody of the fleet although the index
// answers: workers that the index has by other names, which nothing else shows.
type alarm struct {
	last    Stats
	ringing bool
}

// least is how many lookups in a row say something.
const least = 20

func (l *alarm) look(r *Router) {
	now := r.Stats()
	nobody, matched := now.MatchedNobody-l.last.MatchedNobody, now.Matched-l.last.Matched
	switch {
	case nobody >= least && matched == 0 && !l.ringing:
		l.ringing = true
		r.o.Log.Warn("the index names only instances that no worker has: its instance ids must be those of the workers' registrations (instance=)",
			"lookups", nobody)
	case matched > 0 && l.ringing:
		l.ringing = false
		r.o.Log.Info("the index names workers of the fleet again")
	}
	l.last = now
}
