// SPDX-License-Identifier: Apache-2.0

// Before: the configuration. After: Rank and Subscription.

package relay

import (
	"log/slog"
	"sync"
)

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
	// HistoryBatches and HistoryBytes bound each rank's history; 0 means the
	// defaults.
	HistoryBatches int
	HistoryBytes   int64
	// Load returns the load of a rank; nil, or a nil source, means that none is
	// known.
	Load func(rank int) LoadSource
	// Log takes what an operator should read; nil means nobody does.
	Log *slog.Logger
}

// Engine is one engine's ranks and their subscribers.
//
// Concurrency: any goroutine.
type Engine struct {
	cfg   EngineConfig
	ranks []*Rank
	waker waker

	mu     sync.Mutex // guards what follows
	subs   map[*Subscription]struct{}
	closed bool
}

// Name returns the engine's name.
func (e *Engine) Name() string { return e.cfg.Name }

// Kind returns "vllm" or "sglang".
func (e *Engine) Kind() string { return e.cfg.Kind }

// HashTokens reports whether token ids are kept out, so that there is no FormPeer.
func (e *Engine) HashTokens() bool { return e.cfg.HashTokens }

// Ranks returns the engine's ranks by number. The caller must not change it.
func (e *Engine) Ranks() []*Rank { return e.ranks }

// Primed reports whether every rank is.
func (e *Engine) Primed() bool {
	for _, r := range e.ranks {
		if !r.Info().Standing.Primed {
			return false
		}
	}
	return true
}
