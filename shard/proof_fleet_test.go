// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/shard"
	"kindex/shard/compare"
)

// The proofs hold every kind of index against the reference. What all of them
// share is here: a fleet applies one history of events to the reference and to
// any number of sides at once.

// kinds returns the index kinds under proof: all but the reference, or those
// that the variable KINDEX_KINDS lists.
func kinds() []string {
	if list := os.Getenv("KINDEX_KINDS"); list != "" {
		return strings.Split(list, ",")
	}
	return slices.DeleteFunc(slices.Clone(shard.Kinds), func(k string) bool { return k == "reference" })
}

// maker makes one empty index.
type maker func(shard.Options) (shard.Index, error)

// subject is what a proof is run over: a way to make an index, and how many
// indexes, each asked by itself, share the holders.
type subject struct {
	name   string
	make   maker
	shards int
}

// subjects returns every kind under proof, once with each number of shards.
func subjects(shards ...int) []subject {
	var all []subject
	for _, k := range kinds() {
		for _, n := range shards {
			if n == 1 {
				all = append(all, subject{k, func(o shard.Options) (shard.Index, error) { return shard.New(k, o) }, 1})
				continue
			}
			all = append(all, subject{fmt.Sprintf("%s in %d shards", k, n), func(o shard.Options) (shard.Index, error) {
				return shard.NewSharded(k, slices.Repeat([]shard.Options{o}, n)...)
			}, 1})
		}
	}
	return all
}

// fleet applies events to the reference and to each side.
type fleet struct {
	cmp   *compare.Comparer
	sides [][]shard.Index // the reference first
	names []string
	count int // members ever added
}

// member is one holder, wherever it lies.
type member struct {
	id     int
	model  kv.ModelKey
	places []compare.Place
}

func newFleet(o shard.Options, subs []subject) (*fleet, error) {
	f := &fleet{}
	var got []compare.Side
	var want compare.Side
	for i, sub := range append([]subject{{"reference", func(o shard.Options) (shard.Index, error) { return shard.New("reference", o) }, 1}}, subs...) {
		side := compare.Side{Name: sub.name}
		for range sub.shards {
			idx, err := sub.make(o)
			if err != nil {
				return nil, err
			}
			side.Indexes = append(side.Indexes, idx)
		}
		f.sides = append(f.sides, side.Indexes)
		f.names = append(f.names, sub.name)
		if i == 0 {
			want = side
		} else {
			got = append(got, side)
		}
	}
	f.cmp = compare.New(want, got...)
	return f, nil
}

// reference returns the side that is right.
func (f *fleet) reference() shard.Index { return f.sides[0][0] }

// add begins a holder on every side; several indexes of one side take turns.
func (f *fleet) add(m kv.ModelKey) (*member, error) {
	mb := &member{model: m}
	for i, side := range f.sides {
		at := f.count % len(side)
		h, err := side[at].AddHolder(m)
		if err != nil {
			return nil, fmt.Errorf("%s: add holder: %w", f.names[i], err)
		}
		mb.places = append(mb.places, compare.Place{Index: at, Holder: h})
	}
	f.count++
	mb.id = f.cmp.Add(fmt.Sprintf("holder %d", f.count), mb.places[0], mb.places[1:]...)
	return mb, nil
}

// each calls fn for m's index on every side; all must return what the
// reference returns.
func (f *fleet) each(m *member, what string, fn func(shard.Index, shard.Holder) error) error {
	var want error
	for i, p := range m.places {
		err := fn(f.sides[i][p.Index], p.Holder)
		if i == 0 {
			want = err
			continue
		}
		if (err == nil) != (want == nil) || (want != nil && errors.Is(want, shard.ErrUnknownHolder) != errors.Is(err, shard.ErrUnknownHolder)) {
			return fmt.Errorf("%w: %s of holder %d: %s returned %s, reference %s", compare.ErrDiffers, what, m.id+1, f.names[i], fmt.Sprint(err), fmt.Sprint(want))
		}
	}
	return nil
}

func (f *fleet) store(m *member, st *shard.Store) error {
	return f.each(m, "store", func(idx shard.Index, h shard.Holder) error { return idx.Store(h, st) })
}

func (f *fleet) remove(m *member, rm *shard.Remove) error {
	return f.each(m, "remove", func(idx shard.Index, h shard.Holder) error { return idx.Remove(h, rm) })
}

func (f *fleet) clear(m *member) error {
	return f.each(m, "clear", func(idx shard.Index, h shard.Holder) error { return idx.Clear(h) })
}

// drop ends m, and asks again for what has ended.
func (f *fleet) drop(m *member) error {
	if err := f.each(m, "drop", func(idx shard.Index, h shard.Holder) error { return idx.Drop(h) }); err != nil {
		return err
	}
	f.cmp.Remove(m.id)
	if err := f.each(m, "drop of a dropped holder", func(idx shard.Index, h shard.Holder) error { return idx.Drop(h) }); err != nil {
		return err
	}
	return f.each(m, "counters of a dropped holder", func(idx shard.Index, h shard.Holder) error {
		_, err := idx.HolderStats(h)
		return err
	})
}

// check panics when a structure's invariant is broken.
func (f *fleet) check() {
	for _, side := range f.sides {
		for _, idx := range side {
			shard.Check(idx)
		}
	}
}

// rowsMade returns how many alias rows all sides ever made.
func (f *fleet) rowsMade() (n uint64) {
	for _, side := range f.sides {
		for _, idx := range side {
			n += shard.RowsMade(idx)
		}
	}
	return n
}

// wantRows fails the test when a proof over chain indexes never met an alias row.
func wantRows(t *testing.T, made uint64) {
	t.Helper()
	t.Logf("%d alias rows made", made)
	if made == 0 && slices.Contains(kinds(), "chain") {
		t.Error("no alias row was made")
	}
}

// guard turns a panic of an index into the error of the proof that met it.
func guard(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: panic: %v", errPanic, r)
	}
}

// errPanic is wrapped by what guard returns.
var errPanic = errors.New("an index broke")

// skipShort skips long proofs under -short.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long proof: not under -short")
	}
}
