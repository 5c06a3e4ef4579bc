// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A snapshot that finds too many cuts open waits for them, or until nobody wants it
// any more, and keeps nobody else from laying out.
func TestSnapshotWaitsForCuts(t *testing.T) {
	e, ps := openTest(t, 1, func(c *EngineConfig) { c.HistoryBatches = 10 })
	r := e.Ranks()[0]
	ps[0].connect()
	feedChain(ps[0], 0, 99)
	var closers []func()
	for {
		r.mu.Lock()
		c, err := r.live.Cut()
		r.mu.Unlock()
		if err != nil {
			break
		}
		closers = append(closers, c.Close)
	}
	waits := func(s *Subscription, d time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		for {
			it, err := s.Next(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				return
			}
			if err != nil || it.Kind == ItemChunk {
				t.Fatalf("got %+v and %v while no cut can be had", it, err)
			}
		}
	}
	gone := subscribe(t, e, SubscribeRequest{})
	waits(gone, 5*cutDelay)
	gone.Close()
	for r.snapshots.open.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	s := subscribe(t, e, SubscribeRequest{})
	waits(s, 5*cutDelay)
	for range maxLayouts {
		e.layouts <- struct{}{} // they are free but for moments
	}
	for range maxLayouts {
		<-e.layouts
	}
	for _, fn := range closers {
		fn()
	}
	rp := newReplica(FormOwn, RulesOwn)
	if err := rp.until(t, s, func() bool { return rp.rank(t, 0).last == 99 && rp.rank(t, 0).chunk == 0 }); err != nil {
		t.Fatal(err)
	}
}
