// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"fmt"

	"kindex/internal/kv"
	"kindex/shard"
	"kindex/shard/compare"
)

// subject is one index with a holder for each worker.
type subject struct {
	name    string
	idx     shard.Index
	holders []shard.Holder // by worker
	worker  map[uint32]int
	got     []kv.Match // scratch
	answer  shard.Answer
	batch   []shard.Query
	forms   int64 // the other forms are asked for every so many questions

	lookups, wrong int64
}

// told is how many differences are described.
const told = 10

// world is the reference and what is held against it.
type world struct {
	ns     kv.Namespace
	ref    *subject
	subs   []*subject
	part   string
	want   []kv.Match // by worker
	named  []bool     // by worker
	total  int64      // questions
	faults []string
}

// wrapper changes an index before it is told anything; nil: it stays as it is.
type wrapper func(shard.Index) shard.Index

var model = kv.MakeModelKey("", "exact", "default")

func newSubject(name string, idx shard.Index, workers int) (*subject, error) {
	s := &subject{name: name, idx: idx, worker: map[uint32]int{}}
	for w := range workers {
		h, err := idx.AddHolder(model)
		if err != nil {
			return nil, err
		}
		s.holders, s.worker[uint32(h)] = append(s.holders, h), w
	}
	return s, nil
}

// seldom is how often an index is asked in the other forms that answers them by the
// first one: all but the chain index.
const seldom = 8

// newWorld returns a world of empty indexes.
func newWorld(o *Options, workers int, wrap wrapper) (*world, error) {
	w := &world{ns: model.Namespace(kv.HashSeed), want: make([]kv.Match, workers), named: make([]bool, workers)}
	var err error
	if w.ref, err = newSubject("reference", shard.NewReference(shard.Options{}), workers); err != nil {
		return nil, err
	}
	for _, kind := range o.Kinds {
		for _, n := range o.Shards {
			sharded, err := shard.NewSharded(kind, make([]shard.Options, n)...)
			if err != nil {
				return nil, err
			}
			var idx shard.Index = sharded
			if wrap != nil {
				idx = wrap(idx)
			}
			s, err := newSubject(fmt.Sprintf("%s, %d shards", kind, n), idx, workers)
			if err != nil {
				return nil, err
			}
			if s.forms = seldom; kind == Kinds[0] {
				s.forms = 1
			}
			w.subs = append(w.subs, s)
		}
	}
	return w, nil
}

// each applies one event everywhere.
func (w *world) each(f func(*subject) error) error {
	if err := f(w.ref); err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	for _, s := range w.subs {
		if err := f(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (w *world) store(worker int, st *shard.Store) error {
	st.Namespace = w.ns
	return w.each(func(s *subject) error { return s.idx.Store(s.holders[worker], st) })
}

func (w *world) remove(worker int, rm *shard.Remove) error {
	return w.each(func(s *subject) error { return s.idx.Remove(s.holders[worker], rm) })
}

func (w *world) clear(worker int) error {
	return w.each(func(s *subject) error { return s.idx.Clear(s.holders[worker]) })
}

// batchQuarters are the parts of a chain that go along in a batch, in quarters: more
// than the few that an index may answer one by one.
var batchQuarters = [...]int{4, 1, 2, 4, 3, 0, 4, 2, 3, 1, 4, 4}

// ask asks everybody for one chain.
func (w *world) ask(chain []kv.ContentHash) {
	clear(w.want)
	w.ref.got = w.ref.idx.Lookup(w.ns, chain, w.ref.got[:0])
	holders := len(w.ref.got)
	for _, m := range w.ref.got {
		worker := w.ref.worker[m.Holder]
		m.Holder = 0
		w.want[worker] = m
	}
	w.total++
	for _, s := range w.subs {
		s.lookups++
		if why := w.compare(s, chain, holders); why != "" {
			s.wrong++
			if len(w.faults) < told {
				w.faults = append(w.faults, fmt.Sprintf("%s, question %d of %d blocks, %s: %s", w.part, w.total, len(chain), s.name, why))
			}
		}
	}
}

// compare asks s in every form and says what is wrong with the answers.
func (w *world) compare(s *subject, chain []kv.ContentHash, holders int) string {
	s.got = s.idx.Lookup(w.ns, chain, s.got[:0])
	if why := w.same(s, s.got, len(chain), holders); why != "" {
		return "one by one: " + why
	}
	if w.total%s.forms != 0 {
		return ""
	}
	if g, ok := s.idx.(shard.Grouper); ok {
		s.answer.Reset()
		g.LookupGroups(w.ns, chain, &s.answer)
		s.got = s.answer.Append(s.got[:0])
		if why := w.same(s, s.got, len(chain), holders); why != "" {
			return "as sets: " + why
		}
	}
	b, ok := s.idx.(shard.Batcher)
	if !ok {
		return ""
	}
	if s.batch == nil {
		s.batch = make([]shard.Query, len(batchQuarters))
	}
	for i := range s.batch {
		q := &s.batch[i]
		q.Namespace, q.Chain, q.Matches = w.ns, chain[:len(chain)*batchQuarters[i]/4], q.Matches[:0]
	}
	b.LookupBatch(s.batch)
	for i := range s.batch {
		// Who holds anything of a beginning holds its first block.
		n := holders
		if len(s.batch[i].Chain) == 0 {
			n = 0
		}
		if why := w.same(s, s.batch[i].Matches, len(s.batch[i].Chain), n); why != "" {
			return fmt.Sprintf("in a batch, %d of %d blocks: %s", len(s.batch[i].Chain), len(chain), why)
		}
	}
	return ""
}

// same holds matches for the first blocks of a chain against what is wanted of all of it.
func (w *world) same(s *subject, matches []kv.Match, blocks, holders int) string {
	clear(w.named)
	most := uint32(blocks)
	for _, m := range matches {
		worker, ok := s.worker[m.Holder]
		switch {
		case !ok:
			return fmt.Sprintf("holder %d, which nobody is", m.Holder)
		case w.named[worker]:
			return fmt.Sprintf("worker %d twice", worker)
		}
		w.named[worker] = true
		want := w.want[worker]
		if m.Device != min(want.Device, most) || m.Host != min(want.Host, most) || m.Any != min(want.Any, most) {
			return fmt.Sprintf("worker %d holds %d, %d, %d blocks by tier, want %d, %d, %d", worker, m.Device, m.Host, m.Any, min(want.Device, most), min(want.Host, most), min(want.Any, most))
		}
	}
	if len(matches) != holders {
		return fmt.Sprintf("%d workers, want %d", len(matches), holders)
	}
	return ""
}

// content compares all that is held, and counts it.
func (w *world) content() (int64, error) {
	sides := make([]compare.Side, len(w.subs))
	for i, s := range w.subs {
		sides[i] = compare.Side{Name: s.name, Indexes: []shard.Index{s.idx}}
	}
	c := compare.New(compare.Side{Name: w.ref.name, Indexes: []shard.Index{w.ref.idx}}, sides...)
	var ids []int
	for worker, h := range w.ref.holders {
		places := make([]compare.Place, len(w.subs))
		for i, s := range w.subs {
			places[i] = compare.Place{Holder: s.holders[worker]}
		}
		ids = append(ids, c.Add(fmt.Sprintf("worker %d", worker), compare.Place{Holder: h}, places...))
	}
	for _, id := range ids {
		if err := c.Holder(id); err != nil {
			return 0, err
		}
	}
	return int64(c.Counts().Memberships), nil
}
