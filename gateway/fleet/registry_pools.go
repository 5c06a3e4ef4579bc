// SPDX-License-Identifier: Apache-2.0

// Before: the registry's changes. After: decisions, which see all of one change or
// nothing of it.

package fleet

import (
	"maps"
	"slices"
)

// part takes w out of the pools. turn is held.
func (r *Registry) part(w *Worker) {
	w.SetState(Removed)
	r.unlist(w)
	r.show(w, nil)
	r.gone(w)
}

// gone ends what w has that others may have after it. turn is held.
func (r *Registry) gone(w *Worker) {
	w.SetState(Removed)
	if r.instances[w.Spec.Instance] == w {
		delete(r.instances, w.Spec.Instance)
	}
	for _, h := range w.Holders {
		r.seats.give(h.Seat)
	}
}

// unlist makes the pools without w, which nobody sees before show. turn is held.
// Cost: O(workers of its models).
func (r *Registry) unlist(w *Worker) {
	r.version++
	for name := range w.Serves().names() {
		r.keep(name, r.own[name].without(w, r.version))
	}
}

// list makes the pools with w, which serves s. As unlist.
func (r *Registry) list(w *Worker, s *Served) {
	r.version++
	for name, base := range s.names() {
		p := r.own[name]
		if p == nil {
			p = NewPool(name, r.version, []*Worker{w})
			p.Base = base
		} else if p = p.with(w, r.version); p.Base != base {
			p.Base = "" // they do not agree: a name by itself
		}
		r.keep(name, p)
	}
	w.served.Store(s)
}

// show has everybody see the pools as they are now, and workers without one and with
// another; nil: none. turn is held. Cost: O(workers + names).
func (r *Registry) show(left, joined *Worker) {
	all := maps.Clone(r.own)
	for name, p := range r.own {
		if base := r.own[p.Base]; p.Base != "" && base != nil && len(base.Workers) == len(p.Workers) {
			all[name] = base
		}
	}
	workers := r.Workers()
	if left != nil {
		workers = slices.DeleteFunc(slices.Clone(workers), func(o *Worker) bool { return o == left })
	}
	if joined != nil {
		workers = append(slices.Clip(workers), joined)
	}
	r.workers.Store(&workers)
	r.pools.Store(&all)
}

// keep makes p the pool of a name, or forgets an empty one. turn is held.
func (r *Registry) keep(name string, p *Pool) {
	if len(p.Workers) == 0 {
		delete(r.own, name)
		return
	}
	r.own[name] = p
}
