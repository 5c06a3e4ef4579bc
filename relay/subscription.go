// SPDX-License-Identifier: Apache-2.0

// Before: Rank's history (reader.go). After: the servers of the contracts.

package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// standingPeriod is how long nothing is told of a rank under RulesOwn until its
// standing is told again, so that a subscriber sees that the stream lives.
const standingPeriod = 5 * time.Second

// Subscription reads the ranks of one engine for one subscriber.
//
// Concurrency: Next by one goroutine at a time; Close by any, once or more.
type Subscription struct {
	engine    *Engine
	form      Form
	rules     Rules
	loadFirst bool
	closed    atomic.Bool

	mu      sync.Mutex // of Next's looking and of Close; guards what follows
	readers []*reader
	turn    int     // whose turn is next
	series  *series // nil: there is none, or it is told
	pooled  bool    // there are several ranks, and the subscriber pools them
	spoilt  error   // what ends the subscription after the item told last

	news    <-chan struct{} // armed; nil: not, or it was closed
	item    Item
	batches []Batch
	record  []byte
	timer   *time.Timer
	end     error // what Next returns from now on
}

// Subscribe begins a subscription. The error is an [*EndError]. Close must be
// called in the end.
func (e *Engine) Subscribe(req SubscribeRequest) (*Subscription, error) {
	if err := e.check(&req); err != nil {
		return nil, err
	}
	s := &Subscription{engine: e, form: req.Form, rules: req.Rules}
	s.loadFirst = req.LoadFirst || s.rules == RulesOwn
	ranks := req.Ranks
	if ranks == nil {
		for i := range e.ranks {
			ranks = append(ranks, i)
		}
	}
	for _, n := range ranks {
		r := &reader{rank: e.ranks[n]}
		if src := e.cfg.Load.Source(n); src != nil {
			r.pacer = src.Pace()
		}
		s.readers = append(s.readers, r)
	}
	// What it is to be told is kept from here on.
	if !e.enter(s) {
		return nil, s.closedError()
	}
	if err := s.begin(req.Cursors, req.Pooled); err != nil {
		e.leave(s)
		return nil, err
	}
	return s, nil
}

// begin hands the cursors to the readers. Under the peer's rules they are judged
// at once.
func (s *Subscription) begin(cursors []Cursor, pooled bool) error {
	resumed := false
	for _, r := range s.readers {
		for _, c := range cursors {
			if c.Rank == r.rank.number && (s.rules == RulesOwn || c.Rank == 0 && c.Sequence != 0) {
				r.cursor, r.claims, resumed = c, true, true
			}
		}
	}
	if s.rules == RulesOwn {
		return s.refuseShort()
	}
	for _, r := range s.readers {
		if err := r.beginPeer(resumed, pooled); err != nil {
			return err
		}
	}
	if s.pooled = pooled && len(s.readers) > 1; s.pooled {
		s.beginSeries()
	}
	return nil
}

// refuseShort refuses a subscription to a rank that serves no events.
func (s *Subscription) refuseShort() error {
	for _, r := range s.readers {
		r.rank.mu.RLock()
		err := r.rank.refuseShort()
		r.rank.mu.RUnlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// check refuses what names something that is not there.
func (e *Engine) check(req *SubscribeRequest) error {
	if req.Form >= numForms {
		return endf(EndInvalid, "form %d: there are %d", req.Form, numForms)
	}
	if req.Form == FormPeer && e.cfg.HashTokens {
		return endf(EndNoForm, "token ids of engine %s do not leave this relay (hash-tokens is set): subscribe to content hashes by kindex.relay.v1", e.cfg.Name)
	}
	seen := map[int]bool{}
	for _, n := range req.Ranks {
		if n < 0 || n >= len(e.ranks) {
			return endf(EndInvalid, "rank %d is asked for: engine %s has ranks 0 to %d", n, e.cfg.Name, len(e.ranks)-1)
		}
		if seen[n] {
			return endf(EndInvalid, "rank %d is asked for twice", n)
		}
		seen[n] = true
	}
	clear(seen)
	for _, c := range req.Cursors {
		if c.Rank < 0 || c.Rank >= len(e.ranks) {
			return endf(EndInvalid, "a cursor of rank %d: engine %s has ranks 0 to %d", c.Rank, e.cfg.Name, len(e.ranks)-1)
		}
		if seen[c.Rank] {
			return endf(EndInvalid, "two cursors of rank %d: give one", c.Rank)
		}
		seen[c.Rank] = true
	}
	return nil
}

// Close ends the subscription: a Next that waits returns, and later ones fail.
func (s *Subscription) Close() {
	if s.closed.Swap(true) {
		return
	}
	s.engine.leave(s)
	s.engine.waker.wake()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
}

func (s *Subscription) closedError() error {
	return endf(EndClosed, "the subscription to engine %s is closed", s.engine.cfg.Name)
}

// Next returns the next thing to tell, waiting for it until ctx ends. The error
// is ctx's, or an [*EndError], after which there is nothing more. Ranks take
// turns: one that has much to tell does not keep the others waiting.
func (s *Subscription) Next(ctx context.Context) (*Item, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		// What comes from here on closes news. That of the item before will do: if it
		// is closed, this looks once too often.
		if s.news == nil {
			s.news = s.engine.waker.arm()
		}
		told, at, err := s.look()
		if told || err != nil {
			return s.told(err)
		}
		s.wait(ctx, at)
	}
}

// wait returns when there may be something new, at the time at at the latest
// unless that is zero.
func (s *Subscription) wait(ctx context.Context, at time.Time) {
	var due <-chan time.Time
	if !at.IsZero() {
		d := max(time.Until(at), 0)
		if s.timer == nil {
			s.timer = time.NewTimer(d)
		} else {
			s.timer.Reset(d)
		}
		defer s.timer.Stop()
		due = s.timer.C
	}
	select {
	case <-ctx.Done():
	case <-s.news:
		s.news = nil
	case <-due:
	}
}

func (s *Subscription) told(err error) (*Item, error) {
	if err != nil {
		return nil, err
	}
	return &s.item, nil
}

// look fills s.item with what the first rank that has something has. It returns
// whether there is an item, when there may be one though nobody wakes (zero means
// never), and why there will be none any more.
func (s *Subscription) look() (told bool, at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil && (s.closed.Load() || s.engine.closing.Load()) {
		s.finish(s.closedError())
	}
	if s.end != nil {
		return false, at, s.end
	}
	now := time.Now()
	if s.spoilt != nil {
		s.finish(s.spoilt)
		return false, at, s.spoilt
	}
	if s.series != nil {
		if told, err = s.lookSeries(now); err != nil {
			s.finish(err)
		}
		return told, at, err
	}
	for range s.readers {
		r := s.readers[s.turn]
		s.turn = (s.turn + 1) % len(s.readers)
		told, err := s.step(r)
		if err != nil {
			s.finish(err)
			return false, at, err
		}
		told, next := s.withLoad(r, told, now)
		if !told && s.rules == RulesOwn {
			told, next = s.beat(r, now, next)
		}
		if told {
			r.toldAt = now
			return true, at, nil
		}
		if at.IsZero() || !next.IsZero() && next.Before(at) {
			at = next
		}
	}
	return false, at, nil
}

// beat makes an item of the standing where nothing was told of r for a while. It
// returns whether it is due, and else the earlier of next and when it will be.
func (s *Subscription) beat(r *reader, now, next time.Time) (bool, time.Time) {
	due := r.toldAt.Add(standingPeriod)
	if now.Before(due) {
		if next.IsZero() || due.Before(next) {
			next = due
		}
		return false, next
	}
	r.rank.mu.RLock()
	defer r.rank.mu.RUnlock()
	if r.phase != phaseDecide && r.epoch != r.rank.epoch {
		return false, now // first a reset
	}
	s.tellStanding(r)
	return true, next
}

// finish makes err what Next returns from now on.
func (s *Subscription) finish(err error) {
	s.end = err
	s.release()
	for _, r := range s.readers {
		r.following.Store(false)
	}
}

// release lets go of all snapshots.
func (s *Subscription) release() {
	for _, r := range s.readers {
		r.release()
	}
}

// withLoad adds the load record that goes with the item, or makes an item of one
// that is due by itself. It returns whether there is an item, and else when there
// may be one.
func (s *Subscription) withLoad(r *reader, told bool, now time.Time) (bool, time.Time) {
	var next time.Time
	switch {
	case r.pacer == nil:
		return told, next
	case told && (s.item.Kind == ItemBatches || s.item.Kind == ItemChunk):
		s.record = r.pacer.WithBatch(s.record[:0], now)
	case told || !r.begun && !s.loadFirst:
		return told, next
	default:
		if s.record, next = r.pacer.Alone(s.record[:0], now); len(s.record) == 0 {
			return false, next
		}
		s.item = r.item(ItemLoad)
	}
	s.item.Load = s.record
	return true, next
}
