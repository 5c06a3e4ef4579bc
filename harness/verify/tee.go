// SPDX-License-Identifier: Apache-2.0

// Before: indexsrv.Feed. After: the index under test, and the reference.

package verify

import (
	"errors"
	"fmt"

	"kindex/internal/kv"
	"kindex/shard"
)

// tee hands every mutating call to two indexes. What is asked of it, the index
// under test answers.
//
// Concurrency: as [shard.Index] says.
type tee struct {
	got, want shard.Index
	want2     map[shard.Holder]shard.Holder // the reference's number of a holder
	differ    error                         // the first call that the two took differently
}

var _ shard.Index = (*tee)(nil)

func newTee(got, want shard.Index) *tee {
	return &tee{got: got, want: want, want2: map[shard.Holder]shard.Holder{}}
}

// both notes a call that the two answered differently.
func (t *tee) both(call string, g, w error) error {
	if t.differ == nil && (g == nil) != (w == nil) {
		t.differ = fmt.Errorf("%s: got %s, want %s", call, outcome(g), outcome(w))
	}
	return g
}

func outcome(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

func (t *tee) AddHolder(m kv.ModelKey) (shard.Holder, error) {
	g, gerr := t.got.AddHolder(m)
	w, werr := t.want.AddHolder(m)
	if err := errors.Join(gerr, werr); err != nil {
		return 0, err
	}
	t.want2[g] = w
	return g, nil
}

func (t *tee) Store(h shard.Holder, st *shard.Store) error {
	return t.both("store", t.got.Store(h, st), t.want.Store(t.want2[h], st))
}

func (t *tee) Remove(h shard.Holder, rm *shard.Remove) error {
	return t.both("remove", t.got.Remove(h, rm), t.want.Remove(t.want2[h], rm))
}

func (t *tee) Clear(h shard.Holder) error {
	return t.both("clear", t.got.Clear(h), t.want.Clear(t.want2[h]))
}

func (t *tee) Drop(h shard.Holder) error {
	return t.both("drop", t.got.Drop(h), t.want.Drop(t.want2[h]))
}

func (t *tee) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	return t.got.Lookup(ns, chain, dst)
}

func (t *tee) Walk(h shard.Holder, fn func(*shard.Node) bool) error { return t.got.Walk(h, fn) }

func (t *tee) HolderStats(h shard.Holder) (shard.HolderStats, error) { return t.got.HolderStats(h) }

func (t *tee) Stats() shard.Stats { return t.got.Stats() }
