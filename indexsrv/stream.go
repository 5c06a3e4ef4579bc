// SPDX-License-Identifier: Apache-2.0

// Before: source. After: Feed, on a lane.

package indexsrv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kindex/lanes"
	"kindex/shard"
)

// stream is one running stream: a feed, its lock, its worker on the lanes, and its
// tap at a source.
//
// The tap hands over a burst of messages and waits until it is applied: that is
// the push-back, the socket fills meanwhile, and the tap learns of gaps as soon as
// they are known. So the feed sees what the tap saw, in that order.
//
// Concurrency: status and current may be called from any goroutine at any time;
// stop once. The other methods are the tap's, one call at a time.
type stream struct {
	log    *slog.Logger
	hooks  streamHooks
	worker *lanes.Worker // nil: the tap's goroutine does it all

	mu   sync.Mutex // guards feed
	feed *Feed

	tap   tap
	burst Burst // the one handed over
	begun bool  // it is being run: mu is held

	// state publishes feed.State() to lookups, which take no lock.
	state atomic.Uint32
}

// streamHooks are what the host wants told. Any may be nil.
type streamHooks struct {
	// Applied is called with how long one message took from socket to index.
	Applied func(time.Duration)
	// Shard is called with how long one message's operations took in the index.
	Shard func(time.Duration)
}

// startStream begins the stream that cfg describes into holder h. It returns at
// once, with an error only where cfg can never work, or errNoSockets; everything
// that may take long or fail for a while happens behind it and shows in status.
// The caller owns h and drops it after stop.
func startStream(src source, cfg StreamConfig, idx *Writer, h shard.Holder, hooks streamHooks, log *slog.Logger) (*stream, error) {
	s := &stream{log: log.With("endpoint", cfg.Endpoint, "rank", cfg.Rank), hooks: hooks}
	if err := s.start(src, cfg, idx, h); err != nil {
		s.closeWorker()
		return nil, err
	}
	return s, nil
}

func (s *stream) start(src source, cfg StreamConfig, idx *Writer, h shard.Holder) (err error) {
	if cfg.BlockSize <= 0 {
		return fmt.Errorf("block size %d: it must be positive", cfg.BlockSize)
	}
	if err := CheckEndpoint(cfg.Endpoint, false); err != nil {
		return err
	}
	if cfg.ReplayEndpoint != "" {
		if err := CheckEndpoint(cfg.ReplayEndpoint, true); err != nil {
			return err
		}
	}
	s.feed = NewFeed(cfg, idx, h)
	s.burst = Burst{Feed: s.feed, Applied: s.hooks.Applied, Shard: s.hooks.Shard}
	s.state.Store(uint32(StatePending))
	if s.worker, err = idx.Worker(h); err != nil {
		return err
	}
	t, err := src.open(&cfg, s)
	if err != nil {
		return err
	}
	s.tap = t
	return nil
}

// stop ends the stream, also while it connects, subscribes or replays. When it
// returns nothing of the stream can touch the index any more.
func (s *stream) stop() {
	s.tap.close()
	s.closeWorker()
}

func (s *stream) closeWorker() {
	if s.worker != nil {
		_ = s.worker.Close() // run has panicked with what it could say
	}
}

// status returns a copy of the stream's counters.
func (s *stream) status() StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feed.Status()
}

// current returns where the stream stands, without a lock: lookups ask it.
func (s *stream) current() State { return State(s.state.Load()) }

// connected and disconnected pass on what became of the live connection.
func (s *stream) connected(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed.Connected(now)
}

func (s *stream) disconnected(why string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed.Disconnected(why, now)
}

// live passes on messages in the order they came; now is when they were received.
func (s *stream) live(msgs []Message, now time.Time) {
	s.burst.Replay, s.burst.Messages, s.burst.Received = 0, msgs, now
	s.run()
}

// replayed passes on part of the answer to request id, and whether it is whole
// now or has failed.
func (s *stream) replayed(id uint64, msgs []Message, end bool, err error, now time.Time) {
	s.burst.Replay, s.burst.Messages, s.burst.Received = id, msgs, now
	s.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.feed.ReplayFailed(id, err, now)
	case end:
		s.feed.ReplayEnd(id, now)
	}
}

// run has the burst run on the stream's lane and waits until it is applied. Where
// the lanes are closed the host has stopped, and nothing happens. A panic there
// goes on here: what it was writing may be half written.
func (s *stream) run() {
	if len(s.burst.Messages) == 0 {
		return
	}
	if s.worker == nil {
		s.burst.Run(&s.mu)
	} else if err := s.worker.Do(s); err != nil && !errors.Is(err, lanes.ErrClosed) {
		panic(err)
	}
	s.burst.Messages = nil
}

// Prepare implements [lanes.Job]. The stream's lock is held from the burst's
// first message to its last, so that nobody sees a batch half admitted.
func (s *stream) Prepare() bool {
	if !s.begun {
		s.mu.Lock()
		s.begun = true
	}
	if s.burst.Prepare() {
		return true
	}
	s.begun = false
	s.mu.Unlock()
	return false
}

// Apply implements [lanes.Job].
func (s *stream) Apply() { s.burst.Apply() }

// next is called after any of the above. It returns what [Feed.Next] does, and
// makes the new state known.
func (s *stream) next(now time.Time) (req ReplayRequest, ask bool, wake time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	req, ask, wake = s.feed.Next(now)
	state := s.feed.State()
	if before := State(s.state.Swap(uint32(state))); before != state {
		level := slog.LevelInfo
		if state > StatePending {
			level = slog.LevelWarn
		}
		s.log.Log(context.Background(), level, "stream "+state.String(), "before", before.String(), "why", s.feed.lastError())
	}
	return req, ask, wake
}
