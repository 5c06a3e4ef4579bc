// SPDX-License-Identifier: Apache-2.0

// Before: source. After: Feed.

package indexsrv

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kindex/shard"
)

// stream is one running stream: a feed, its lock, and its tap at a source.
//
// Concurrency: status and current may be called from any goroutine at any time;
// stop once. The other methods are the tap's.
type stream struct {
	log   *slog.Logger
	hooks streamHooks

	mu   sync.Mutex // guards feed
	feed *Feed

	tap tap

	// state publishes feed.State() to lookups, which take no lock.
	state atomic.Uint32
}

// streamHooks are what the host wants told. Any may be nil.
type streamHooks struct {
	// Applied is called with how long one message took from socket to index.
	Applied func(time.Duration)
}

// message is one numbered payload as a source received it.
type message struct {
	seq     uint64
	payload []byte
	bad     bool // could not be taken apart
}

// startStream begins the stream that cfg describes into holder h. It returns at
// once, with an error only where cfg can never work, or errNoSockets; everything
// that may take long or fail for a while happens behind it and shows in status.
// The caller owns h and drops it after stop.
func startStream(src source, cfg StreamConfig, idx *Writer, h shard.Holder, hooks streamHooks, log *slog.Logger) (*stream, error) {
	if cfg.BlockSize <= 0 {
		return nil, fmt.Errorf("block size %d: it must be positive", cfg.BlockSize)
	}
	if err := CheckEndpoint(cfg.Endpoint, false); err != nil {
		return nil, err
	}
	if cfg.ReplayEndpoint != "" {
		if err := CheckEndpoint(cfg.ReplayEndpoint, true); err != nil {
			return nil, err
		}
	}
	s := &stream{
		log:   log.With("endpoint", cfg.Endpoint, "rank", cfg.Rank),
		hooks: hooks,
		feed:  NewFeed(cfg, idx, h),
	}
	s.state.Store(uint32(StatePending))
	t, err := src.open(&cfg, s)
	if err != nil {
		return nil, err
	}
	s.tap = t
	return s, nil
}

// stop ends the stream, also while it connects, subscribes or replays. When it
// returns nothing of the stream can touch the index any more.
func (s *stream) stop() { s.tap.close() }

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
func (s *stream) live(msgs []message, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range msgs {
		if msgs[i].bad {
			s.feed.BadMessage()
			continue
		}
		s.feed.Live(msgs[i].seq, msgs[i].payload, now)
		if s.hooks.Applied != nil {
			s.hooks.Applied(time.Since(now))
		}
	}
}

// replayed passes on part of the answer to request id, and whether it is whole
// now or has failed.
func (s *stream) replayed(id uint64, msgs []message, end bool, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range msgs {
		if msgs[i].bad {
			s.feed.BadMessage()
			continue
		}
		s.feed.ReplayBatch(id, msgs[i].seq, msgs[i].payload, now)
	}
	switch {
	case err != nil:
		s.feed.ReplayFailed(id, err, now)
	case end:
		s.feed.ReplayEnd(id, now)
	}
}

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
