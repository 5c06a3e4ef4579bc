// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"kindex/asm/asmtest"
	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/shard"
)

// The concurrency proof: writers act, one at a time in each shard, while readers
// ask. Each answer must lie within what was true at some moment of the call, for
// every holder; when the writers are done the index must equal the reference.

const (
	writerCount = 16
	readerCount = 4
	heldFew     = 3  // holders of each writer in one run
	heldMany    = 12 // and in the next
)

// life is one holder while it exists, playing its play.
type life struct {
	p      *play
	m      *member
	holder shard.Holder
	born   uint64 // how many came into the cast before it
	// acts is twice the number of acts done, and one more during an act.
	acts atomic.Uint64
}

// drill is one run.
type drill struct {
	s    *stage
	f    *fleet
	each int         // holders of each writer
	idx  shard.Index // under proof
	pool [][]*play   // rehearsed plays, by hash seed

	// write has a lock for each shard: one writer at a time, as the index demands. The
	// holder in place i of the cast lives in shard i % len(write).
	write []sync.Mutex
	later [][]lateAct // by place of the cast, under its shard's lock
	fleet sync.Mutex  // guards f while holders are added; taken last
	lives sync.Map    // shard.Holder -> *life, all that ever were
	now   sync.RWMutex
	cast  []*life // who lives now
	born  uint64  // how many ever came into the cast

	acting                                       atomic.Int64 // acts under way in the index
	acts, together, reads, raced, matches, exact atomic.Uint64
	grouped, batched                             atomic.Uint64 // lookups in these forms
	failed                                       atomic.Pointer[error]
	done                                         atomic.Bool
}

func (d *drill) fail(err error) {
	d.failed.CompareAndSwap(nil, &err)
	d.done.Store(true)
}

// join begins a life in place i of the cast; the caller holds its shard's lock.
func (d *drill) join(i int, p *play) error {
	d.fleet.Lock()
	m, err := d.f.addTo(d.shardOf(i), d.s.model)
	d.fleet.Unlock()
	if err != nil {
		return err
	}
	l := &life{p: p, m: m, holder: m.places[1].Holder}
	d.lives.Store(l.holder, l)
	d.now.Lock()
	l.born = d.born
	d.born++
	d.cast[i] = l
	d.now.Unlock()
	return nil
}

// shardOf returns the shard of place i of the cast.
func (d *drill) shardOf(i int) int { return i % len(d.write) }

// act does the next act of cast member i. Nobody else's acts in its shard run
// meanwhile; those in other shards may.
func (d *drill) act(i int, r *rand.Rand) error {
	lock := &d.write[d.shardOf(i)]
	lock.Lock()
	defer lock.Unlock()
	l := d.cast[i]
	k := int(l.acts.Load() / 2)
	if l.p.end == stays && k >= len(l.p.acts) {
		return nil
	}
	a := l.p.acts[k%len(l.p.acts)]
	if d.acting.Add(1) > 1 {
		d.together.Add(1)
	}
	l.acts.Add(1)
	err := a.do(d.idx, l.holder)
	l.acts.Add(1)
	d.acting.Add(-1)
	if err != nil {
		return err
	}
	d.acts.Add(1)
	if a.store != nil {
		d.f.noteStore(d.idx, l.holder)
	}
	// The reference hears of it when all is done: its holders have nothing in common,
	// and waiting for it would keep the shards' writers apart.
	gone := l.p.end == leaves && k+1 == len(l.p.acts)
	d.later[i] = append(d.later[i], lateAct{a, l.m, gone})
	if gone {
		return d.join(i, d.choose(r))
	}
	return nil
}

// lateAct is an act of m, its last if it is gone, that the reference has not heard of.
type lateAct struct {
	a    act
	m    *member
	gone bool
}

// catchUp tells the reference of all acts.
func (d *drill) catchUp() error {
	for _, acts := range d.later {
		for _, l := range acts {
			if err := l.a.do(d.f.reference(), l.m.places[0].Holder); err != nil {
				return err
			}
			if l.gone {
				d.f.cmp.Remove(l.m.id)
			}
		}
	}
	return nil
}

func (d *drill) choose(r *rand.Rand) *play {
	plays := d.pool[r.IntN(len(d.pool))]
	return plays[r.IntN(len(plays))]
}

// writer acts for its holders until all has been read and acted enough.
func (d *drill) writer(w int, seed uint64, acts, reads uint64) {
	r := rand.New(rand.NewPCG(seed, uint64(w)))
	for !d.done.Load() {
		if err := d.act(w*d.each+r.IntN(d.each), r); err != nil {
			d.fail(err)
			return
		}
		if r.IntN(4) == 0 {
			runtime.Gosched()
		}
		if d.acts.Load() >= acts && d.reads.Load() >= reads {
			d.done.Store(true)
		}
	}
}

// seen is one life as a reader met it before its call.
type seen struct {
	l      *life
	before uint64
}

// reader asks and checks bounds until the writers are done.
func (d *drill) reader(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 99))
	var cast []seen
	var dst []kv.Match
	var grouped shard.Answer
	var batch []shard.Query
	for !d.done.Load() {
		q := r.IntN(len(d.s.questions))
		cast = cast[:0]
		d.now.RLock()
		for _, l := range d.cast {
			cast = append(cast, seen{l, l.acts.Load()})
		}
		born := d.born
		d.now.RUnlock()
		ask := d.s.questions[q]
		grouper, _ := d.idx.(shard.Grouper)
		batcher, _ := d.idx.(shard.Batcher)
		switch form := r.IntN(4); {
		case form == 0 && grouper != nil:
			grouped.Reset()
			grouper.LookupGroups(ask.ns, ask.chain, &grouped)
			dst = grouped.Append(dst[:0])
			d.grouped.Add(1)
		case form == 1 && batcher != nil:
			batch = slices.Grow(batch[:0], len(d.s.questions))[:len(d.s.questions)]
			for i, ask := range d.s.questions {
				batch[i].Namespace, batch[i].Chain, batch[i].Matches = ask.ns, ask.chain, batch[i].Matches[:0]
			}
			batcher.LookupBatch(batch)
			d.batched.Add(uint64(len(batch)))
			for i := range batch {
				if err := d.check(i, cast, born, batch[i].Matches); err != nil {
					d.fail(fmt.Errorf("in a batch of %d: %w", len(batch), err))
					return
				}
			}
			dst = append(dst[:0], batch[q].Matches...)
		default:
			dst = d.idx.Lookup(ask.ns, ask.chain, dst[:0])
		}
		if err := d.check(q, cast, born, dst); err != nil {
			d.fail(err)
			return
		}
		d.reads.Add(1)
		d.matches.Add(uint64(len(dst)))
		runtime.Gosched() // few cores: let a writer act
	}
}

// check holds an answer against what was true between when cast was all there was,
// of born that ever came, and now.
func (d *drill) check(q int, cast []seen, born uint64, dst []kv.Match) error {
	answered := make(map[shard.Holder]kv.Match, len(dst))
	for _, m := range dst {
		h := shard.Holder(m.Holder)
		if _, twice := answered[h]; twice {
			return fmt.Errorf("question %d: holder %d is named twice", q, h)
		}
		answered[h] = m
	}
	raced := false
	for _, s := range cast {
		m := answered[s.l.holder]
		delete(answered, s.l.holder)
		moved, err := s.l.within(q, s.before, m)
		if err != nil {
			return err
		}
		if !moved {
			d.exact.Add(1)
		}
		raced = raced || moved
	}
	for h, m := range answered { // began after the call did, or has long gone
		v, ok := d.lives.Load(h)
		if !ok {
			return fmt.Errorf("question %d: holder %d is named and never was", q, h)
		}
		l, ok := v.(*life)
		if !ok {
			return fmt.Errorf("a life is a %T", v)
		}
		before := uint64(0)
		if l.born < born { // came before, and was in the cast no more
			before = 2 * uint64(len(l.p.acts))
		}
		if _, err := l.within(q, before, m); err != nil {
			return err
		}
	}
	if raced {
		d.raced.Add(1)
	}
	return nil
}

// within reports an error when m is not between the least and the greatest
// depth that was true since before, and whether l acted meanwhile.
func (l *life) within(q int, before uint64, m kv.Match) (moved bool, err error) {
	after := l.acts.Load()
	from, to := before/2, (after+1)/2
	if l.p.end == again {
		to = min(to, from+uint64(len(l.p.acts))) // all states
	}
	lo := l.p.truth[l.p.state(from)][q]
	hi := lo
	for k := from + 1; k <= to; k++ {
		t := l.p.truth[l.p.state(k)][q]
		lo.Device, lo.Host, lo.Any = min(lo.Device, t.Device), min(lo.Host, t.Host), min(lo.Any, t.Any)
		hi.Device, hi.Host, hi.Any = max(hi.Device, t.Device), max(hi.Host, t.Host), max(hi.Any, t.Any)
	}
	if m.Device < lo.Device || m.Host < lo.Host || m.Any < lo.Any || m.Device > hi.Device || m.Host > hi.Host || m.Any > hi.Any {
		return true, fmt.Errorf("question %d: holder %d (%s, acts %d to %d halves): answer %d/%d/%d (device/host/any), true were %d/%d/%d to %d/%d/%d",
			q, l.holder, l.p.name, before, after, m.Device, m.Host, m.Any, lo.Device, lo.Host, lo.Any, hi.Device, hi.Host, hi.Any)
	}
	if m.Device > m.Host || m.Host > m.Any {
		return true, fmt.Errorf("question %d: holder %d: depths %d/%d/%d are not cumulative", q, l.holder, m.Device, m.Host, m.Any)
	}
	return to > from, nil
}

// drillResult says how much one run did and compared.
type drillResult struct {
	acts, together, reads, grouped, batched, raced, matches, exact uint64
	account
}

func (r *drillResult) add(o drillResult) {
	r.acts += o.acts
	r.together += o.together
	r.reads += o.reads
	r.grouped += o.grouped
	r.batched += o.batched
	r.raced += o.raced
	r.matches += o.matches
	r.exact += o.exact
	r.account.add(o.account)
}

func (r drillResult) String() string {
	return fmt.Sprintf("%d acts, %d of them begun while another shard's was under way; %d lookups with %d matches while they ran, %d in groups, batches with %d queries (%d answers raced with an act; %d depths had to be exact); at the end %v",
		r.acts, r.together, r.reads, r.matches, r.grouped, r.batched, r.raced, r.exact, r.account)
}

// want fails the test when what runs of sub should have met was not met.
func (r drillResult) want(t *testing.T, sub subject, shards int) {
	t.Helper()
	for what, n := range map[string]uint64{"lookup": r.reads, "lookup that raced": r.raced, "grouped answer": r.grouped, "query in a batch": r.batched} {
		if n == 0 {
			t.Errorf("no %s: %v", what, r)
		}
	}
	if r.together == 0 && shards > 1 && runtime.GOMAXPROCS(0) > 1 {
		t.Errorf("no two shards' writers acted at once: %v", r)
	}
	if strings.HasPrefix(sub.name, "chain") {
		r.account.want(t)
	}
}

// shardCount returns the number of shards that have a writer each.
func shardCount(idx shard.Index) int {
	if s, ok := idx.(*shard.Sharded); ok {
		return s.Shards()
	}
	return 1
}

// proveConcurrent makes one run.
func proveConcurrent(seed, acts, reads uint64, sub subject) (res drillResult, err error) {
	defer guard(&err)
	f, err := newFleet(shard.Options{}, []subject{sub})
	if err != nil {
		return res, err
	}
	d := &drill{s: newStage(seed), f: f, idx: f.sides[1][0], each: heldFew, write: make([]sync.Mutex, shardCount(f.sides[1][0]))}
	if seed%2 == 1 {
		d.each = heldMany
	}
	d.cast, d.later = make([]*life, writerCount*d.each), make([][]lateAct, writerCount*d.each)
	for hashes := range uint64(3) { // most holders hash alike, some do not
		plays, err := d.s.plays(hashes / 2)
		if err != nil {
			return res, err
		}
		for _, p := range plays {
			if err := d.s.rehearse(p); err != nil {
				return res, err
			}
		}
		d.pool = append(d.pool, plays)
	}
	r := rand.New(rand.NewPCG(seed, 7))
	for i := range d.cast {
		if err := d.join(i, d.choose(r)); err != nil {
			return res, err
		}
	}
	var all sync.WaitGroup
	for w := range writerCount {
		all.Go(func() { d.guarded(func() { d.writer(w, seed, acts, reads) }) })
	}
	for i := range uint64(readerCount) {
		all.Go(func() { d.guarded(func() { d.reader(seed*readerCount + i) }) })
	}
	all.Wait()
	res = drillResult{
		d.acts.Load(), d.together.Load(), d.reads.Load(), d.grouped.Load(), d.batched.Load(), d.raced.Load(), d.matches.Load(), d.exact.Load(), account{},
	}
	if e := d.failed.Load(); e != nil {
		return res, *e
	}
	if err := d.catchUp(); err != nil {
		return res, err
	}
	f.check()
	if err := f.cmp.State(); err != nil {
		return res, err
	}
	for _, q := range d.s.questions {
		if err := f.cmp.Chain(q.ns, q.chain); err != nil {
			return res, err
		}
	}
	res.account = f.account(int(res.acts))
	return res, nil
}

// guarded turns a panic of fn into a failure of the run.
func (d *drill) guarded(fn func()) {
	var err error
	func() {
		defer guard(&err)
		fn()
	}()
	if err != nil {
		d.fail(err)
	}
}

// proveRuns makes so many runs over sub.
func proveRuns(t *testing.T, runs, acts, reads uint64, sub subject, shards int) {
	t.Helper()
	var sum drillResult
	for seed := range runs {
		res, err := proveConcurrent(seed, acts, reads, sub)
		if err != nil {
			t.Fatalf("%s, run %d of %d (seed %d): %v", sub.name, seed+1, runs, seed, err)
		}
		sum.add(res)
	}
	sum.want(t, sub, shards)
	t.Logf("%s: %d of %d exact: %v", sub.name, runs, runs, sum)
}

// TestProofConcurrent: 16 writers, 4 readers, holders that come and go; each run
// must be within bounds throughout and exact at the end.
func TestProofConcurrent(t *testing.T) {
	skipShort(t)
	runs, acts, reads := uint64(longtest.N(8, 60)), uint64(4000), uint64(3000)
	if shard.RaceEnabled {
		acts, reads = 1000, 300
	}
	for _, sub := range subjects() {
		idx, err := sub.make(shard.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Run(sub.name, func(t *testing.T) { proveRuns(t, runs, acts, reads, sub, shardCount(idx)) })
	}
}

// TestProofTwoShards: writers in two shards at once, 400 runs of 400 in the long
// suite at each level of the kernels.
func TestProofTwoShards(t *testing.T) {
	runs, acts, reads := uint64(longtest.N(12, 400)), uint64(1500), uint64(800)
	if shard.RaceEnabled {
		runs, acts, reads = uint64(longtest.N(6, 100)), 500, 150
	}
	asmtest.ForEachLevel(t, func(t *testing.T) { proveRuns(t, runs, acts, reads, sharded("chain", 2), 2) })
}
