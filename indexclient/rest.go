// SPDX-License-Identifier: Apache-2.0

// Before: a union of parts, of which one fails. After: the part, asked aside whether it
// answers again.

package indexclient

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// restAfter is how many lookups in a row a part fails until it is left out. Chosen, not
// measured.
const restAfter = 3

// errResting is why a part is not in an answer that was not asked.
var errResting = lookup.Refuse(ErrUnavailable, "it is not asked for a while: it has just failed several lookups")

// rest leaves a part out of partial answers that fails, so that a silent one does not
// cost each caller his whole time. The caller pays for no trial: a question of the
// union's own tells whether the part answers again.
//
// Concurrency: any goroutine.
type rest struct {
	part *replicas
	o    *Options

	failed atomic.Int64 // lookups in a row
	until  atomic.Int64 // Unix ns; 0: it is asked
	trying atomic.Bool

	mu     sync.Mutex
	rests  int
	trials sync.WaitGroup
	end    context.CancelFunc // of a trial; nil: there is none; guarded by mu
	closed bool               // guarded by mu
}

// resting reports whether the part is left out of the answer to q now.
func (r *rest) resting(q *lookup.Query) bool {
	until := r.until.Load()
	if until == 0 {
		return false
	}
	if time.Now().UnixNano() >= until && !r.trying.Swap(true) {
		r.try(q.Model, q.Group, q.Tenant)
	}
	return true
}

// ended takes how a lookup of the part ended.
func (r *rest) ended(err error) {
	switch {
	case err == nil, errors.Is(err, ErrNotFound), ofRequest(err):
		if r.failed.Load() != 0 {
			r.failed.Store(0)
		}
		return
	case canceled(err):
		return
	}
	if r.failed.Add(1) < restAfter {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.Load() == 0 {
		r.begin()
	}
}

// begin begins a rest, longer than the one before. The caller holds mu.
func (r *rest) begin() {
	r.until.Store(time.Now().Add(r.o.delay(r.rests)).UnixNano())
	r.rests = min(r.rests+1, 20)
}

// try asks the part for a block that nobody has, aside.
func (r *rest) try(model, group, tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.o.Timeout)
	r.end = cancel
	r.trials.Go(func() {
		defer r.trying.Store(false)
		defer cancel()
		q := lookup.Query{Model: model, Group: group, Tenant: tenant, Hashes: []kv.ContentHash{1}}
		err := r.part.Lookup(ctx, &q, new(lookup.Answer))
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil && !errors.Is(err, ErrNotFound) && !ofRequest(err) {
			r.begin()
			return
		}
		r.rests = 0
		r.failed.Store(restAfter - 1) // the next failure begins another one
		r.until.Store(0)
	})
}

// close ends trials; the part may be closed already.
func (r *rest) close() {
	r.mu.Lock()
	r.closed = true
	if r.end != nil {
		r.end()
	}
	r.mu.Unlock()
	r.trials.Wait()
}
