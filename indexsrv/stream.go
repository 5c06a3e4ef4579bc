// SPDX-License-Identifier: Apache-2.0

// Before: source. After: Feed.

package indexsrv

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kindex/shard"
)

// stream is one running stream: a feed, its lock, and its tap at a source.
//
// Concurrency: status and exact may be called from any goroutine; stop once.
type stream struct {
	log *slog.Logger

	mu   sync.Mutex // guards feed
	feed *Feed
	tap  tap

	state atomic.Uint32 // publishes feed.State() to lookups
}

// streamHooks are what the host wants told. Any may be nil.
type streamHooks struct {
	// Applied is called with how long one message took from socket to index.
	Applied func(time.Duration)
}

// startStream begins the stream that cfg describes into holder h. It returns at
// once, with an error only where cfg can never work; everything that may take
// long or fail for a while happens behind it and shows in status. The caller
// owns h and drops it after stop.
func startStream(src source, cfg StreamConfig, idx *Writer, h shard.Holder, hooks streamHooks, log *slog.Logger) (*stream, error) {
	_ = hooks
	s := &stream{log: log, feed: NewFeed(cfg, idx, h)}
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
