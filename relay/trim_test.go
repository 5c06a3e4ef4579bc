// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"testing"
)

// What a small history has passed is kept only as long as somebody is being told it:
// a batch that a subscriber has not read, and what follows a snapshot.
func TestLagIsKeptForWhoLags(t *testing.T) {
	const window = 10
	e, ps := openTest(t, 1, func(c *EngineConfig) { c.HistoryBatches = window })
	p, r := ps[0], e.Ranks()[0]
	p.connect()
	kept := func(what string, least, most int) {
		t.Helper()
		r.mu.RLock()
		n := r.hist.kept()
		r.mu.RUnlock()
		if n < least || n > most {
			t.Errorf("%s: %d entries are kept, want %d to %d", what, n, least, most)
		}
	}
	feedChain(p, 0, 499)
	kept("nobody reads", window, window+trimEvery)

	reads := newReplica(FormOwn, RulesOwn)
	s := subscribe(t, e, SubscribeRequest{})
	if err := reads.drain(t, s); err != nil {
		t.Fatal(err)
	}
	feedChain(p, 500, 799)
	kept("a subscriber lags by 300", 300, 300+trimEvery)
	if err := reads.drain(t, s); err != nil {
		t.Fatal(err)
	}
	feedChain(p, 800, 900)
	if err := reads.drain(t, s); err != nil {
		t.Fatal(err)
	}
	feedChain(p, 901, 910)
	kept("it has caught up", window, window+2*trimEvery)

	// Who is told a snapshot goes on after it, however long that takes.
	fresh := newReplica(FormOwn, RulesOwn)
	snap := subscribe(t, e, SubscribeRequest{})
	for {
		it, err := snap.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := fresh.take(t, it); err != nil {
			t.Fatal(err)
		}
		if it.Kind == ItemChunk {
			break
		}
	}
	feedChain(p, 911, 1400)
	kept("a snapshot is being read", 490, 490+2*trimEvery)
	for _, err := range []error{fresh.drain(t, snap), reads.drain(t, s)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for who, rp := range map[string]*replica{"reads": reads, "fresh": fresh} {
		if r := rp.rank(t, 0); r.last != 1400 || r.idxMemberships(t) != 1401 {
			t.Errorf("%s: up to %d with %d memberships, want 1400 and 1401", who, r.last, r.idxMemberships(t))
		}
	}
	snap.Close()
	s.Close()
	feedChain(p, 1401, 1420)
	kept("nobody reads any more", window, window+trimEvery)
}
