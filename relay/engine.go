// SPDX-License-Identifier: Apache-2.0

// Before: the configuration. After: Rank and Subscription.

package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"kindex/relay/feed"
	"kindex/relay/hashcheck"
	"kindex/relay/load"
)

// MaxRanks bounds the data-parallel ranks of an engine.
const MaxRanks = load.MaxRanks

// maxLayouts bounds the snapshots of an engine that are being laid out at once,
// each of which takes memory in proportion to the content.
const maxLayouts = 2

// EngineConfig describes one engine.
type EngineConfig struct {
	Name string
	// Kind is "vllm" or "sglang".
	Kind string
	// Endpoint and Replay are the sockets of rank 0; rank r's ports are r higher.
	// Replay "" means that there is none.
	Endpoint, Replay string
	// Ranks is how many data-parallel ranks the engine has; 0 means 1.
	Ranks int
	// BlockSize is the size of a block in tokens; 0 means that the first
	// main-attention store of a life tells it.
	BlockSize int
	// HashTokens keeps token ids out of the history: there is no [FormPeer].
	HashTokens bool
	// MinHashBlock is the size of a block in tokens below which, under HashTokens,
	// a rank serves nothing; 0 means [DefaultMinHashBlock].
	MinHashBlock int
	// HistoryBatches and HistoryBytes bound each rank's history; 0 means the
	// defaults.
	HistoryBatches int
	HistoryBytes   int64
	// Feed bounds each rank's admission; zeros mean what [feed.Limits.Thorough] says.
	Feed feed.Limits
	// Load has the engine's load; nil means that none is known. The caller runs it.
	Load *load.Meter
	// HashCheck says what the engine's hashes are held against; nil: nothing.
	HashCheck *hashcheck.Config
	// Log takes what an operator should read; nil means nobody does.
	Log *slog.Logger
	// Freed is told that a snapshot's memory is no longer used; it must not block.
	// nil: nobody is.
	Freed func()
}

func (c *EngineConfig) validate() error {
	var errs []error
	if c.Kind != "vllm" && c.Kind != "sglang" {
		errs = append(errs, fmt.Errorf("kind %q: it must be vllm or sglang", c.Kind))
	}
	if c.Ranks < 0 || c.Ranks > MaxRanks {
		errs = append(errs, fmt.Errorf("ranks %d: there must be 1 to %d", c.Ranks, MaxRanks))
	}
	if c.BlockSize < 0 {
		errs = append(errs, fmt.Errorf("block size %d: it must be positive, or 0 to learn it", c.BlockSize))
	}
	if c.MinHashBlock < 0 {
		errs = append(errs, fmt.Errorf("least block size under hash-tokens %d: it must not be negative", c.MinHashBlock))
	}
	if c.HistoryBatches < 0 || c.HistoryBytes < 0 {
		errs = append(errs, fmt.Errorf("a history of %d batches and %d bytes: neither may be negative", c.HistoryBatches, c.HistoryBytes))
	}
	return errors.Join(errs...)
}

// Engine is one engine's ranks and their subscribers.
//
// Concurrency: any goroutine.
type Engine struct {
	cfg     EngineConfig
	ranks   []*Rank
	waker   waker
	layouts chan struct{}
	closing atomic.Bool
	done    chan struct{} // closed with closing

	mu    sync.Mutex // guards what follows
	epoch uint64     // the last given
	subs  map[*Subscription]struct{}
	work  sync.WaitGroup // added to under mu, while not closing
}

// OpenEngine begins to read the engine that cfg describes through src. It returns
// at once, whatever the engine does, with an error only where cfg can never work
// or the process has no room for its sockets. Close must be called in the end,
// before src is closed.
func OpenEngine(cfg EngineConfig, src feed.Source) (*Engine, error) {
	e, err := newEngine(cfg)
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", cfg.Name, err)
	}
	for _, r := range e.ranks {
		if err := r.open(src); err != nil {
			e.Close()
			return nil, fmt.Errorf("engine %s, rank %d: %w", cfg.Name, r.number, err)
		}
	}
	return e, nil
}

// newEngine returns an engine whose ranks have no streams.
func newEngine(cfg EngineConfig) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Ranks = max(cfg.Ranks, 1)
	if cfg.MinHashBlock == 0 {
		cfg.MinHashBlock = DefaultMinHashBlock
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Freed == nil {
		cfg.Freed = func() {}
	}
	e := &Engine{cfg: cfg, layouts: make(chan struct{}, maxLayouts), done: make(chan struct{}), subs: map[*Subscription]struct{}{}}
	for n := range cfg.Ranks {
		e.ranks = append(e.ranks, newRank(e, n))
		if src := cfg.Load.Source(n); src != nil {
			src.Notify(e.waker.wake)
		}
	}
	return e, nil
}

// open begins the rank's stream.
func (r *Rank) open(src feed.Source) error {
	cfg := feed.Config{Rank: r.number, Limits: r.engine.cfg.Feed.Thorough()}
	var err error
	if cfg.Endpoint, err = feed.RankEndpoint(r.engine.cfg.Endpoint, r.number); err != nil {
		return err
	}
	if r.engine.cfg.Replay != "" {
		if cfg.ReplayEndpoint, err = feed.RankEndpoint(r.engine.cfg.Replay, r.number); err != nil {
			return err
		}
	}
	stream, err := feed.Open(src, cfg, r, feed.Hooks{Changed: r.changed, Stands: r.stands})
	if err != nil {
		return err
	}
	r.stream = stream
	return nil
}

// Close ends the engine's streams and subscriptions. It returns when nothing of
// them runs any more; calls of Next fail from then on.
func (e *Engine) Close() {
	e.mu.Lock()
	if !e.closing.Swap(true) {
		close(e.done)
	}
	e.mu.Unlock()
	e.waker.wake()
	for _, r := range e.ranks {
		if r.stream != nil {
			r.stream.Close()
		}
		r.changes.Close()
	}
	e.work.Wait()
}

// run starts fn on a goroutine that Close waits for, unless it was called.
func (e *Engine) run(fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closing.Load() {
		e.work.Go(fn)
	}
}

// nextEpoch returns a number above all given before, by this process or by one
// that ran earlier.
func (e *Engine) nextEpoch() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch = max(e.epoch+1, uint64(time.Now().UnixNano()))
	return e.epoch
}

// enter takes s in, unless the engine is closed.
func (e *Engine) enter(s *Subscription) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing.Load() {
		return false
	}
	e.subs[s] = struct{}{}
	return true
}

func (e *Engine) leave(s *Subscription) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.subs, s)
}

// need returns the lowest index of r's history that a subscriber reads next.
func (e *Engine) need(r *Rank) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	need := uint64(math.MaxUint64)
	for s := range e.subs {
		for _, rd := range s.readers {
			if rd.rank == r && rd.following.Load() {
				need = min(need, rd.pos.Load())
			}
		}
	}
	return need
}

// Name returns the engine's name.
func (e *Engine) Name() string { return e.cfg.Name }

// Kind returns "vllm" or "sglang".
func (e *Engine) Kind() string { return e.cfg.Kind }

// HashTokens reports whether token ids are kept out, so that there is no FormPeer.
func (e *Engine) HashTokens() bool { return e.cfg.HashTokens }

// HashCheck reports whether the engine's hashes are held against its tokens.
func (e *Engine) HashCheck() bool { return e.cfg.HashCheck != nil }

// Ranks returns the engine's ranks by number. The caller must not change it.
func (e *Engine) Ranks() []*Rank { return e.ranks }
