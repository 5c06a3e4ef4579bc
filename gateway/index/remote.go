// SPDX-License-Identifier: Apache-2.0

// Before: the router's lookups. After: indexclient, to hosts elsewhere.

package index

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"kindex/gateway/fleet"
	"kindex/indexclient"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// remote asks hosts elsewhere, behind a guard.
type remote struct {
	o      *Options
	client indexclient.Client
	guard  guard
	names  names
	loads  *loads

	mu      sync.Mutex
	partial map[string]uint64
	twice   uint64
	asked   string // a model that was asked for, for trials
}

func openRemote(ctx context.Context, o *Options, log *slog.Logger) (Index, error) {
	r := &remote{o: o}
	timeout := o.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	c, err := indexclient.Dial(ctx, o.Target, indexclient.Options{
		Timeout: timeout, Partial: true, TLS: o.TLS, Token: o.Token,
	})
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	r.client = c
	r.guard.trial, r.guard.limit = r.trial, timeout
	r.loads = startLoads(c, o.Group, o.Tenant, &r.names, log)
	return r, nil
}

// trial asks for a block that nobody has: the whole way, for little.
func (r *remote) trial(ctx context.Context) error {
	r.mu.Lock()
	model := r.asked
	r.mu.Unlock()
	q := lookup.Query{Model: model, Group: r.o.Group, Tenant: r.o.Tenant, Hashes: []kv.ContentHash{1}}
	var a lookup.Answer
	return r.client.Lookup(ctx, &q, &a)
}

// Lookup implements [Index].
func (r *remote) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	if !r.guard.open() {
		a.Reset()
		return ErrSkipped
	}
	asked := q
	if q.Group == "" && r.o.Group != "" || q.Tenant == "" && r.o.Tenant != "" {
		own := *q
		own.Group, own.Tenant = orElse(q.Group, r.o.Group), orElse(q.Tenant, r.o.Tenant)
		asked = &own
	}
	began := fleet.Now()
	err := r.within(ctx, asked, a)
	r.guard.ended(ctx, began, err)
	switch {
	case err != nil && r.guard.paused():
		r.mu.Lock()
		r.asked = q.Model
		r.mu.Unlock()
	case err == nil && (len(a.Missing) > 0 || a.Twice > 0):
		r.note(a)
	}
	return err
}

// within asks with the client's own timeout where ctx has no end, which costs no timer
// over shared memory.
func (r *remote) within(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	if _, has := ctx.Deadline(); !has {
		return r.client.Lookup(ctx, q, a)
	}
	ctx, cancel := context.WithTimeout(ctx, r.guard.limit)
	defer cancel()
	return r.client.Lookup(ctx, q, a)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// note counts what an answer lacks.
func (r *remote) note(a *lookup.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.partial == nil {
		r.partial = map[string]uint64{}
	}
	for _, host := range a.Missing { // of the target: bounded
		r.partial[host]++
	}
	r.twice += uint64(a.Twice)
}

// Joined implements [Index].
func (r *remote) Joined(w *fleet.Worker) {
	r.names.add(w)
	r.loads.joined(w)
}

// Left implements [Index].
func (r *remote) Left(w *fleet.Worker) {
	r.names.remove(w)
	r.loads.left(w)
}

// Unready implements [Index].
func (r *remote) Unready() []string {
	if r.guard.paused() {
		return []string{"the index at " + r.o.Target + " does not answer"}
	}
	return r.loads.unready()
}

// Stream implements [Index].
func (r *remote) Stream(w *fleet.Worker) Stream { return r.loads.stream(w) }

// Stats implements [Index].
func (r *remote) Stats() Stats {
	s := r.guard.stats()
	r.loads.count(&s)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Twice = r.twice
	for host, n := range r.partial {
		if s.Partial == nil {
			s.Partial = make(map[string]uint64, len(r.partial))
		}
		s.Partial[host] = n
	}
	return s
}

// Close implements [Index].
func (r *remote) Close() error {
	r.loads.close()
	r.guard.close()
	return errors.Join(r.client.Close())
}
