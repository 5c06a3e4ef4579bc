// SPDX-License-Identifier: Apache-2.0

// Before: the registry, whose pools have workers of all kinds. After: place.go.

package route

import (
	"maps"
	"sync/atomic"

	"kindex/gateway/fleet"
)

// Only is a fleet's workers of one kind, such as those that are spoken to by one
// protocol. A router of its own is to place on it, with a policy of its own: policies
// keep something for each pool.
//
// Concurrency: any goroutine. A pool is made again only when the fleet's has changed.
type Only struct {
	of   Fleet
	keep func(*fleet.Worker) bool
	made atomic.Pointer[map[string]narrowed]
}

// narrowed is a pool and what came of it; nil: nobody is left.
type narrowed struct{ from, to *fleet.Pool }

// maxNarrowed bounds the pools that are kept.
const maxNarrowed = 4096

// NewOnly returns of's workers that keep chooses, by what never changes of them.
func NewOnly(of Fleet, keep func(*fleet.Worker) bool) *Only {
	o := &Only{of: of, keep: keep}
	o.made.Store(&map[string]narrowed{})
	return o
}

// Pool implements [Fleet].
func (o *Only) Pool(model string) *fleet.Pool { return o.narrow(o.of.Pool(model)) }

// Whole returns the workers of all kinds.
func (o *Only) Whole(model string) *fleet.Pool { return o.of.Pool(model) }

func (o *Only) narrow(from *fleet.Pool) *fleet.Pool {
	if from == nil {
		return nil
	}
	old := o.made.Load()
	if n := (*old)[from.Model]; n.from == from {
		return n.to
	}
	n := narrowed{from: from}
	var some []*fleet.Worker
	for _, w := range from.Workers {
		if o.keep(w) {
			some = append(some, w)
		}
	}
	switch len(some) {
	case 0:
	case len(from.Workers):
		n.to = from
	default:
		n.to = fleet.NewPool(from.Model, from.Version, some)
		n.to.Base = from.Base
	}
	next := make(map[string]narrowed, len(*old)+1)
	if len(*old) < maxNarrowed {
		maps.Copy(next, *old)
	}
	if had := next[from.Model]; had.from == nil || had.from.Version <= from.Version {
		next[from.Model] = n
		o.made.CompareAndSwap(old, &next) // who loses makes it again
	}
	return n.to
}

// Models implements [Fleet].
func (o *Only) Models() map[string]*fleet.Pool {
	of := o.of.Models()
	if len(of) == 0 {
		return nil
	}
	out := make(map[string]*fleet.Pool, len(of))
	for name, p := range of {
		if p = o.narrow(p); p != nil {
			out[name] = p
		}
	}
	return out
}
