// SPDX-License-Identifier: Apache-2.0

// Before: Feed (normalised events). After: shard.Index.

package indexsrv

import (
	"sync"

	"kindex/internal/kv"
	"kindex/shard"
)

// Writer is the one writer of a [shard.Index]: it serialises the mutating and
// walking calls and passes lookups straight through. It is a shard.Index itself,
// so that whatever takes one (a digest, a dump) can be given the writer.
//
// Concurrency: all methods may be called from any goroutine. Lookup takes no
// lock. The function given to Walk runs under the lock and must not call back.
type Writer struct {
	mu  sync.Mutex
	idx shard.Index
}

var _ shard.Index = (*Writer)(nil)

// NewWriter takes over idx: from now on nobody else may call its mutating
// methods.
func NewWriter(idx shard.Index) *Writer { return &Writer{idx: idx} }

// AddHolder implements [shard.Index].
func (w *Writer) AddHolder(m kv.ModelKey) (shard.Holder, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.AddHolder(m)
}

// Store implements [shard.Index].
func (w *Writer) Store(h shard.Holder, st *shard.Store) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.Store(h, st)
}

// Remove implements [shard.Index].
func (w *Writer) Remove(h shard.Holder, rm *shard.Remove) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.Remove(h, rm)
}

// Clear implements [shard.Index].
func (w *Writer) Clear(h shard.Holder) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.Clear(h)
}

// Drop implements [shard.Index].
func (w *Writer) Drop(h shard.Holder) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.Drop(h)
}

// Lookup implements [shard.Index]. It takes no lock.
func (w *Writer) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	return w.idx.Lookup(ns, chain, dst)
}

// Walk implements [shard.Index]. Streams wait while it runs.
func (w *Writer) Walk(h shard.Holder, fn func(*shard.Node) bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.Walk(h, fn)
}

// HolderStats implements [shard.Index].
func (w *Writer) HolderStats(h shard.Holder) (shard.HolderStats, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.HolderStats(h)
}

// Stats implements [shard.Index].
func (w *Writer) Stats() shard.Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idx.Stats()
}
