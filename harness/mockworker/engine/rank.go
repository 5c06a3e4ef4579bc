// SPDX-License-Identifier: Apache-2.0

// Before: engine.go, which chose this rank for a request. After: cache.go for the
// blocks, publisher.go for what became of them.

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kindex/internal/kv"
)

// Request is what a client wants.
type Request struct {
	ID        string
	Tokens    []uint32
	Salt      string   // separates equal prompts; "": none
	MaxTokens int      // to generate
	Stops     []uint32 // tokens that end the answer
	Rank      int      // below 0: the engine chooses
}

// Output is one pass's share of an answer.
type Output struct {
	Token     uint32 // the token that this pass generated
	Generated int    // tokens so far
	Cached    int    // tokens of the prompt that were found cached
	Finish    string // "": more follow; "length", "stop"; "abort", without a token
}

// Errors of a submitted request.
var (
	errTooLong  = errors.New("the request is too long")
	errEnded    = errors.New("the engine is shutting down")
	errTaken    = errors.New("a request of this id is running")
	errNoTokens = errors.New("the prompt has no tokens")
	errNoAnswer = errors.New("nothing is to be generated")
)

// rank runs one data-parallel rank: a loop of passes. A pass lets waiting
// requests in, first come, first served; computes one token for each that runs;
// publishes what that did to the cache as one batch; and only then answers.
//
// Concurrency: run belongs to one goroutine, everything else may be called by any.
type rank struct {
	number int
	cfg    *Config
	pub    *Publisher
	wake   chan struct{}

	mu       sync.Mutex
	cache    *Cache    // guarded by mu; another one after a restart
	waiting  []*job    // guarded by mu
	running  []*job    // guarded by mu
	ended    bool      // guarded by mu
	counts   counts    // guarded by mu
	reported time.Time // of the throughput; guarded by mu
}

// counts are a rank's totals since it began.
type counts struct {
	generated uint64 // tokens
	prompt    uint64 // tokens of admitted prompts
	cached    uint64 // of these, found cached
	passes    uint64
	last      uint64 // generated when the throughput was last asked for
}

// job is one request on its rank.
type job struct {
	Request
	sequence
	state uint64 // of the drawn tokens
	out   chan Output
}

func newRank(number int, c *Config, pub *Publisher) *rank {
	return &rank{
		number: number, cfg: c, pub: pub, wake: make(chan struct{}, 1),
		cache: c.cache(), reported: time.Now(),
	}
}

// submit queues a request. The channel gets an output for each token and is
// closed after the last.
func (r *rank) submit(q Request) (*job, error) {
	limit := len(q.Tokens) + q.MaxTokens
	switch {
	case len(q.Tokens) == 0:
		return nil, errNoTokens
	case q.MaxTokens < 1:
		return nil, errNoAnswer
	case limit > r.cfg.ContextLength || limit > r.cfg.Blocks*r.cfg.BlockSize:
		return nil, fmt.Errorf("%w: %d tokens and %d to generate, the context is %d and the cache %d", errTooLong,
			len(q.Tokens), q.MaxTokens, r.cfg.ContextLength, r.cfg.Blocks*r.cfg.BlockSize)
	}
	j := &job{Request: q, state: r.cfg.Seed, out: make(chan Output, q.MaxTokens+1)}
	j.tokens, j.salt, j.limit = slices.Clone(q.Tokens), q.Salt, limit
	for _, t := range q.Tokens {
		j.state = mix(j.state ^ uint64(t))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil, errEnded
	}
	for _, other := range slices.Concat(r.waiting, r.running) {
		if other.ID == q.ID {
			return nil, fmt.Errorf("%w: %q", errTaken, q.ID)
		}
	}
	r.waiting = append(r.waiting, j)
	r.nudge()
	return j, nil
}

// nudge wakes run.
func (r *rank) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// abort ends a request, waiting or running, and reports whether there was one.
func (r *rank) abort(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, list := range []*[]*job{&r.waiting, &r.running} {
		for i, j := range *list {
			if j.ID == id {
				*list = slices.Delete(*list, i, i+1)
				r.finish(j, Output{Generated: j.generated(), Cached: j.cached * r.cfg.BlockSize, Finish: aborted})
				return true
			}
		}
	}
	return false
}

// finish sends a job's last output and gives its blocks back. The caller holds mu.
func (r *rank) finish(j *job, o Output) {
	r.cache.end(&j.sequence)
	j.out <- o
	close(j.out)
}

func (j *job) generated() int { return len(j.tokens) - len(j.Tokens) }

// run makes passes until ctx ends.
func (r *rank) run(ctx context.Context) {
	defer r.stop()
	for {
		if !r.pass() {
			r.idle()
			select {
			case <-r.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if r.cfg.PassTime > 0 {
			t := time.NewTimer(r.cfg.PassTime)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		} else if ctx.Err() != nil {
			return
		}
	}
}

// stop ends every request.
func (r *rank) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, j := range slices.Concat(r.running, r.waiting) {
		r.finish(j, Output{Generated: j.generated(), Finish: aborted})
	}
	r.running, r.waiting = nil, nil
}

// pass makes one pass and reports whether anything ran.
func (r *rank) pass() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.running {
		// What was drawn in the pass before is computed in this one.
		r.cache.cover(&j.sequence, len(j.tokens))
	}
	for len(r.waiting) > 0 && len(r.running) < r.cfg.MaxRunning {
		j := r.waiting[0]
		if !r.cache.admit(&j.sequence) {
			break
		}
		r.counts.prompt += uint64(len(j.Tokens))
		r.counts.cached += uint64(j.cached * r.cfg.BlockSize)
		r.waiting = r.waiting[1:]
		r.running = append(r.running, j)
	}
	if len(r.running) == 0 {
		return false
	}
	r.counts.passes++
	r.publish()
	keep := r.running[:0]
	for _, j := range r.running {
		if o := r.draw(j); o.Finish == "" {
			j.out <- o
			keep = append(keep, j)
		} else {
			r.finish(j, o)
		}
	}
	clear(r.running[len(keep):])
	r.running = keep
	return true
}

// draw adds the next token to a job's answer.
func (r *rank) draw(j *job) Output {
	j.state = mix(j.state)
	token := firstWord + uint32(j.state%uint64(r.cfg.Vocabulary-firstWord))
	j.state ^= uint64(token)
	j.tokens = append(j.tokens, token)
	r.counts.generated++
	o := Output{Token: token, Generated: j.generated(), Cached: j.cached * r.cfg.BlockSize}
	switch {
	case slices.Contains(j.Stops, token):
		o.Finish = stopped
	case o.Generated == j.MaxTokens:
		o.Finish = filled
	}
	return o
}

// idle publishes what no pass will: SGLang's loop does that when it has nothing to
// do, vLLM's never.
func (r *rank) idle() {
	if r.cfg.Engine != SGLang {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

// publish sends the cache's events, if there are any. The caller holds mu, so that
// a truth and the number that it belongs to are never apart.
func (r *rank) publish() {
	if events := r.cache.take(); len(events) > 0 {
		_, _ = r.pub.Publish(events) // a closed publisher: the engine ends
	}
}

// The tokens that are no words, and the first that is one.
const (
	bosWord   = 1
	eosWord   = 2
	firstWord = 3
)

// Why an answer ended.
const (
	stopped = "stop"
	filled  = "length"
	aborted = "abort"
)

// mix is splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Truth is what one rank's cache holds, exactly.
type Truth struct {
	Rank     int     `json:"rank"`
	Sequence *uint64 `json:"sequence"` // of the last batch published; null: none yet
	Pending  int     `json:"pending"`  // events that the next pass will publish
	Blocks   []Block `json:"blocks"`   // by engine hash
}

// Block is one cached block.
type Block struct {
	Engine   kv.EngineHash  `json:"engine"`
	Parent   *kv.EngineHash `json:"parent,omitempty"` // absent: it begins a chain
	Content  kv.ContentHash `json:"content"`
	Position Position       `json:"position"`
	Tokens   []uint32       `json:"tokens"`
	Copies   int            `json:"copies"` // physical
}

func (r *rank) truth() Truth {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := Truth{Rank: r.number, Pending: len(r.cache.events), Blocks: r.cache.content()}
	if seq, ok := r.pub.Published(); ok {
		t.Sequence = &seq
	}
	return t
}

// Reuse is what one rank would find of a prompt, in blocks.
type Reuse struct {
	Rank int `json:"rank"`
	Held int `json:"held"` // leading blocks that are cached
	Used int `json:"used"` // of these, those that a request would not compute again
}

func (r *rank) reuse(tokens []uint32, salt string) Reuse {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.cache.held(tokens, salt)
	return Reuse{r.number, held, r.cache.usable(held, len(tokens))}
}

// reset empties the cache unless something runs.
func (r *rank) reset() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.nudge()
	return r.cache.reset()
}

// restart begins another life: an empty cache and numbers from 0. Whatever runs
// is aborted.
func (r *rank) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range slices.Concat(r.running, r.waiting) {
		r.finish(j, Output{Generated: j.generated(), Finish: aborted})
	}
	r.running, r.waiting = nil, nil
	r.cache = r.cfg.cache()
	r.pub.Forget()
	r.nudge()
}

// Load is what one rank does now.
type Load struct {
	Rank            int     `json:"rank"`
	Running         int     `json:"running"` // requests
	Waiting         int     `json:"waiting"` // requests
	WaitingUncached int     `json:"waiting_uncached_tokens"`
	UsedTokens      int     `json:"used_tokens"`
	MaxTokens       int     `json:"max_tokens"`
	Throughput      float64 `json:"throughput"` // tokens/s since the last reading
	HitRate         float64 `json:"hit_rate"`   // of all prompt tokens since the start, 0 to 1
	MaxRunning      int     `json:"max_running"`
	Passes          uint64  `json:"passes"`
}

func (r *rank) load() Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	used, of := r.cache.used()
	l := Load{
		Rank: r.number, Running: len(r.running), Waiting: len(r.waiting), MaxRunning: r.cfg.MaxRunning, Passes: r.counts.passes,
		UsedTokens: used * r.cfg.BlockSize, MaxTokens: of * r.cfg.BlockSize,
	}
	for _, j := range r.waiting {
		held := r.cache.usable(r.cache.held(j.Tokens, j.Salt), len(j.Tokens))
		l.WaitingUncached += len(j.Tokens) - held*r.cfg.BlockSize
	}
	if r.counts.prompt > 0 {
		l.HitRate = float64(r.counts.cached) / float64(r.counts.prompt)
	}
	if gone := time.Since(r.reported).Seconds(); gone > 0 {
		l.Throughput = float64(r.counts.generated-r.counts.last) / gone
	}
	r.counts.last, r.reported = r.counts.generated, time.Now()
	return l
}
