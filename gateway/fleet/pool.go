// SPDX-License-Identifier: Apache-2.0

// Before: the registry, which makes pools anew. After: decisions.

package fleet

import (
	"maps"
	"slices"
)

// A Pool is all workers that serve one model. It is immutable: a change of who is there
// makes another one. How its workers stand moves within.
type Pool struct {
	Model   string
	Base    string // of a pool of those that have an adapter: the model that it adapts; else ""
	Version uint64 // grows with each change
	Workers []*Worker
	Holders []*Holder // of all workers

	// BlockSize is the tokens of a block where a worker's registration says it; 0:
	// the index knows.
	BlockSize int

	// Seats is above every seat of Holders.
	Seats int

	// byInstance finds workers by what the index calls them.
	byInstance map[string]*Worker
}

// NewPool returns the pool of workers for a model.
func NewPool(model string, version uint64, workers []*Worker) *Pool {
	p := &Pool{Model: model, Version: version, Workers: workers, byInstance: make(map[string]*Worker, len(workers))}
	for _, w := range workers {
		p.Holders = append(p.Holders, w.Holders...)
		p.count(w)
	}
	return p
}

// Weights returns the model that p's workers have loaded, which is what the index calls
// it: that of an adapter is its base.
func (p *Pool) Weights() string {
	if p.Base != "" {
		return p.Base
	}
	return p.Model
}

// count takes in what p says of all workers together.
func (p *Pool) count(w *Worker) {
	p.byInstance[w.Spec.Instance] = w
	if p.BlockSize == 0 {
		p.BlockSize = w.Spec.BlockSize
	}
	for _, h := range w.Holders {
		p.Seats = max(p.Seats, h.Seat+1)
	}
}

// with returns p and w.
func (p *Pool) with(w *Worker, version uint64) *Pool {
	n := *p
	n.Version = version
	n.Workers = append(slices.Clip(p.Workers), w)
	n.Holders = append(slices.Clip(p.Holders), w.Holders...)
	n.byInstance = maps.Clone(p.byInstance)
	n.count(w)
	return &n
}

// without returns p less w.
func (p *Pool) without(w *Worker, version uint64) *Pool {
	keep := make([]*Worker, 0, len(p.Workers))
	for _, o := range p.Workers {
		if o != w {
			keep = append(keep, o)
		}
	}
	n := NewPool(p.Model, version, keep)
	if n.Base = p.Base; n.Base == "" && len(keep) > 0 { // w may have been the one that did not agree
		n.Base = keep[0].Serves().base(p.Model)
		for _, o := range keep[1:] {
			if n.Base != "" && o.Serves().base(p.Model) != n.Base {
				n.Base = ""
			}
		}
	}
	return n
}

// Holder returns who the index means by an instance and a rank, or nil: nobody of this
// pool.
func (p *Pool) Holder(instance string, rank int) *Holder {
	w := p.byInstance[instance]
	if w == nil || rank < 0 || rank >= len(w.Holders) {
		return nil
	}
	return w.Holders[rank]
}
