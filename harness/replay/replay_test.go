// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kindex/harness/corpus"
	"kindex/shard"
)

func small(t testing.TB) *corpus.Corpus {
	t.Helper()
	rows, err := corpus.Generate(3, 200)
	if err != nil {
		t.Fatal(err)
	}
	c, err := corpus.Simulate(t.Context(), rows, corpus.Params{Duplication: 2, Length: 1, Workers: 7, GPUBlocks: 1_200, Seed: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Ops = append(c.Ops, corpus.Op{Kind: corpus.Clear, Due: corpus.Window, Worker: 2, At: corpus.NoNode})
	return c
}

func source(c *corpus.Corpus, kind string, lanes, shards int) *Source {
	return &Source{
		Corpus: c, Lanes: lanes, Queries: 2,
		NewTarget: func() (*Target, error) { return NewTarget(kind, c.Workers, make([]shard.Options, shards)...) },
	}
}

// TestCheck replays through one and more lanes into every index: no lookup may differ.
func TestCheck(t *testing.T) {
	c := small(t)
	for _, kind := range shard.Kinds {
		for _, n := range [][2]int{{1, 1}, {1, 2}, {2, 3}} {
			e, err := Check(t.Context(), source(c, kind, n[0], n[1]), func(int, int) {})
			if err != nil {
				t.Fatal(err)
			}
			if e.Lookups != c.Counts().Requests || e.Wrong != 0 {
				t.Errorf("%s, %d lanes, %d shards: %d of %d lookups wrong, want none of %d", kind, n[0], n[1], e.Wrong, e.Lookups, c.Counts().Requests)
			}
		}
	}
}

// TestCheckFinds plants a fault: a target that misses one event must be seen.
func TestCheckFinds(t *testing.T) {
	c := small(t)
	src := source(c, "chain", 1, 1)
	plain := src.NewTarget
	src.NewTarget = func() (*Target, error) {
		tg, err := plain()
		if err == nil {
			tg.shards[1] = deaf{tg.shards[1]}
		}
		return tg, err
	}
	e, err := Check(t.Context(), src, func(int, int) {})
	if err != nil || e.Wrong == 0 {
		t.Errorf("%d of %d lookups wrong (%v), want some: worker 1 stores nothing", e.Wrong, e.Lookups, err)
	}
}

// deaf is an index that ignores stores.
type deaf struct{ shard.Index }

func (deaf) Store(shard.Holder, *shard.Store) error { return nil }

// TestModes runs every mode: all that happened must be counted.
func TestModes(t *testing.T) {
	c := small(t)
	n := c.Counts()
	events := n.StoredBlocks + n.RemovedBlocks
	src := source(c, "chain", 2, 2)
	memory := func(mode string, tg *Target) {
		if m := tg.Memory(); m.Memberships == 0 || m.PerMembership <= 0 || m.Purpose["runs"] <= 0 {
			t.Errorf("%s: memory %+v", mode, m)
		}
	}
	tg, a, err := Bare(src)
	if err != nil || a.Blocks != events || a.CPU <= 0 || a.Wall <= 0 {
		t.Errorf("bare: %+v, %v, want %d blocks", a, err, events)
	}
	memory("bare", tg)
	if a, err = BareMix(src); err != nil || a.Blocks != n.BlockOps || a.CPU <= 0 {
		t.Errorf("bare mix: %+v, %v, want %d blocks", a, err, n.BlockOps)
	}
	if tg, a, err = Write(src); err != nil || a.Blocks != events || a.CPU <= 0 {
		t.Errorf("write: %+v, %v, want %d blocks", a, err, events)
	}
	memory("write", tg)
	tg, half, full, err := Lookups(src)
	if err != nil || full.Lookups != 2*n.Requests || full.Blocks != 2*n.RequestBlocks || half.Lookups == 0 || half.Lookups >= full.Lookups || full.Latency.Samples != int(full.Lookups) || full.Matches <= 0 || full.Grouped <= 0 || full.Batched <= 0 {
		t.Errorf("lookup: %+v, %+v, %v", half, full, err)
	}
	memory("lookup", tg)
	tg, wrote, looked, err := Contend(src)
	if err != nil || wrote.Blocks <= 0 || wrote.Blocks >= events || looked.Lookups == 0 || looked.CPU <= 0 {
		t.Errorf("contend: %+v, %+v, %v", wrote, looked, err)
	}
	memory("contend", tg)
	for _, window := range []time.Duration{0, 40 * time.Millisecond} {
		tg, in, err := Replay(src, window)
		if err != nil {
			t.Fatal(err)
		}
		if in.Blocks != n.BlockOps || in.Ops != n.Ops || in.Latency.Samples != int(n.Requests) || in.FrontCPU <= 0 || in.LaneCPU <= 0 || in.Wall < in.Issued {
			t.Errorf("window %v: %+v", window, in)
		}
		if window > 0 && (in.Issued < int64(window) || in.DueToDone.Samples != int(n.Requests) || in.Achieved() > in.Offered()) {
			t.Errorf("window %v: issued within %d ns, %+v", window, in.Issued, in)
		}
		memory("replay", tg)
	}
	if _, err := NewLanes(tg, 3, 1); err == nil {
		t.Error("3 lanes for 2 shards are not refused")
	}
}

// TestKeptUp pins the published rule.
func TestKeptUp(t *testing.T) {
	for _, test := range []struct {
		issued, wall int64
		valid, kept  bool
	}{{1_010, 1_100, true, true}, {1_011, 1_050, false, false}, {1_000, 1_101, true, false}} {
		r := InOrder{Window: 1_000, Issued: test.issued, Wall: test.wall}
		if r.ValidGenerator() != test.valid || r.KeptUp() != test.kept {
			t.Errorf("%+v: valid %v, kept up %v, want %v, %v", r, r.ValidGenerator(), r.KeptUp(), test.valid, test.kept)
		}
	}
}

// TestQueue sends numbered events through a queue that is small, in bursts, with
// sleeps forced on both sides: all must arrive, in order, never more than its room.
func TestQueue(t *testing.T) {
	const n = 200_000
	steps := make([]corpus.Step, n)
	for i := range steps {
		steps[i].Due = uint32(i)
	}
	q := newQueue(128)
	got := make(chan error, 1)
	go func() {
		rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // seeded on purpose
		next := 0
		for {
			a, b := q.take()
			if len(a) == 0 {
				break
			}
			if len(a)+len(b) > 128 {
				t.Errorf("%d events wait, the room is for 128", len(a)+len(b))
			}
			for _, s := range slices.Concat(a, b) {
				if int(s.Due) != next {
					t.Errorf("event %d, want %d", s.Due, next)
				}
				next++
			}
			if rng.IntN(50) == 0 {
				time.Sleep(20 * time.Microsecond)
			}
			q.done(len(a) + len(b))
		}
		if next != n {
			t.Errorf("%d events, want %d", next, n)
		}
		got <- nil
	}()
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // seeded on purpose
	for i := range steps {
		q.put(&steps[i])
		switch rng.IntN(400) {
		case 0:
			q.publish()
			time.Sleep(30 * time.Microsecond)
		case 1:
			q.drain()
			if q.head.Load() != uint64(i+1) {
				t.Fatalf("drained with %d of %d done", q.head.Load(), i+1)
			}
		case 2:
			q.publish()
		}
	}
	q.end()
	<-got
}
