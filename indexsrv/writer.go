// SPDX-License-Identifier: Apache-2.0

// Before: Feed (whole batches), the registry, dumps. After: shard.Index.

package indexsrv

import (
	"kindex/internal/kv"
	"kindex/lanes"
	"kindex/shard"
)

// Writer gives the one writer's place of each shard of an index in turn to
// whoever writes or walks it, and passes lookups straight through. It is a
// shard.Index itself, so that whatever takes one (a digest, a dump) can be given
// the writer.
//
// Concurrency: all methods may be called from any goroutine. Lookup takes no
// turn. The function given to Walk runs within one and must not call back.
type Writer struct {
	idx     shard.Index
	sharded *shard.Sharded // idx, where it is of several shards
	turns   []*lanes.Turn  // one for each shard
	pool    *lanes.Pool    // whose turns they are; nil: nobody's
	budgets []*budget      // one for each shard; nil: it has no bound
}

var _ shard.Index = (*Writer)(nil)

// NewWriter takes over idx: from now on nobody else may call its mutating
// methods.
func NewWriter(idx shard.Index) *Writer {
	w := &Writer{idx: idx}
	n := 1
	if s, ok := idx.(*shard.Sharded); ok {
		w.sharded, n = s, s.Shards()
	}
	for i := range n {
		w.turns = append(w.turns, new(lanes.Turn))
		one := idx
		if w.sharded != nil {
			one = w.sharded.Shard(i)
		}
		w.budgets = append(w.budgets, newBudget(one))
	}
	return w
}

// charge begins charging the stream of h, which is one of wk's, to the budget of
// its shard. Nothing of it was applied yet.
func (w *Writer) charge(h shard.Holder, wk *worker) charge {
	i := w.shardOf(h)
	w.turns[i].Take()
	defer w.turns[i].Give()
	return w.budgets[i].open(wk)
}

// discharge ends c, of h's stream, which is over.
func (w *Writer) discharge(h shard.Holder, c *charge) {
	turn := w.turns[w.shardOf(h)]
	turn.Take()
	defer turn.Give()
	c.close()
}

// NewPoolWriter is NewWriter with the turns of p, which has a shard for each of
// idx's, and whose lanes run the streams of its holders.
func NewPoolWriter(idx shard.Index, p *lanes.Pool) *Writer {
	w := NewWriter(idx)
	if p.Shards() != len(w.turns) {
		panic("BUG: indexsrv: lanes and index differ in their shards")
	}
	w.pool = p
	for i := range w.turns {
		w.turns[i] = p.Turn(i)
	}
	return w
}

// shard returns shard i's index, for lookups.
func (w *Writer) shard(i int) shard.Index {
	if w.sharded == nil {
		return w.idx
	}
	return w.sharded.Shard(i)
}

// shardOf returns the shard that h lives in.
func (w *Writer) shardOf(h shard.Holder) int {
	if w.sharded == nil {
		return 0
	}
	return w.sharded.ShardOf(h)
}

// Worker begins a worker for h's stream on the lanes of its shard; nil where there
// are no lanes.
//
// Errors: lanes.ErrClosed.
func (w *Writer) Worker(h shard.Holder) (*lanes.Worker, error) {
	if w.pool == nil {
		return nil, nil
	}
	return w.pool.Add(w.shardOf(h))
}

// nodeOf returns the memory node that h's shard belongs to.
func (w *Writer) nodeOf(h shard.Holder) int {
	if w.pool == nil {
		return 0
	}
	return w.pool.NodeOf(w.shardOf(h))
}

// of returns h's shard as an index, and its turn.
func (w *Writer) of(h shard.Holder) (shard.Index, *lanes.Turn) {
	if w.sharded == nil {
		return w.idx, w.turns[0]
	}
	i := w.sharded.ShardOf(h)
	return w.sharded.Shard(i), w.turns[i]
}

// in calls fn with h's shard, in its turn.
func (w *Writer) in(h shard.Holder, fn func(shard.Index) error) error {
	idx, turn := w.of(h)
	turn.Take()
	defer turn.Give()
	return fn(idx)
}

// AddHolder implements [shard.Index]. It takes all turns at once, the only call
// that does: which shard carries least is for all of them to say.
func (w *Writer) AddHolder(m kv.ModelKey) (shard.Holder, error) {
	for _, t := range w.turns {
		t.Take()
		defer t.Give()
	}
	return w.idx.AddHolder(m)
}

// Store implements [shard.Index].
func (w *Writer) Store(h shard.Holder, st *shard.Store) error {
	return w.in(h, func(idx shard.Index) error { return idx.Store(h, st) })
}

// Remove implements [shard.Index].
func (w *Writer) Remove(h shard.Holder, rm *shard.Remove) error {
	return w.in(h, func(idx shard.Index) error { return idx.Remove(h, rm) })
}

// Clear implements [shard.Index].
func (w *Writer) Clear(h shard.Holder) error {
	return w.in(h, func(idx shard.Index) error { return idx.Clear(h) })
}

// Drop implements [shard.Index].
func (w *Writer) Drop(h shard.Holder) error {
	return w.in(h, func(idx shard.Index) error { return idx.Drop(h) })
}

// Lookup implements [shard.Index]. It takes no turn.
func (w *Writer) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	return w.idx.Lookup(ns, chain, dst)
}

// Walk implements [shard.Index]. Streams of h's shard wait while it runs.
func (w *Writer) Walk(h shard.Holder, fn func(*shard.Node) bool) error {
	return w.in(h, func(idx shard.Index) error { return idx.Walk(h, fn) })
}

// HolderStats implements [shard.Index].
func (w *Writer) HolderStats(h shard.Holder) (st shard.HolderStats, err error) {
	err = w.in(h, func(idx shard.Index) (err error) { st, err = idx.HolderStats(h); return err })
	return st, err
}

// Stats implements [shard.Index], a shard after the other.
func (w *Writer) Stats() shard.Stats {
	var sum shard.Stats
	for i := range w.turns {
		sum.Add(w.shardStats(i))
	}
	return sum
}

// shardStats reports on shard i.
func (w *Writer) shardStats(i int) shard.Stats {
	w.turns[i].Take()
	defer w.turns[i].Give()
	if w.sharded == nil {
		return w.idx.Stats()
	}
	return w.sharded.ShardStats(i)
}
