// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
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

// subject is what a proof is run over: a way to make an index, how many indexes,
// each asked by itself, share the holders, and whether their tables are to be in
// growth all the time.
type subject struct {
	name   string
	make   maker
	shards int
	tiny   bool
}

// sharded returns kind in n shards, with tiny tables.
func sharded(kind string, n int) subject {
	if n == 1 {
		return subject{kind, func(o shard.Options) (shard.Index, error) { return shard.New(kind, o) }, 1, true}
	}
	return subject{fmt.Sprintf("%s in %d shards", kind, n), func(o shard.Options) (shard.Index, error) {
		return shard.NewSharded(kind, slices.Repeat([]shard.Options{o}, n)...)
	}, 1, true}
}

// subjects returns every kind under proof, the chain index in 1, 2 and 4 shards.
func subjects() []subject {
	var all []subject
	for _, k := range kinds() {
		all = append(all, sharded(k, 1))
		if k == "chain" {
			all = append(all, sharded(k, 2), sharded(k, 4))
		}
	}
	return all
}

// chainOnly returns those of subjects that have chain cores; all where none has.
func chainOnly(subs []subject) []subject {
	only := slices.DeleteFunc(slices.Clone(subs), func(s subject) bool { return !strings.HasPrefix(s.name, "chain") })
	if len(only) == 0 {
		return subs
	}
	return only
}

func names(subs []subject) string {
	var all []string
	for _, s := range subs {
		all = append(all, s.name)
	}
	return strings.Join(all, ", ")
}

// fleet applies events to the reference and to each side.
type fleet struct {
	cmp   *compare.Comparer
	sides [][]shard.Index // the reference first
	names []string
	count int // members ever added

	edgeSteps       []*atomic.Uint64 // of each index with tiny tables
	stores, growing atomic.Uint64    // stores, and those with a dictionary in growth
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
	for i, sub := range append([]subject{{"reference", func(o shard.Options) (shard.Index, error) { return shard.New("reference", o) }, 1, false}}, subs...) {
		side := compare.Side{Name: sub.name}
		for range sub.shards {
			idx, err := sub.make(o)
			if err != nil {
				return nil, err
			}
			if sub.tiny {
				f.edgeSteps = append(f.edgeSteps, shard.TinyTables(idx))
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
	return f.addTo(-1, m)
}

// addTo is add, in shard at where an index has shards and at is not negative.
func (f *fleet) addTo(shardAt int, m kv.ModelKey) (*member, error) {
	mb := &member{model: m}
	for i, side := range f.sides {
		at := f.count % len(side)
		var h shard.Holder
		var err error
		if s, ok := side[at].(*shard.Sharded); ok && shardAt >= 0 {
			h, err = s.AddHolderTo(shardAt, m)
		} else {
			h, err = side[at].AddHolder(m)
		}
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
	return f.each(m, "store", func(idx shard.Index, h shard.Holder) error {
		err := idx.Store(h, st)
		f.noteStore(idx, h)
		return err
	})
}

// noteStore counts a store for h in idx, and whether it left a dictionary in growth.
func (f *fleet) noteStore(idx shard.Index, h shard.Holder) {
	growing, has := shard.Growing(idx, h)
	if has {
		f.stores.Add(1)
	}
	if growing {
		f.growing.Add(1)
	}
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

// account says what a proof compared, and what was in play meanwhile.
type account struct {
	events          int
	counts          compare.Counts
	rows            uint64 // alias rows made
	stores, growing uint64 // stores, and those with a dictionary in growth
	edges           uint64 // steps by which edge tables went on
}

func (f *fleet) account(events int) account {
	a := account{events: events, counts: f.cmp.Counts(), stores: f.stores.Load(), growing: f.growing.Load()}
	for _, n := range f.edgeSteps {
		a.edges += n.Load()
	}
	for _, side := range f.sides {
		for _, idx := range side {
			a.rows += shard.RowsMade(idx)
		}
	}
	return a
}

func (a *account) add(o account) {
	a.events += o.events
	a.counts.Add(o.counts)
	a.rows += o.rows
	a.stores += o.stores
	a.growing += o.growing
	a.edges += o.edges
}

// String tells all of a.
func (a account) String() string {
	return fmt.Sprintf("%d events; compared %v; in play: %d alias rows made, dictionary in growth after %d of %d stores, %d steps of edge tables",
		a.events, a.counts, a.rows, a.growing, a.stores, a.edges)
}

// want fails the test when a proof over chain indexes never met an alias row, growth,
// a grouped answer or a batch.
func (a account) want(t *testing.T) {
	t.Helper()
	if !slices.Contains(kinds(), "chain") {
		return
	}
	for what, n := range map[string]uint64{
		"alias row": a.rows, "store with a dictionary in growth": a.growing, "step of an edge table": a.edges,
		"grouped answer": a.counts.Grouped, "batch": a.counts.Batches, "lookup": a.counts.Lookups,
	} {
		if n == 0 {
			t.Errorf("no %s was met: %v", what, a)
		}
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
