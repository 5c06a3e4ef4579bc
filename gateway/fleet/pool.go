// SPDX-License-Identifier: Apache-2.0

// Before: the registry, which makes pools anew. After: decisions.

package fleet

// A Pool is all workers that serve one model. It is immutable: a change of who is there
// makes another one. How its workers stand moves within.
type Pool struct {
	Model   string
	Version uint64 // grows with each change
	Workers []*Worker
	Holders []*Holder // of all workers

	// BlockSize is the tokens of a block where a worker's registration says it; 0:
	// the index knows.
	BlockSize int

	// byInstance finds workers by what the index calls them.
	byInstance map[string]*Worker
}

// NewPool returns the pool of workers for a model.
func NewPool(model string, version uint64, workers []*Worker) *Pool {
	p := &Pool{Model: model, Version: version, Workers: workers, byInstance: make(map[string]*Worker, len(workers))}
	for _, w := range workers {
		p.Holders = append(p.Holders, w.Holders...)
		p.byInstance[w.Spec.Instance] = w
		if p.BlockSize == 0 {
			p.BlockSize = w.Spec.BlockSize
		}
	}
	return p
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
