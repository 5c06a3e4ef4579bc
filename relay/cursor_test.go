// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"math"
	"testing"
)

// Where the peer's cursor goes on, and where it is refused, with a history of ten.
func TestPeerCursors(t *testing.T) {
	e, ps := openTest(t, 2, func(c *EngineConfig) { c.HistoryBatches = 10 })
	for _, p := range ps {
		p.connect()
		feedChain(p, 0, 29)
	}
	for _, c := range []struct {
		seq     uint64
		refused bool
		batches int
	}{
		{seq: 29},
		{seq: 28, batches: 1},
		{seq: 20, batches: 9},
		{seq: 19, batches: 10},
		{seq: 18, refused: true},
		{seq: 1, refused: true},
		{seq: 30, refused: true},
		{seq: 1 << 60, refused: true},
	} {
		s, err := e.Subscribe(SubscribeRequest{Form: FormPeer, Rules: RulesPeer, Cursors: []Cursor{{Sequence: c.seq}}})
		if c.refused {
			if r := endReason(t, err); r != EndOutOfRange {
				t.Errorf("cursor %d: %v, want out of range", c.seq, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("cursor %d: %v", c.seq, err)
			continue
		}
		rp := newReplica(FormPeer, RulesPeer)
		if err := rp.drain(t, s); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if r := rp.rank(t, 0); r.batches != c.batches || r.snapshots != 0 {
			t.Errorf("cursor %d: %d batches and %d snapshots of rank 0, want %d and 0", c.seq, r.batches, r.snapshots, c.batches)
		}
		// The cursor says nothing of the other ranks: they come whole.
		if r := rp.rank(t, 1); r.snapshots != 1 || r.last != 29 {
			t.Errorf("cursor %d: %d snapshots of rank 1 up to %d, want 1 up to 29", c.seq, r.snapshots, r.last)
		}
	}
	rp := newReplica(FormPeer, RulesPeer)
	if err := rp.drain(t, subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})); err != nil {
		t.Fatal(err)
	}
	if r := rp.rank(t, 0); r.snapshots != 1 || r.batches != 0 {
		t.Errorf("no cursor: %d snapshots, %d batches, want 1 and 0", r.snapshots, r.batches)
	}
}

// Cursors of this package's own rules: what proves itself goes on, all else is
// told anew.
func TestOwnCursors(t *testing.T) {
	e, ps := openTest(t, 1, func(c *EngineConfig) { c.HistoryBatches = 10 })
	ps[0].connect()
	feedChain(ps[0], 0, 29)
	rank := e.Ranks()[0]
	epoch := rank.Info().Epoch
	check := func(q uint64) uint64 {
		i, _ := rank.hist.find(q)
		return rank.hist.at(i).check
	}
	for _, c := range []struct {
		name    string
		cursor  Cursor
		resets  int
		batches int
	}{
		{"newest", Cursor{Epoch: epoch, Sequence: 29, Check: check(29)}, 0, 0},
		{"without a check", Cursor{Epoch: epoch, Sequence: 25}, 0, 4},
		{"just below", Cursor{Epoch: epoch, Sequence: 19, Check: 12345}, 0, 10},
		{"below", Cursor{Epoch: epoch, Sequence: 18}, 1, 0},
		{"beyond", Cursor{Epoch: epoch, Sequence: 30}, 1, 0},
		{"another batch", Cursor{Epoch: epoch, Sequence: 25, Check: 1}, 1, 0},
		{"another relay", Cursor{Epoch: 1, Sequence: 25, Check: check(25)}, 0, 4},
		{"another life", Cursor{Epoch: 1, Sequence: 25, Check: 1}, 1, 0},
		{"another life without a check", Cursor{Epoch: 1, Sequence: 25}, 1, 0},
		{"another life, beyond", Cursor{Epoch: 1, Sequence: 30, Check: 1}, 1, 0},
	} {
		s := subscribe(t, e, SubscribeRequest{Cursors: []Cursor{c.cursor}})
		rp := newReplica(FormOwn, RulesOwn)
		r := rp.rank(t, 0)
		r.epoch, r.has, r.last = epoch, true, c.cursor.Sequence
		if err := rp.drain(t, s); err != nil {
			t.Fatal(err)
		}
		if r.resets != c.resets || r.snapshots != c.resets || r.batches != c.batches || r.last != 29 {
			t.Errorf("%s: %d resets, %d snapshots, %d batches up to %d, want %d, %d, %d up to 29", c.name, r.resets, r.snapshots, r.batches, r.last, c.resets, c.resets, c.batches)
		}
	}
}

// No batch has the greatest number that there is: a cursor of it is beyond the
// newest, also where the history begins at the number that would follow.
func TestGreatestCursor(t *testing.T) {
	e, ps := openTest(t, 1, nil)
	ps[0].connect()
	feedChain(ps[0], 0, 29)
	greatest := Cursor{Epoch: e.Ranks()[0].Info().Epoch, Sequence: math.MaxUint64}
	rp := newReplica(FormOwn, RulesOwn)
	r := rp.rank(t, 0)
	if err := rp.drain(t, subscribe(t, e, SubscribeRequest{Cursors: []Cursor{greatest}})); err != nil {
		t.Fatal(err)
	}
	if r.resets != 1 || r.batches != 30 {
		t.Errorf("%d resets and %d batches, want 1 and all 30", r.resets, r.batches)
	}
	_, err := e.Subscribe(SubscribeRequest{Form: FormPeer, Rules: RulesPeer, Cursors: []Cursor{greatest}})
	if reason := endReason(t, err); reason != EndOutOfRange {
		t.Errorf("the peer's contract: %v, want out of range", err)
	}
}

// A relay that begins again does not judge a cursor before it has read the past
// that the cursor may be of.
func TestCursorWaitsForThePast(t *testing.T) {
	e, ps := openTest(t, 1, nil)
	p := ps[0]
	for q := range uint64(20) {
		p.keep(q, payload(float64(q), storeOf(q, q+1)))
	}
	good := Cursor{Epoch: 1, Sequence: 15, Check: hashOf(p.kept[15].Payload)}
	wrong := Cursor{Epoch: 1, Sequence: 15, Check: 99}
	replicas := map[Cursor]*replica{good: newReplica(FormOwn, RulesOwn), wrong: newReplica(FormOwn, RulesOwn)}
	subs := map[Cursor]*Subscription{}
	for c, rp := range replicas {
		subs[c] = subscribe(t, e, SubscribeRequest{Cursors: []Cursor{c}})
		r := rp.rank(t, 0)
		r.epoch, r.has, r.last = e.Ranks()[0].Info().Epoch, true, 15
		if err := rp.drain(t, subs[c]); err != nil {
			t.Fatal(err)
		}
		if r.resets+r.batches != 0 || r.standing.Primed || r.standings != 1 {
			t.Errorf("before the engine was reached: %d resets, %d batches, standing %+v told %d times", r.resets, r.batches, r.standing, r.standings)
		}
	}
	p.connect()
	for c, rp := range replicas {
		if err := rp.drain(t, subs[c]); err != nil {
			t.Fatal(err)
		}
	}
	if r := replicas[good].rank(t, 0); r.resets != 0 || r.batches != 4 || !r.standing.Primed {
		t.Errorf("a good cursor: %d resets, %d batches, standing %+v, want 0, 4, primed", r.resets, r.batches, r.standing)
	}
	if r := replicas[wrong].rank(t, 0); r.resets != 1 || r.batches != 20 {
		t.Errorf("a cursor of another life: %d resets, %d batches, want 1 and 20", r.resets, r.batches)
	}
}
