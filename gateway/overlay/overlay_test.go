// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/policy"
	"kindex/internal/kv"
)

// holders returns n ready workers' only ranks.
func holders(n int) (out []*fleet.Holder) {
	for i := range n {
		w := &fleet.Worker{ID: fmt.Sprint("w", i), Spec: &fleet.Spec{Instance: fmt.Sprint(i), Ranks: 1}}
		w.SetState(fleet.Ready)
		h := &fleet.Holder{Worker: w, Seat: i}
		w.Holders = []*fleet.Holder{h}
		out = append(out, h)
	}
	return out
}

// blocks returns the hashes of n blocks that begin with the same shared ones.
func blocks(n, shared int, tail uint64) []kv.ContentHash {
	out := make([]kv.ContentHash, n)
	for i := range out {
		out[i] = kv.ContentHash(i + 1)
		if i >= shared {
			out[i] = kv.ContentHash(uint64(i+1)<<32 + tail)
		}
	}
	return out
}

const second = int64(time.Second)

func open(hashes []kv.ContentHash) *View {
	v := &View{}
	v.Open(7, hashes)
	return v
}

func TestAnchors(t *testing.T) {
	for n := 1; n <= longest; n++ {
		k := anchors(n)
		if anchor(k-1) > n || anchor(k) <= n {
			t.Fatalf("anchors(%d) = %d: anchor %d is %d and the next %d", n, k, k-1, anchor(k-1), anchor(k))
		}
	}
}

func TestCommon(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n, m, same := rng.IntN(40), rng.IntN(40), rng.IntN(40)
		a := appendChain(nil, 7, blocks(n, same, 1))
		b := appendChain(nil, 7, blocks(m, same, 2))
		want := min(n, m, same)
		for known := 0; known <= want; known += 7 {
			if got := common(a, b, known); got != want {
				t.Fatalf("chains of %d and %d blocks that share %d: common is %d", n, m, same, got)
			}
		}
	}
}

// TestFindAgainstNaive holds the table against a list of all entries.
func TestFindAgainstNaive(t *testing.T) {
	for _, dense := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(3, 4))
		tab, hs := newTable(1000, 1<<30, dense), holders(5)
		var all []*entry
		for step := range 4000 {
			now := int64(step)
			switch rng.IntN(6) {
			case 0:
				if len(all) > 0 {
					tab.end(all[rng.IntN(len(all))])
					if dense { // what an ended entry had taken the places of is not found again
						for _, e := range all {
							tab.end(e)
						}
					}
				}
			case 1:
				e := newEntry(hs[rng.IntN(5)], appendChain(nil, 7, blocks(1+rng.IntN(90), rng.IntN(90), uint64(rng.IntN(3)))), now+100)
				tab.root(e, nil)
				tab.rest(e, now)
				all = append(all, e)
			case 2:
				tab.sweep(now)
			default:
				chain := appendChain(nil, 7, blocks(1+rng.IntN(90), rng.IntN(90), uint64(rng.IntN(3))))
				want := map[*fleet.Holder]int{}
				for _, e := range all {
					if n := e.alive(now); n > 0 {
						if d := common(e.chain[:n], chain, 0); d > want[e.holder] {
							want[e.holder] = d
						}
					}
				}
				got := map[*fleet.Holder]int{}
				for _, h := range tab.find(nil, chain, now, nil) {
					got[h.e.holder] = h.depth
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("dense %t, step %d: found %v, want %v", dense, step, got, want)
				}
			}
		}
		for _, e := range all {
			tab.end(e)
		}
		tab.sweep(1 << 40)
		if n, b := tab.entries.Load(), tab.bytes.Load(); n != 0 || b != 0 {
			t.Errorf("dense %t: %d entries and %d bytes are left", dense, n, b)
		}
		for i := range tab.shards {
			if n := len(tab.shards[i].lists); n != 0 {
				t.Errorf("dense %t: shard %d has %d lists left", dense, i, n)
			}
		}
	}
}

func TestPredictedLifeAndTruth(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(3)
	prompt := blocks(20, 20, 0)
	v := open(prompt)
	index := []policy.Match{{Holder: hs[1], Blocks: 4, Device: 4}}
	if got := o.Merge(v, index, 0); len(got) != 1 {
		t.Fatalf("an empty overlay made %d matches of 1", len(got))
	}
	if _, ok := o.Claim(v, nil, hs[0], 0, false); !ok {
		t.Fatal("the first claim failed")
	}
	sibling := open(blocks(25, 13, 9))
	got := o.Merge(sibling, append([]policy.Match(nil), index...), second)
	if len(got) != 2 || got[0].Holder != hs[0] || got[0].Blocks != 13 || !got[0].Predicted || got[1] != index[0] {
		t.Fatalf("a sibling of 13 blocks found %+v", got)
	}
	if n := sibling.Indexed(hs[0], got[0].Blocks); n != 0 {
		t.Errorf("the index is said to have %d blocks of the predicted holder", n)
	}
	// The index knows more of the same holder: nothing of the overlay is left.
	if got = o.Merge(sibling, []policy.Match{{Holder: hs[0], Blocks: 14}}, second); len(got) != 1 || got[0].Blocks != 14 || got[0].Predicted {
		t.Errorf("what the index knows was changed: %+v", got)
	}
	hs[0].Worker.SetState(fleet.Removed)
	if got = o.Merge(sibling, nil, second); len(got) != 0 {
		t.Errorf("a worker that was removed is named: %+v", got)
	}
	hs[0].Worker.SetState(fleet.Ready)
	if got = o.Merge(sibling, nil, 2*second); len(got) != 0 {
		t.Errorf("past its life: %+v", got)
	}
	o.Sweep(2 * second)
	if s := o.Stats(); s.PredictedEntries != 0 || s.PredictedBytes != 0 {
		t.Errorf("past its life %d entries, %d bytes are left", s.PredictedEntries, s.PredictedBytes)
	}
}

func TestPredictedEndsWithTheIndexAndWithFailure(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(2)
	v := open(blocks(20, 20, 0))
	o.Merge(v, nil, 0)
	o.Claim(v, nil, hs[0], 0, false)
	o.Merge(v, []policy.Match{{Holder: hs[0], Blocks: 20}}, 1)
	if got := o.Merge(v, nil, 2); len(got) != 0 {
		t.Errorf("the index had told of it, and then of its end: still %+v", got)
	}
	p, _ := o.Claim(v, nil, hs[1], 3, false)
	o.Withdraw(p)
	if got := o.Merge(v, nil, 4); len(got) != 0 {
		t.Errorf("withdrawn, and still %+v", got)
	}
	if p, ok := o.Claim(v, []policy.Match{{Holder: hs[1], Blocks: 20}}, hs[1], 5, false); !ok || p.e != nil {
		t.Error("a prompt that the holder has whole was predicted")
	}
}

func TestBoundsHoldUnderAnyLife(t *testing.T) {
	opt := DefaultOptions()
	opt.PredictLife, opt.MaxEntries = 1000*time.Hour, 100
	o, hs := New(opt), holders(4)
	for i := range 5000 {
		v := open(blocks(10+i%50, 0, uint64(i)))
		o.Merge(v, nil, 0)
		o.Claim(v, nil, hs[i%4], 0, false)
	}
	if s := o.Stats(); s.PredictedEntries > 100 || s.Evicted < 4800 {
		t.Errorf("%d entries, %d evicted: want at most 100", s.PredictedEntries, s.Evicted)
	}
	opt.MaxEntries, opt.MaxBytes = 1<<20, 100_000
	o = New(opt)
	for i := range 500 {
		v := open(blocks(200, 0, uint64(i)))
		o.Merge(v, nil, 0)
		o.Claim(v, nil, hs[i%4], 0, false)
	}
	if s := o.Stats(); s.PredictedBytes > 100_000 || s.PredictedEntries == 0 {
		t.Errorf("%d entries, %d bytes: want at most 100000", s.PredictedEntries, s.PredictedBytes)
	}
}

// TestBurst has siblings decided at once: all must go where the first went.
func TestBurst(t *testing.T) {
	for round := range 60 {
		o, hs := New(DefaultOptions()), holders(8)
		var wg sync.WaitGroup
		var mu sync.Mutex
		used := map[*fleet.Holder]int{}
		start := make(chan struct{})
		for i := range 16 {
			wg.Go(func() {
				v := open(blocks(40, 30, uint64(i)))
				<-start
				var h *fleet.Holder
				for try := 0; ; try++ {
					h = hs[rand.IntN(len(hs))]
					got := o.Merge(v, nil, 0)
					if len(got) > 0 {
						h = got[0].Holder
					}
					if _, ok := o.Claim(v, got, h, 0, try == 50); ok {
						break
					}
				}
				mu.Lock()
				used[h]++
				mu.Unlock()
			})
		}
		close(start)
		wg.Wait()
		if len(used) != 1 {
			t.Fatalf("round %d: siblings went to %d holders", round, len(used))
		}
	}
}

// told is an answer of holder h to a prompt of n blocks of 16 tokens and one token more.
func told(h *fleet.Holder, n int, cached, indexed uint32) *Answer {
	return &Answer{
		Holder: h, Prompt: int64(16*n + 1), Cached: int64(cached) * 16, BlockSize: 16, Indexed: indexed, Expected: indexed, Available: indexed,
	}
}

// settleAll has the index say that it knows of so many blocks of each claim.
func settleAll(o *Overlay, indexed uint32, now int64) (n int) {
	for c := o.Due(now); c != nil; c = o.Due(now) {
		o.Settle(c, indexed, now)
		n++
	}
	return n
}

func TestConfirmation(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(2)
	v := open(blocks(20, 20, 0))
	o.Answered(v, told(hs[0], 20, 12, 0), 0)
	if settleAll(o, 0, 1) != 0 {
		t.Fatal("a claim came before the index had time to hear of it")
	}
	if n := settleAll(o, 0, second); n != 1 {
		t.Fatalf("%d claims are due, want 1", n)
	}
	got := o.Merge(v, nil, second)
	if len(got) != 1 || got[0].Holder != hs[0] || got[0].Blocks != 12 || got[0].Predicted {
		t.Fatalf("12 confirmed blocks are %+v", got)
	}
	// A longer hit takes the entry's place, and a shorter prompt contradicts nothing.
	o.Answered(v, told(hs[0], 20, 20, 12), second)
	settleAll(o, 0, 2*second)
	o.Answered(open(blocks(5, 5, 0)), told(hs[0], 5, 5, 0), 2*second)
	if got = o.Merge(v, nil, 2*second); len(got) != 1 || got[0].Blocks != 20 || o.Stats().ConfirmedEntries != 1 {
		t.Fatalf("20 confirmed blocks are %+v in %d entries", got, o.Stats().ConfirmedEntries)
	}
	// Less than that contradicts: what is left counts.
	o.Answered(v, told(hs[0], 20, 7, 20), 3*second)
	if got = o.Merge(v, nil, 3*second); len(got) != 1 || got[0].Blocks != 7 || o.Stats().Contradicted != 1 {
		t.Fatalf("7 blocks that are left are %+v", got)
	}
	// The index takes over.
	o.Merge(v, []policy.Match{{Holder: hs[0], Blocks: 9}}, 3*second)
	if got = o.Merge(v, nil, 3*second); len(got) != 0 || o.Stats().ConfirmedEntries != 0 {
		t.Fatalf("the index told of them, and of their end: %+v", got)
	}
}

func TestConfirmedAges(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(1)
	v := open(blocks(8, 8, 0))
	o.Answered(v, told(hs[0], 8, 8, 0), 0)
	settleAll(o, 0, second)
	later := 9 * 60 * second
	o.Answered(v, told(hs[0], 8, 8, 8), later)
	for _, at := range []int64{later, later + 10*60*second - 1, later + 10*60*second} {
		o.Sweep(at)
		if got, want := len(o.Merge(v, nil, at)), at < later+10*60*second; (got == 1) != want {
			t.Errorf("at %v: %d matches, want any: %t", time.Duration(at), got, want)
		}
	}
}

func TestWhatTheIndexHeardOfIsNotConfirmed(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(1)
	v := open(blocks(8, 8, 0))
	o.Answered(v, told(hs[0], 8, 8, 0), 0)
	settleAll(o, 8, second) // events came after the answer, as they do
	if got := o.Merge(v, nil, second); len(got) != 0 {
		t.Errorf("the index knew: %+v", got)
	}
}

func TestEmptiedCacheShows(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(1)
	for i := range 10 {
		o.Answered(open(blocks(8, 0, uint64(i))), told(hs[0], 8, 8, 0), 0)
	}
	settleAll(o, 0, second)
	if n := o.Stats().ConfirmedEntries; n != 10 {
		t.Fatalf("%d chains are confirmed, want 10", n)
	}
	for i := range 2 {
		o.Answered(open(blocks(8, 0, uint64(i))), told(hs[0], 8, 0, 0), second)
	}
	for i := range 10 {
		if got := o.Merge(open(blocks(8, 0, uint64(i))), nil, second); len(got) != 0 {
			t.Errorf("chain %d of an emptied cache: %+v", i, got)
		}
	}
	if s := o.Stats(); s.Emptied != 1 {
		t.Errorf("%d caches are said to be emptied, want 1", s.Emptied)
	}
}

func TestFaultyCache(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(1)
	w := hs[0].Worker
	v := open(blocks(20, 20, 0))
	for i := range 8 {
		if o.Worker(w).Faulty {
			t.Fatalf("flagged after %d answers", i)
		}
		o.Answered(v, told(hs[0], 20, 3, 20), 0)
	}
	if !o.Worker(w).Faulty || w.Vetoes() != fleet.FaultyCache {
		t.Fatalf("8 answers with 3 of 20 blocks: vetoes %b", w.Vetoes())
	}
	for range window {
		o.Answered(v, told(hs[0], 20, 20, 20), 0)
	}
	if o.Worker(w).Faulty || w.Vetoes() != 0 {
		t.Errorf("flagged although it agrees again: vetoes %b", w.Vetoes())
	}
	for range 8 {
		o.Answered(v, told(hs[0], 20, 0, 20), 0)
	}
	o.Sweep(unheardFor - 1)
	if w.Vetoes() == 0 {
		t.Error("lifted too early")
	}
	o.Sweep(unheardFor)
	if w.Vetoes() != 0 || o.Worker(w).Faulty {
		t.Error("not lifted although nothing bears it out")
	}
	// Much more than its events say is told, and steers nobody away.
	for i := range 8 {
		o.Answered(open(blocks(20, 0, uint64(i))), told(hs[0], 20, 20, 0), 0)
	}
	settleAll(o, 0, second)
	if !o.Worker(w).Hiding || w.Vetoes() != 0 {
		t.Errorf("8 answers with 20 blocks nobody told of: %+v, vetoes %b", o.Worker(w), w.Vetoes())
	}
}

func TestAccuracy(t *testing.T) {
	o, hs := New(DefaultOptions()), holders(1)
	v := open(blocks(20, 20, 0))
	a := told(hs[0], 20, 20, 20)
	o.Answered(v, a, 0)
	a.Prompt = 320 // the last token of whole blocks is computed again, so that one block less counts
	a.Cached = 19 * 16
	o.Answered(v, a, 0)
	a = told(hs[0], 20, 10, 15)
	a.Available = 18
	o.Answered(v, a, 0)
	s := o.Stats()
	if s.Answers != 3 || s.Exact != 2 || s.Chosen != (20+19+15)*16 || s.Available != (20+19+18)*16 || s.Delivered != (20+19+10)*16 {
		t.Errorf("got %+v", s)
	}
	if s.Differences[Differences/2] != 2 || s.Differences[Differences/2-3] != 1 {
		t.Errorf("differences %v: want 2 of none and one of 4 to 7 blocks less", s.Differences)
	}
}

func TestDifferenceNames(t *testing.T) {
	for d, want := range map[int64]string{0: "0", 1: "1", -16: "-1", 17: "2..3", -64: "-4..-7", 5000: "128+", -1 << 40: "-128+"} {
		if got := DifferenceName(difference(d, 16)); got != want {
			t.Errorf("%d tokens of blocks of 16 are in %q, want %q", d, got, want)
		}
	}
}

func BenchmarkMerge(b *testing.B) {
	o, hs := New(DefaultOptions()), holders(8)
	prompt := blocks(256, 256, 0)
	for i := range 500 {
		v := open(blocks(256, 20, uint64(i)))
		o.Merge(v, nil, 0)
		o.Claim(v, nil, hs[i%8], 0, true)
	}
	b.Run("shared root", func(b *testing.B) {
		v := open(prompt)
		var ms []policy.Match
		b.ReportAllocs()
		for b.Loop() {
			v.Open(7, prompt)
			ms = o.Merge(v, ms[:0], 0)
		}
	})
	other := blocks(256, 0, 1<<31)
	b.Run("nothing", func(b *testing.B) {
		v := open(other)
		var ms []policy.Match
		b.ReportAllocs()
		for b.Loop() {
			v.Open(7, other)
			ms = o.Merge(v, ms[:0], 0)
		}
	})
	b.Run("claim", func(b *testing.B) {
		v := open(other)
		b.ReportAllocs()
		for b.Loop() {
			v.Open(7, other)
			o.Merge(v, nil, 0)
			o.Claim(v, nil, hs[0], 0, true)
		}
	})
}
