// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"testing"
	"time"

	"kindex/relay/feed"
)

// A subscriber behind is told exact when it has what makes it so, not before: a hole
// was healed by a clear that it has not read yet.
func TestExactComesAfterWhatItRestsOn(t *testing.T) {
	const cleared = 900
	e, ps := openTest(t, 1, nil)
	p := ps[0]
	p.connect()
	feedChain(p, 0, 2)
	s := subscribe(t, e, SubscribeRequest{})
	rp := newReplica(FormOwn, RulesOwn)
	if err := rp.drain(t, s); err != nil {
		t.Fatal(err)
	}
	feedChain(p, 5, 6)
	for range 20 {
		p.pass(time.Second)
	}
	if err := rp.drain(t, s); err != nil {
		t.Fatal(err)
	}
	r := rp.rank(t, 0)
	if r.holes != 1 || r.standing.Exact {
		t.Fatalf("%d holes and standing %+v, want one hole", r.holes, r.standing)
	}
	feedChain(p, 7, cleared-1)
	p.publish(cleared, payload(1, clearAll()))
	feedChain(p, cleared+1, cleared+300)
	told := 0
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	for told == 0 || r.last < cleared+300 {
		it, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := rp.take(t, it); err != nil {
			t.Fatal(err)
		}
		if it.Kind == ItemStanding && it.Standing.Exact {
			if told++; r.last < cleared {
				t.Errorf("told exact after batch %d, which the clear in %d makes it", r.last, cleared)
			}
		}
	}
	if told != 1 {
		t.Errorf("told exact %d times, want once", told)
	}
}

// An epoch begins with its reset: no standing of it comes before, and that of the
// last does not count for it.
func TestResetBeforeStanding(t *testing.T) {
	e, ps := openTest(t, 1, nil)
	ps[0].connect()
	feedChain(ps[0], 0, 2)
	s := subscribe(t, e, SubscribeRequest{})
	rp := newReplica(FormOwn, RulesOwn)
	if err := rp.drain(t, s); err != nil {
		t.Fatal(err)
	}
	if !rp.rank(t, 0).standing.Exact {
		t.Fatalf("standing %+v, want exact", rp.rank(t, 0).standing)
	}
	e.Ranks()[0].Forget(feed.ForgetRestart, nil)
	if due, _ := s.beat(s.readers[0], time.Now().Add(time.Hour), time.Time{}); due {
		t.Errorf("the standing %+v of epoch %d is told before the reset", s.item.Standing, s.item.Epoch)
	}
	for i, want := range []ItemKind{ItemReset, ItemStanding} {
		it, err := s.Next(t.Context())
		if err != nil || it.Kind != want || it.Standing.Exact {
			t.Errorf("item %d: %+v and %v, want one of kind %d, not exact", i, it, err, want)
		}
	}
}
