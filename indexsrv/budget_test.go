// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"strconv"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// budgetRig is a chain index of one small shard and streams of workers into it.
type budgetRig struct {
	testing.TB
	w     *Writer
	feeds []*feedTest
	of    []*worker
	seqs  []uint64
	next  uint64 // block never told
}

// newBudgetRig begins one stream for each of workers, which numbers their workers.
func newBudgetRig(t *testing.T, kind string, bytes uint64, workers ...int) *budgetRig {
	t.Helper()
	idx, err := shard.NewSharded(kind, shard.Options{ArenaBytes: bytes})
	if err != nil {
		t.Fatal(err)
	}
	r := &budgetRig{TB: t, w: NewWriter(idx), next: 1}
	known := map[int]*worker{}
	for _, n := range workers {
		if known[n] == nil {
			known[n] = &worker{id: TextID(strconv.Itoa(n))}
		}
		h, err := r.w.AddHolder(testModel)
		if err != nil {
			t.Fatal(err)
		}
		f := &feedTest{
			TB: t, w: r.w, h: h, now: epochTime,
			Feed: NewFeed(StreamConfig{Endpoint: "tcp://127.0.0.1:1", Model: testModel, BlockSize: testBlock}, r.w, h),
		}
		f.sink.charge = r.w.charge(h, known[n])
		f.connect()
		r.feeds, r.of, r.seqs = append(r.feeds, f), append(r.of, known[n]), append(r.seqs, 0)
	}
	return r
}

// store has stream i tell one batch of n new blocks and returns them.
func (r *budgetRig) store(i, n int) []uint64 {
	blocks := make([]uint64, n)
	for j := range blocks {
		blocks[j] = r.next
		r.next++
	}
	r.feeds[i].live(r.seqs[i], storeOf(0, blocks...))
	r.seqs[i]++
	return blocks
}

func (r *budgetRig) tell(i int, ev kv.Event) {
	r.feeds[i].live(r.seqs[i], ev)
	r.seqs[i]++
}

// fill has streams heavy and light store until heavy is refused.
func (r *budgetRig) fill(heavy, light int) {
	r.Helper()
	for range 10_000 {
		r.store(heavy, 300)
		r.store(light, 10)
		if r.feeds[heavy].sink.overBudget > 0 {
			return
		}
		if r.feeds[heavy].sink.arenaFull > 0 {
			used, bound := r.memory()
			r.Fatalf("a full index at %d of %d bytes, which the budget is there to prevent", used, bound)
		}
	}
	r.Fatal("nobody is refused")
}

func (r *budgetRig) memory() (used, bound uint64) { return r.w.budgets[0].idx.Memory() }

// TestBudgetHeaviestFirst fills an index: the worker with most is refused first, by
// both its streams together, then the next, and the lightest takes on as long as
// anybody can. Nothing that was taken goes, and the bound holds.
func TestBudgetHeaviestFirst(t *testing.T) {
	for _, kind := range []string{"chain", "positional"} {
		t.Run(kind, func(t *testing.T) {
			// Worker 1's two streams have more than worker 2, neither alone has.
			r := newBudgetRig(t, kind, 8<<20, 1, 1, 2, 3)
			first := make([]uint64, len(r.feeds)) // batch in which each stream was refused first
			kept := make([][][]uint64, len(r.feeds))
			sizes := []int{120, 120, 200, 20}
			for round := uint64(1); round < 4_000; round++ {
				for i, n := range sizes {
					before := r.feeds[i].sink.overBudget
					blocks := r.store(i, n)
					switch {
					case r.feeds[i].sink.overBudget > before:
						if first[i] == 0 {
							first[i] = round
						}
					case r.feeds[i].sink.arenaFull > 0:
						t.Fatalf("round %d: stream %d met a full index, which the budget is there to prevent", round, i)
					case first[i] == 0:
						kept[i] = append(kept[i], blocks)
					}
				}
				if first[0] > 0 && first[1] > 0 && first[2] > 0 && first[3] > 0 {
					break
				}
			}
			if first[0] == 0 || first[1] == 0 || first[2] < max(first[0], first[1]) || first[3] < first[2] {
				t.Errorf("the streams were refused first in rounds %v: want both of worker 1, then worker 2, then 3", first)
			}
			if used, bound := r.memory(); used > bound || used < bound-bound/8 {
				t.Errorf("%d bytes of %d are used", used, bound)
			}
			for i := range kept {
				for _, blocks := range kept[i] {
					if d := depth(r.w, r.feeds[i].h, blocks...); d != len(blocks) {
						t.Fatalf("stream %d holds %d of %d blocks that were taken", i, d, len(blocks))
					}
				}
				r.feeds[i].wantState(feed.StateDegraded)
				if why := r.feeds[i].Status().LastError; !strings.Contains(why, "this worker has most") {
					t.Errorf("stream %d says %q", i, why)
				}
				if n := r.feeds[i].Status().Dropped["over_budget"]; n == 0 {
					t.Errorf("stream %d counts none", i)
				}
			}
		})
	}
}

// TestBudgetRelaxes: once there is room again everybody is taken, and a refused
// stream is exact again with its next clear.
func TestBudgetRelaxes(t *testing.T) {
	r := newBudgetRig(t, "chain", 4<<20, 1, 2)
	r.fill(0, 1)
	r.feeds[0].wantState(feed.StateDegraded)
	r.feeds[1].wantState(feed.StateActive)
	if n := r.w.budgets[0].refused.Load(); n != 1 {
		t.Errorf("%d workers refused, want 1", n)
	}
	r.tell(0, clearAll())
	r.feeds[0].wantState(feed.StateActive)
	blocks := r.store(0, 50)
	if d := depth(r.w, r.feeds[0].h, blocks...); d != len(blocks) || r.w.budgets[0].refused.Load() != 0 {
		t.Errorf("after the clear it holds %d of %d blocks, %d workers refused", d, len(blocks), r.w.budgets[0].refused.Load())
	}
	r.feeds[0].wantState(feed.StateActive)
}

// TestBudgetAccounts: a worker's account goes with its last stream, refused or not.
func TestBudgetAccounts(t *testing.T) {
	r := newBudgetRig(t, "chain", 4<<20, 1, 1, 2)
	r.fill(0, 2)
	b := r.w.budgets[0]
	for i, want := range []int{2, 1, 0} {
		f := r.feeds[i]
		if err := r.w.Drop(f.h); err != nil {
			t.Fatal(err)
		}
		r.w.discharge(f.h, &f.sink.charge)
		if len(b.accounts) != want {
			t.Errorf("after stream %d: %d accounts, want %d", i, len(b.accounts), want)
		}
	}
	if n := b.refused.Load(); n != 0 {
		t.Errorf("%d workers refused, none is there", n)
	}
}

// TestBudgetBeforeFull: whatever fills up first, memory or a table that has no room
// to grow, the worker with most is refused before the index refuses anybody, and the
// bound holds.
func TestBudgetBeforeFull(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes uint64
		run   int // blocks of a chain
	}{
		{"the dictionary cannot double", 1_767_017, 300},
		{"the dictionary grows by huge pages", 5_021_630, 300},
		{"the table of edges cannot grow", 24_012_389, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newBudgetRig(t, "chain", c.bytes, 1, 2)
			for r.feeds[0].sink.overBudget == 0 {
				for range 300 / c.run {
					r.store(0, c.run)
				}
				r.store(1, 10)
				if n := r.feeds[0].sink.arenaFull + r.feeds[1].sink.arenaFull; n > 0 {
					used, bound := r.memory()
					t.Fatalf("a full index at %d of %d bytes", used, bound)
				}
			}
			for range 50 {
				r.store(0, 300)
				r.store(1, 3)
			}
			if n := r.feeds[0].sink.arenaFull + r.feeds[1].sink.arenaFull; n > 0 {
				t.Errorf("%d times a full index", n)
			}
			r.feeds[1].wantState(feed.StateActive)
			if used, bound := r.memory(); used > bound {
				t.Errorf("%d bytes of %d are used", used, bound)
			}
		})
	}
}

// TestBudgetClearInBatch: a batch that clears and stores, as an engine tells its reset
// with its next step, makes its stream exact.
func TestBudgetClearInBatch(t *testing.T) {
	r := newBudgetRig(t, "chain", 4<<20, 1, 2)
	r.fill(0, 1)
	r.feeds[0].wantState(feed.StateDegraded)
	before := r.feeds[0].sink.overBudget
	r.feeds[0].live(r.seqs[0], clearAll(), storeOf(0, 1<<40, 1<<40+1))
	r.seqs[0]++
	if d := depth(r.w, r.feeds[0].h, 1<<40, 1<<40+1); d != 2 || r.feeds[0].sink.overBudget != before || r.feeds[0].sink.arenaFull != 0 {
		t.Errorf("%d of 2 blocks, %d refused, %d times a full index", d, r.feeds[0].sink.overBudget-before, r.feeds[0].sink.arenaFull)
	}
	r.feeds[0].wantState(feed.StateActive)
}

// sizedIndex says of itself what a test wants.
type sizedIndex struct {
	shard.Sized
	used uint64
}

func (s *sizedIndex) Memory() (used, bound uint64) { return s.used, 1000 }
func (s *sizedIndex) Pressed() uint64              { return s.used }

// TestBudgetFullEarly: where the index is full though memory is free, of which it can
// make no use, the worker with most is refused all the same, until there is more.
func TestBudgetFullEarly(t *testing.T) {
	idx := &sizedIndex{used: 500}
	b := &budget{idx: idx, bound: 1000, begin: 940, mark: 940, calm: 910, accounts: map[*worker]*account{}}
	heavy, light := b.open(&worker{}), b.open(&worker{})
	heavy.settle(100)
	light.settle(10)
	light.full()
	for range 3 {
		light.full()
		light.settle(11)
	}
	if !heavy.tight() || light.tight() || b.refused.Load() != 1 {
		t.Fatalf("heavy is refused: %v, light: %v, %d in all", heavy.tight(), light.tight(), b.refused.Load())
	}
	idx.used = 400
	heavy.settle(50)
	if heavy.tight() || b.refused.Load() != 0 || b.calm != 940-1000/budgetCalm {
		t.Errorf("heavy is refused: %v, %d in all, calm %d", heavy.tight(), b.refused.Load(), b.calm)
	}
}
