// SPDX-License-Identifier: Apache-2.0

package index

import (
	"sync"

	"kindex/gateway/fleet"
)

// nameKey is what an index calls a worker.
type nameKey struct{ model, instance string }

// names finds workers by what an index calls them.
//
// Concurrency: any goroutine.
type names struct {
	mu     sync.RWMutex
	byName map[nameKey]*fleet.Worker
}

// add makes w known under all its models. Of two with one name the newer counts.
func (n *names) add(w *fleet.Worker) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName = map[nameKey]*fleet.Worker{}
	}
	for _, m := range w.Spec.Models {
		n.byName[nameKey{m, w.Spec.Instance}] = w
	}
}

// remove forgets w, not another one of its name.
func (n *names) remove(w *fleet.Worker) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range w.Spec.Models {
		if k := (nameKey{m, w.Spec.Instance}); n.byName[k] == w {
			delete(n.byName, k)
		}
	}
}

// find returns the worker, or nil.
func (n *names) find(model, instance string) *fleet.Worker {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byName[nameKey{model, instance}]
}
