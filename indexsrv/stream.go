// SPDX-License-Identifier: Apache-2.0

// Before: the registry. After: relay/feed, whose batches come back to indexSink.

package indexsrv

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"kindex/internal/kv"
	"kindex/internal/logsink"
	"kindex/lanes"
	"kindex/relay/feed"
	"kindex/shard"
)

// StreamConfig describes one stream: one publisher, one (worker, rank).
type StreamConfig struct {
	Rank           int    // data-parallel rank
	Endpoint       string // live socket, this rank's port already in it
	ReplayEndpoint string // replay socket, this rank's port already in it; "" where there is none
	Model          kv.ModelKey
	BlockSize      int    // tokens
	Engine         string // "auto" (or ""), "vllm", "sglang"
	Limits         feed.Limits

	// Relay is set where Endpoint is host:port of a relay: the client that the
	// registration's ranks share.
	Relay *relayGroup

	// Resume is where the stream goes on; nil: it begins with nothing.
	Resume *Resume
	holder shard.Holder // that has the content already; 0: a new one is made
}

func (c *StreamConfig) feed() feed.Config {
	fc := feed.Config{Rank: c.Rank, Endpoint: c.Endpoint, ReplayEndpoint: c.ReplayEndpoint, Limits: c.Limits}
	if c.Resume != nil {
		fc.Resume = &c.Resume.Position
	}
	return fc
}

// StreamStatus is what one stream has seen, where it stands, and what its holder
// holds.
type StreamStatus struct {
	feed.Status

	Events uint64 // decoded, dropped ones included

	Memberships  uint64
	Orphans      uint64 // blocks that wait for their parent
	OrphanBytes  uint64
	SecondCopies uint64

	// Dropped counts by reason what was left out. The set of reasons is bounded
	// and every reason is always present.
	Dropped map[string]uint64

	RankMismatches uint64  // batches that name another rank than the stream's
	Lookahead      int     // tokens beyond a block that the engine's hashes cover; 0: none
	EngineTime     float64 // the last batch's own timestamp, seconds of the engine's clock

	// Of a relay only.
	Snapshots uint64 // applied whole
	Resets    uint64 // contents taken back, snapshots aside
	// RelayRanks is how many ranks the relay has; 0: it does not say.
	RelayRanks int
}

// Feed is one stream into the index without its sockets, for whoever brings
// messages of his own: recordings, benchmarks.
//
// Concurrency: one goroutine at a time.
type Feed struct {
	*feed.Feed
	sink *indexSink
}

// NewFeed returns the feed of one stream into holder h of idx. The caller owns h
// and drops it when the feed is no longer used.
func NewFeed(cfg StreamConfig, idx *Writer, h shard.Holder) *Feed {
	sink := newIndexSink(&cfg, idx, h)
	return &Feed{feed.New(cfg.feed(), sink), sink}
}

// Status returns a copy of all counters.
func (f *Feed) Status() StreamStatus { return f.sink.status(f.Feed.Status()) }

// stream is one running stream of a rank and its worker on the lanes.
//
// Concurrency: status, current and between may be called from any goroutine at any
// time; stop once.
type stream struct {
	admission *feed.Stream // nil: relayed is there
	relayed   *relayed     // nil: admission is there
	sink      *indexSink
	worker    *lanes.Worker // nil: the tap's goroutine does it all
	changes   *logsink.Changes

	// state is a copy of where the stream stands, for lookups: they take no lock
	// and look at each stream of a model.
	state atomic.Uint32
}

// streamHooks are what the host wants told. Any may be nil.
type streamHooks struct {
	// Applied is called with how long one message took from socket to index.
	Applied func(time.Duration)
	// Shard is called with how long one message's operations took in the index.
	Shard func(time.Duration)
	// Charge is what the stream's blocks are charged to.
	Charge charge
	// Load is called when a record of the engine's load has come.
	Load func()
	// Standing is called when the stream's state has changed, with its lock held.
	Standing func()
}

// startStream begins the stream that cfg describes into holder h. It returns at
// once, with an error only where cfg can never work, or feed.ErrNoSockets;
// everything that may take long or fail for a while happens behind it and shows in
// status. The caller owns h and drops it after stop.
func startStream(src feed.Source, cfg StreamConfig, idx *Writer, h shard.Holder, hooks streamHooks, log *slog.Logger) (*stream, error) {
	if cfg.BlockSize <= 0 {
		return nil, fmt.Errorf("block size %d: it must be positive", cfg.BlockSize)
	}
	s := &stream{sink: newIndexSink(&cfg, idx, h)}
	s.sink.charge = hooks.Charge
	s.state.Store(uint32(feed.StatePending))
	var err error
	if s.worker, err = idx.Worker(h); err != nil {
		return nil, err
	}
	log = log.With("endpoint", cfg.Endpoint, "rank", cfg.Rank)
	s.changes = logsink.NewChanges(log)
	changed := func(before, now feed.State, why string) {
		s.state.Store(uint32(now))
		if hooks.Standing != nil {
			hooks.Standing()
		}
		level := slog.LevelInfo
		if now > feed.StatePending {
			level = slog.LevelWarn
		}
		s.changes.Tell(level, "stream "+now.String(), "before", before.String(), "why", why)
	}
	tell := tellResumed(log)
	s.sink.resume(&cfg, tell)
	if cfg.Relay != nil {
		err = s.openRelay(&cfg, hooks, changed, tell)
	} else {
		fh := feed.Hooks{Applied: hooks.Applied, Committed: hooks.Shard, Changed: changed, Resumed: tell}
		if s.worker != nil {
			fh.Run = s.run
		}
		s.admission, err = feed.Open(src, cfg.feed(), s.sink, fh)
	}
	if err != nil {
		s.closeWorker()
		s.changes.Close()
		return nil, err
	}
	return s, nil
}

// openRelay begins the stream of one rank of a relay.
func (s *stream) openRelay(cfg *StreamConfig, hooks streamHooks, changed func(before, now feed.State, why string), tell func(why string)) error {
	limits := cfg.Limits.WithDefaults()
	r := &relayed{
		rank: uint32(cfg.Rank), endpoint: cfg.Endpoint, period: limits.ConnectPeriod, mend: limits.ResyncDelay,
		sink: s.sink, hooks: hooks, changed: changed, tell: tell, group: cfg.Relay,
		state: feed.StatePending,
	}
	if cfg.Resume != nil {
		if err := r.begins(cfg.Resume); err != nil {
			r.cold = err.Error()
			s.sink.unload(r.cold, tell)
		}
	}
	r.waiting = time.AfterFunc(r.period, r.tooLong)
	if s.worker != nil {
		r.run = s.run
	}
	if err := cfg.Relay.join(r, cfg); err != nil {
		r.waiting.Stop()
		return err
	}
	s.relayed = r
	return nil
}

// run has j run on the stream's lane and waits until it is applied. Where the
// lanes are closed the host has stopped, and nothing happens. A panic there goes on
// here: what it was writing may be half written.
func (s *stream) run(j feed.Job) {
	if err := s.worker.Do(j); err != nil && !errors.Is(err, lanes.ErrClosed) {
		panic(err)
	}
}

// stop ends the stream, also while it connects, subscribes or replays. When it
// returns nothing of the stream can touch the index any more.
func (s *stream) stop() {
	if s.relayed != nil {
		s.relayed.Close()
	} else {
		s.admission.Close()
	}
	s.closeWorker()
	s.changes.Close()
}

func (s *stream) closeWorker() {
	if s.worker != nil {
		_ = s.worker.Close() // run has panicked with what it could say
	}
}

// status returns a copy of the stream's counters.
func (s *stream) status() (st StreamStatus) {
	s.between(func(now StreamStatus) { st = now })
	return st
}

// current returns where the stream stands, without a lock: lookups ask it.
func (s *stream) current() feed.State { return feed.State(s.state.Load()) }

// between calls fn between two batches of s: what the index holds of s then is
// what its status says.
func (s *stream) between(fn func(StreamStatus)) {
	if s.relayed == nil {
		s.admission.Between(func(st feed.Status) { fn(s.sink.status(st)) })
		return
	}
	s.relayed.Between(func(now feed.Status) {
		st := s.sink.status(now)
		s.relayed.extra(&st)
		fn(st)
	})
}
