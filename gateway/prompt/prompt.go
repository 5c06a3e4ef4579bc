// SPDX-License-Identifier: Apache-2.0

// Before: the router, with a call. After: the index, which is asked by tokens.

package prompt

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
)

// Source says where a prompt's tokens are from.
type Source uint8

// The sources.
const (
	None   Source = iota // they are not known: see Why
	Given                // the request has them
	Cached               // the same was asked before
	Asked                // an engine was asked for them
	Grown                // an engine was asked for the end, the rest was asked before
	Local                // a tokenizer in this process
	Sources
)

var sourceNames = [Sources]string{"none", "given", "cached", "asked", "grown", "local"}

// String returns the source's name in metrics.
func (s Source) String() string { return sourceNames[s] }

// Reasons why tokens are not known, besides those of openai.Call.Unsure.
const (
	NoPrompt    = "no_prompt"   // there is none
	Off         = "off"         // nobody is to be asked
	Short       = "short"       // it cannot fill a block
	Items       = "multimodal"  // it begins with more than text
	Late        = "late"        // the budget was over first
	Busy        = "busy"        // too many are asked already
	Unsupported = "unsupported" // no worker has what answers it
	Unanswered  = "unanswered"  // no worker could be asked, or answered well
	Refused     = "refused"     // the engine refused the prompt, as it will the request
	Disagrees   = "disagrees"   // engines' answers told other numbers of tokens than /tokenize
	Gone        = "gone"        // the client went first
)

// Reasons are all of them, in the order of [Stats.Skipped].
var Reasons = [...]string{
	NoPrompt, Off, Short, Items, Late, Busy, Unsupported, Unanswered, Refused, Disagrees, Gone,
	"truncated", "embeddings", "suffix", "odd_prompt", "extra_key", "template_fields",
}

// Prompt is what is known of a call's tokens.
type Prompt struct {
	Tokens     []uint32 // empty: not known
	LoRA, Salt string   // its namespace
	Extra      [][]byte // extra keys of its blocks, as kv.AppendExtraKey encodes them; nil: none

	Source Source
	Why    string // of None: one of Reasons
	// Partial is set where Tokens are the prompt's first ones only: what follows is more
	// than text.
	Partial bool

	key  key // under which they are kept
	pool *poolState
}

// Poster sends a worker a body of JSON, and returns its answer of at most limit bytes.
// A client of package upstream is one.
type Poster interface {
	Post(ctx context.Context, w *fleet.Worker, path string, body []byte, limit int) (status int, answer []byte, err error)
}

// Tokenizer is one in this process.
//
// Concurrency: any goroutine.
type Tokenizer interface {
	// Encode appends the tokens of text, which is UTF-8; with those that every prompt
	// begins or ends with where special is set.
	Encode(dst []uint32, text []byte, special bool) ([]uint32, error)
	// Texts returns about n texts, each of many tokens from all over its vocabulary: one
	// with another vocabulary has other tokens for them.
	Texts(n int) []string
}

// Options are a resolver's.
type Options struct {
	Client Poster
	// Budget is how long a request waits for its tokens; the question goes on behind it
	// and its answer is kept. 0: engines are never asked.
	Budget time.Duration
	// CacheBytes bounds the memory of earlier prompts' tokens.
	CacheBytes int64
	// PerWorker bounds the questions that one worker has at once, Waiting those of all
	// that are under way or wait for a worker.
	PerWorker, Waiting int
	// Timeout bounds one question.
	Timeout time.Duration

	Local Tokenizer // nil: none
	Log   *slog.Logger
}

// Defaults of [Options].
const (
	DefaultBudget     = 20 * time.Millisecond
	DefaultCacheBytes = 32 << 20
	defaultPerWorker  = 4
	defaultWaiting    = 256
	defaultTimeout    = 5 * time.Second
)

func (o *Options) fill() {
	if o.CacheBytes <= 0 {
		o.CacheBytes = DefaultCacheBytes
	}
	if o.PerWorker <= 0 {
		o.PerWorker = defaultPerWorker
	}
	if o.Waiting <= 0 {
		o.Waiting = defaultWaiting
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// counters count what a resolver did.
type counters struct {
	resolved [Sources]atomic.Uint64
	skipped  [len(Reasons)]atomic.Uint64

	calls, failed, sent, seconds    atomic.Uint64 // questions; seconds are ns
	proofs, differences, mismatches atomic.Uint64
	confirmed, shared               atomic.Uint64
}

// Stats are a resolver's counters.
type Stats struct {
	Resolved [Sources]uint64      // by Source
	Skipped  [len(Reasons)]uint64 // of None: by Reasons

	Calls     uint64        // questions put to workers
	Failed    uint64        // of them, those without an answer that is one
	SentBytes uint64        // of all questions' bodies
	Asking    time.Duration // that questions took, all together
	Shared    uint64        // requests that waited for another one's question

	Compared    uint64 // joined prompts that were held against the engine's answer for the whole
	Differences uint64 // of them, those that were not the same
	Confirmed   uint64 // answers whose prompt had as many tokens as expected
	Mismatches  uint64 // and those with other numbers

	Entries   int
	Bytes     int64
	Evictions uint64

	LocalOn bool // the tokenizer in this process is in use
}

// Stats returns what was counted so far.
func (r *Resolver) Stats() (s Stats) {
	c := &r.n
	for i := range s.Resolved {
		s.Resolved[i] = c.resolved[i].Load()
	}
	for i := range s.Skipped {
		s.Skipped[i] = c.skipped[i].Load()
	}
	s.Calls, s.Failed, s.SentBytes, s.Asking = c.calls.Load(), c.failed.Load(), c.sent.Load(), time.Duration(c.seconds.Load())
	s.Shared, s.Compared, s.Differences = c.shared.Load(), c.proofs.Load(), c.differences.Load()
	s.Confirmed, s.Mismatches = c.confirmed.Load(), c.mismatches.Load()
	s.Entries, s.Bytes, s.Evictions = r.cache.size()
	r.pools.Range(func(_, v any) bool {
		if p, ok := v.(*poolState); ok && p.local.Load() == localProved {
			s.LocalOn = true
		}
		return !s.LocalOn
	})
	return s
}

// none says why a prompt's tokens are not known.
func (r *Resolver) none(p *Prompt, why string) {
	p.Tokens, p.Source, p.Why = p.Tokens[:0], None, why
	r.n.resolved[None].Add(1)
	for i, known := range Reasons {
		if known == why {
			r.n.skipped[i].Add(1)
			return
		}
	}
}

// found hands out tokens.
func (r *Resolver) found(p *Prompt, tokens []uint32, from Source) {
	p.Tokens, p.Source = append(p.Tokens[:0], tokens...), from
	r.n.resolved[from].Add(1)
}
