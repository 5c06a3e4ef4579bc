// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kindex/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feedChain publishes batches from to to, each storing one block of a chain.
func feedChain(p *publisher, from, to uint64) {
	for q := from; q <= to; q++ {
		p.publish(q, payload(float64(q), storeOf(q, q+1))) // the chain of block 1 has no parent
	}
}

func endReason(t *testing.T, err error) EndReason {
	t.Helper()
	end, ok := errors.AsType[*EndError](err)
	if !ok {
		t.Fatalf("got %v, want an EndError", err)
	}
	return end.Reason
}

// A subscriber without a cursor is told everything, then what comes.
func TestFromTheBeginning(t *testing.T) {
	for _, rules := range []Rules{RulesOwn, RulesPeer} {
		for _, form := range []Form{FormOwn, FormPeer} {
			e, ps := openTest(t, 1, nil)
			direct := newContent(t)
			ps[0].connect()
			feedChain(ps[0], 0, 4)
			rp := newReplica(form, rules)
			s := subscribe(t, e, SubscribeRequest{Form: form, Rules: rules})
			if err := rp.drain(t, s); err != nil {
				t.Fatal(err)
			}
			feedChain(ps[0], 5, 6)
			if err := rp.drain(t, s); err != nil {
				t.Fatal(err)
			}
			r := rp.rank(t, 0)
			if r.batches != 7 || r.last != 6 || r.snapshots+r.resets != 0 {
				t.Errorf("rules %d, form %d: %d batches up to %d, %d snapshots, %d resets, want 7 up to 6 and none", rules, form, r.batches, r.last, r.snapshots, r.resets)
			}
			for q := range uint64(7) {
				direct.publish(storeOf(q, q+1))
			}
			if err := direct.differs(r.content); err != nil {
				t.Errorf("rules %d, form %d: %v", rules, form, err)
			}
			if rules == RulesOwn && (!r.standing.Primed || !r.standing.Exact) {
				t.Errorf("standing %+v, want primed and exact", r.standing)
			}
		}
	}
}

// A restart ends the peer's subscriptions and resets the others'; so does a
// resynchronisation.
func TestEpochs(t *testing.T) {
	e, ps := openTest(t, 1, nil)
	p := ps[0]
	p.connect()
	feedChain(p, 0, 4)
	own, peer := newReplica(FormOwn, RulesOwn), newReplica(FormPeer, RulesPeer)
	so := subscribe(t, e, SubscribeRequest{})
	sp := subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})
	for _, err := range []error{own.drain(t, so), peer.drain(t, sp)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	before := own.rank(t, 0).epoch
	p.kept = nil
	p.publish(0, payload(100, clearAll()))
	p.publish(1, payload(101, storeOf(0, 50)))
	if err := own.drain(t, so); err != nil {
		t.Fatal(err)
	}
	r := own.rank(t, 0)
	if r.resets != 1 || r.last != 1 || r.epoch <= before || !strings.Contains(r.why, "restarted") || r.idxMemberships(t) != 1 {
		t.Errorf("after a restart: %d resets (%s), last %d, epoch %d after %d, %d memberships", r.resets, r.why, r.last, r.epoch, before, r.idxMemberships(t))
	}
	err := peer.drain(t, sp)
	if endReason(t, err) != EndDataLoss {
		t.Errorf("the peer's subscription ends with %v, want data loss", err)
	}
	if _, again := sp.Next(t.Context()); !errors.Is(again, err) {
		t.Errorf("and then with %v", again)
	}
}

// What never comes is a hole to those who can be told, and a jump of numbers to
// the others.
func TestHoles(t *testing.T) {
	e, ps := openTest(t, 1, nil)
	p := ps[0]
	p.connect()
	feedChain(p, 0, 2)
	own, peer := newReplica(FormOwn, RulesOwn), newReplica(FormPeer, RulesPeer)
	so := subscribe(t, e, SubscribeRequest{})
	sp := subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})
	for _, err := range []error{own.drain(t, so), peer.drain(t, sp)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	feedChain(p, 5, 6)
	for range 20 {
		p.pass(time.Second)
	}
	for _, err := range []error{own.drain(t, so), peer.drain(t, sp)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := own.rank(t, 0); r.holes != 1 || r.batches != 5 || r.last != 6 || r.standing.Exact || !r.standing.Primed || r.standing.Why == "" {
		t.Errorf("own: %d holes, %d batches up to %d, standing %+v", r.holes, r.batches, r.last, r.standing)
	}
	if r := peer.rank(t, 0); r.batches != 5 || r.last != 6 {
		t.Errorf("peer: %d batches up to %d, want 5 up to 6", r.batches, r.last)
	}
	// A newcomer gets the state, marked.
	late := newReplica(FormOwn, RulesOwn)
	if err := late.drain(t, subscribe(t, e, SubscribeRequest{})); err != nil {
		t.Fatal(err)
	}
	if r := late.rank(t, 0); r.snapshots != 1 || !r.marked || r.batches != 0 {
		t.Errorf("late: %d snapshots, marked %t, %d batches, want one that says that numbers are unknown", r.snapshots, r.marked, r.batches)
	}
	// A cursor on the hole's end goes on.
	on := newReplica(FormOwn, RulesOwn)
	r := on.rank(t, 0)
	r.epoch, r.has, r.last = e.Ranks()[0].Info().Epoch, true, 4
	if err := on.drain(t, subscribe(t, e, SubscribeRequest{Cursors: []Cursor{{Epoch: r.epoch, Sequence: 4}}})); err != nil {
		t.Fatal(err)
	}
	if r.resets != 0 || r.batches != 2 {
		t.Errorf("on the hole: %d resets, %d batches, want 0 and 2", r.resets, r.batches)
	}
	// What was lost comes after all: everything anew.
	kept := p.kept
	p.kept = nil
	for q := range uint64(7) {
		if i := q; q < 3 {
			p.kept = append(p.kept, kept[i])
		} else if q < 5 {
			p.keep(q, payload(float64(q), storeOf(q, q+1)))
		} else {
			p.kept = append(p.kept, kept[i-2])
		}
	}
	for range 40 {
		p.pass(time.Second)
	}
	if err := own.drain(t, so); err != nil {
		t.Fatal(err)
	}
	if r := own.rank(t, 0); r.resets != 1 || r.batches != 12 || !r.standing.Exact || r.idxMemberships(t) != 7 {
		t.Errorf("own, after all came: %d resets, %d batches, standing %+v, %d memberships", r.resets, r.batches, r.standing, r.idxMemberships(t))
	}
	if err := peer.drain(t, sp); endReason(t, err) != EndDataLoss {
		t.Errorf("peer, after all came: %v, want data loss", err)
	}
}

// A subscriber that does not read costs nothing, and is told anew when it does.
func TestFallsBehind(t *testing.T) {
	e, ps := openTest(t, 1, func(c *EngineConfig) { c.HistoryBatches = 10 })
	p := ps[0]
	p.connect()
	feedChain(p, 0, 2)
	own, peer := newReplica(FormOwn, RulesOwn), newReplica(FormPeer, RulesPeer)
	so := subscribe(t, e, SubscribeRequest{})
	sp := subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})
	for _, err := range []error{own.drain(t, so), peer.drain(t, sp)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	feedChain(p, 3, 1000)
	if st := e.Ranks()[0].Stats(); st.MaxLag != 998 || st.Subscribers != 2 || st.HistoryBatches != 10 {
		t.Errorf("lag %d of %d subscribers, history of %d, want 998, 2, 10", st.MaxLag, st.Subscribers, st.HistoryBatches)
	}
	for _, err := range []error{own.drain(t, so), peer.drain(t, sp)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// A small history is no reason to cut off who is not far behind.
	if r := own.rank(t, 0); r.resets+r.snapshots != 0 || r.last != 1000 {
		t.Errorf("own, 998 behind: %d resets, %d snapshots, up to %d, want none, up to 1000", r.resets, r.snapshots, r.last)
	}
	const last = 1000 + lagEntries + 1
	feedChain(p, 1001, last)
	if err := own.drain(t, so); err != nil {
		t.Fatal(err)
	}
	if r := own.rank(t, 0); r.resets != 1 || r.snapshots != 1 || r.last != last || r.idxMemberships(t) != last+1 {
		t.Errorf("own: %d resets, %d snapshots up to %d, %d memberships", r.resets, r.snapshots, r.last, r.idxMemberships(t))
	}
	if err := peer.drain(t, sp); endReason(t, err) != EndOutOfRange {
		t.Errorf("peer: %v, want out of range", err)
	}
	if st := e.Ranks()[0].Stats(); st.FellBehind != 2 || st.MaxLag != 0 {
		t.Errorf("%d fell behind, lag %d, want 2 and 0", st.FellBehind, st.MaxLag)
	}
}

// A subscriber that takes a part of a snapshot and no more does not keep its cut
// open, and with it the memory of whatever comes and goes, past the history.
func TestStuckInASnapshot(t *testing.T) {
	for _, form := range []Form{FormOwn, FormPeer} {
		e, ps := openTest(t, 1, func(c *EngineConfig) { c.HistoryBatches = 10 })
		p := ps[0]
		p.connect()
		feedChain(p, 0, 2_500) // more than one chunk of blocks
		s := subscribe(t, e, SubscribeRequest{Form: form, Rules: RulesPeer})
		for {
			it, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if it.Kind == ItemChunk {
				break
			}
		}
		rank := e.Ranks()[0]
		if st := rank.Stats(); st.Live.Cuts != 1 {
			t.Fatalf("form %d: %d cuts are open in the middle of a snapshot, want 1", form, st.Live.Cuts)
		}
		feedChain(p, 2_501, 2_501+lagEntries)
		if st := rank.Stats(); st.Live.Cuts != 0 || rank.snapshots.open.Load() != 0 {
			t.Errorf("form %d: %d cuts are open once the history has passed, want none", form, st.Live.Cuts)
		}
		if _, err := s.Next(t.Context()); endReason(t, err) != EndOutOfRange {
			t.Errorf("form %d: %v, want out of range", form, err)
		}
	}
}

// A batch of which nothing counts, or nothing can be read, keeps its number.
func TestEmptyBatches(t *testing.T) {
	e, ps := openTest(t, 1, nil)
	p := ps[0]
	p.connect()
	window := storeOf(0, 1)
	window.Spec, window.SpecName = kv.SpecWindow, "sliding_window"
	p.publish(0, payload(0, window))
	p.publish(1, payload(1))
	p.publish(2, []byte{0xc1})
	p.publish(3, payload(3, storeOf(0, 2)))
	for range 20 {
		p.pass(time.Second)
	}
	rp := newReplica(FormOwn, RulesOwn)
	s := subscribe(t, e, SubscribeRequest{})
	if err := rp.drain(t, s); err != nil {
		t.Fatal(err)
	}
	st := e.Ranks()[0].Stats()
	if r := rp.rank(t, 0); r.last != 3 || r.snapshots != 1 || st.Holes != 1 || st.Lost != 1 || st.Dropped["non_main_group"] != 1 || st.Dropped["malformed"] == 0 {
		t.Errorf("up to %d, %d snapshots, stats %+v", r.last, r.snapshots, st)
	}
}

// Subscribers that need a snapshot at the same moment share one; those that hold
// different ones and do not read on are bounded.
func TestSnapshotsAreShared(t *testing.T) {
	const chain = 5000
	e, ps := openTest(t, 1, func(c *EngineConfig) { c.HistoryBatches = 40 })
	p := ps[0]
	p.connect()
	var all []uint64
	for b := range uint64(chain) {
		all = append(all, b+1)
	}
	p.publish(0, payload(0, storeOf(0, all...)))
	last := uint64(0)
	publish := func(n int) {
		for range n {
			last++
			p.publish(last, payload(float64(last), storeOf(chain+last-1, chain+last)))
		}
	}
	publish(60)
	hold := func() {
		s := subscribe(t, e, SubscribeRequest{})
		for {
			it, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if it.Kind == ItemChunk {
				return
			}
		}
	}
	for range 100 {
		hold()
	}
	if st := e.Ranks()[0].Stats(); st.Snapshots != 1 || st.SnapshotsShared != 99 || st.Live.Cuts != 1 {
		t.Errorf("%d snapshots, shared %d times, %d open, want 1, 99, 1", st.Snapshots, st.SnapshotsShared, st.Live.Cuts)
	}
	for range 40 {
		publish(400)
		hold()
		if st := e.Ranks()[0].Stats(); st.Live.Cuts > maxSnapshots {
			t.Fatalf("%d cuts are open after %d snapshots, want %d at most", st.Live.Cuts, st.Snapshots, maxSnapshots)
		}
	}
	rp := newReplica(FormOwn, RulesOwn)
	if err := rp.drain(t, subscribe(t, e, SubscribeRequest{})); err != nil {
		t.Fatal(err)
	}
	if r := rp.rank(t, 0); r.idxMemberships(t) != chain+last || r.last != last {
		t.Errorf("%d memberships after batch %d, want %d after %d", r.idxMemberships(t), r.last, chain+last, last)
	}
}

// A thousand subscribers at once miss nothing of ranks that go on meanwhile.
func TestManySubscribers(t *testing.T) {
	const subscribers, ranks = 1000, 2
	e, ps := openTest(t, ranks, func(c *EngineConfig) { c.HistoryBatches = 100 })
	for _, p := range ps {
		p.connect()
		feedChain(p, 0, 199)
	}
	var wg sync.WaitGroup
	errs := make(chan error, subscribers)
	start := make(chan struct{})
	for i := range subscribers {
		s := subscribe(t, e, SubscribeRequest{Form: Form(i % int(numForms))})
		wg.Go(func() {
			<-start
			errs <- follow(t.Context(), s, ranks, 239)
		})
	}
	close(start)
	for q := uint64(200); q < 240; q++ {
		for _, p := range ps {
			feedChain(p, q, q)
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range e.Ranks() {
		st := r.Stats()
		if st.Snapshots+st.SnapshotsShared < subscribers {
			t.Errorf("rank %d: %d snapshots, shared %d times", st.Rank, st.Snapshots, st.SnapshotsShared)
		}
		if st.Live.Cuts > int(numForms)*maxSnapshots {
			t.Errorf("rank %d: %d cuts left open", st.Rank, st.Live.Cuts)
		}
	}
}

// follow reads s until every rank was told up to last, in order.
func follow(ctx context.Context, s *Subscription, ranks int, last uint64) error {
	at := map[int]uint64{}
	for done := 0; done < ranks; {
		it, err := s.Next(ctx)
		if err != nil {
			return err
		}
		switch it.Kind {
		case ItemChunk:
			if it.Chunk.Index == it.Chunk.Count-1 {
				at[it.Rank] = it.Chunk.Through
			}
		case ItemBatches:
			for _, b := range it.Batches {
				if b.Sequence != at[it.Rank]+1 {
					return fmt.Errorf("rank %d: batch %d after %d", it.Rank, b.Sequence, at[it.Rank])
				}
				at[it.Rank] = b.Sequence
			}
		case ItemHole, ItemReset, ItemStanding, ItemLoad:
			continue
		}
		if at[it.Rank] == last {
			done++
		}
	}
	return nil
}

// Requests that name what is not there are refused in one line.
func TestRefusals(t *testing.T) {
	e, _ := openTest(t, 2, func(c *EngineConfig) { c.HashTokens = true })
	for _, c := range []struct {
		req  SubscribeRequest
		want EndReason
	}{
		{SubscribeRequest{Form: FormPeer}, EndNoForm},
		{SubscribeRequest{Form: 7}, EndInvalid},
		{SubscribeRequest{Ranks: []int{2}}, EndInvalid},
		{SubscribeRequest{Ranks: []int{-1}}, EndInvalid},
		{SubscribeRequest{Ranks: []int{1, 1}}, EndInvalid},
		{SubscribeRequest{Cursors: []Cursor{{Rank: 2}}}, EndInvalid},
		{SubscribeRequest{Cursors: []Cursor{{Rank: 1}, {Rank: 1}}}, EndInvalid},
	} {
		_, err := e.Subscribe(c.req)
		if r := endReason(t, err); r != c.want || strings.Contains(err.Error(), "\n") || err.Error() == "" {
			t.Errorf("%+v: reason %d (%v), want %d", c.req, r, err, c.want)
		}
	}
	for _, c := range []EngineConfig{{Kind: "trt"}, {Kind: "vllm", Ranks: -1}, {Kind: "vllm", Ranks: 5000}, {Kind: "vllm", Endpoint: "udp://x"}} {
		if _, err := OpenEngine(c, newPublishers(MaxRanks)); err == nil {
			t.Errorf("%+v: opened", c)
		}
	}
}

// Closing ends waiting readers, and whoever comes later is refused.
func TestClose(t *testing.T) {
	e, ps := openTest(t, 1, nil)
	ps[0].connect()
	s1, s2 := subscribe(t, e, SubscribeRequest{Rules: RulesPeer}), subscribe(t, e, SubscribeRequest{Rules: RulesPeer})
	ended := make(chan error, 2)
	for _, s := range []*Subscription{s1, s2} {
		go func() {
			_, err := s.Next(context.Background())
			ended <- err
		}()
	}
	s1.Close()
	if err := <-ended; endReason(t, err) != EndClosed {
		t.Errorf("a closed subscription ends with %v", err)
	}
	e.Close()
	if err := <-ended; endReason(t, err) != EndClosed {
		t.Errorf("a closed engine's subscription ends with %v", err)
	}
	if _, err := e.Subscribe(SubscribeRequest{}); endReason(t, err) != EndClosed {
		t.Errorf("subscribing to a closed engine: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s2.Next(ctx); err == nil {
		t.Error("Next returned something after the end")
	}
}

// A rank is primed when its engine was reached and asked, whatever came of it.
func TestPrimed(t *testing.T) {
	e, ps := openTest(t, 2, nil)
	stands := func() string {
		var out []string
		for _, r := range e.Ranks() {
			st := r.Info().Standing
			out = append(out, fmt.Sprintf("%t %t", st.Primed, st.Exact))
		}
		return strings.Join(out, ", ")
	}
	if got := stands(); got != "false false, false false" {
		t.Errorf("at the start: %s", got)
	}
	ps[0].connect() // has nothing to tell
	if got := stands(); got != "true true, false false" {
		t.Errorf("one is reached: %s", got)
	}
	ps[1].deaf = true
	ps[1].connect()
	for range 20 {
		ps[1].pass(time.Second)
	}
	if got := stands(); got != "true true, true false" {
		t.Errorf("one does not answer: %s", got)
	}
	ps[0].disconnect()
	if got := stands(); got != "true false, true false" {
		t.Errorf("one is gone: %s", got)
	}
}
