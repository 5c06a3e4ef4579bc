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
	"kindex/relay/wire"
)

// Request is what a client wants.
type Request struct {
	ID        string
	Tokens    []uint32
	LoRA      string   // adapter, separates equal prompts; "": none
	Salt      string   // separates equal prompts; "": none
	Items     []Item   // in the prompt, by offset
	Embeds    [][]byte // in the place of Tokens, one for each; nil: none; vLLM only
	Report    bool     // tell again of the blocks that were found cached; vLLM only
	Session   string   // told with what the request stores; "": none
	MaxTokens int      // to generate
	Stops     []uint32 // tokens that end the answer
	Rank      int      // below 0: the engine chooses
	Answer    []uint32 // tokens to give; after these they are drawn
	Prompt    *Prompt  // of all that keys it, where it was hashed already; nil: not yet
}

// space returns what separates the request's prompt from equal ones.
func (q *Request) space() *space { return &space{q.LoRA, q.Salt, q.Items, q.Embeds} }

// Output is one pass's share of an answer.
type Output struct {
	Token     uint32 // the token that this pass generated
	Generated int    // tokens so far
	Cached    int    // tokens of the prompt that were found cached
	Finish    string // "": more follow; "length", "stop"; "abort", without a token
}

// Stats is what became of one request.
type Stats struct {
	ID        string
	Rank      int
	LoRA      string
	Salt      string
	Prompt    int    // tokens
	Cached    int    // of these, found cached when it was first let in
	Loaded    int    // of those, found on the second tier
	Output    int    // tokens
	Preempted int    // times
	Finish    string // as in [Output]

	Arrived    time.Time
	Admitted   time.Time // when it was first let in; zero: never
	FirstToken time.Time // zero: never
	Ended      time.Time
}

// Queued returns how long a request waited to be let in.
func (s *Stats) Queued() time.Duration {
	if s.Admitted.IsZero() {
		return s.Ended.Sub(s.Arrived)
	}
	return s.Admitted.Sub(s.Arrived)
}

// Errors of a submitted request.
var (
	errTooLong  = errors.New("the request is too long")
	errEnded    = errors.New("the engine is shutting down")
	errTaken    = errors.New("a request of this id is running")
	errNoTokens = errors.New("the prompt has no tokens")
	errNoAnswer = errors.New("nothing is to be generated")
	errAdapter  = errors.New("this engine is served without adapters")
	errEmbeds   = errors.New("embeddings: vllm takes one for each token of a prompt, others take none")
	errItems    = errors.New("items: must be tokens of the prompt, in order, none in another")
	errRank     = errors.New("no such rank")
)

// sink is where a rank's batches go: a publisher, or a list.
type sink interface {
	Publish(events []kv.Event) (uint64, error)
	Published() (uint64, bool)
}

// rank runs one data-parallel rank: a loop of passes. A pass is begun, takes its
// time, publishes what it did to the cache as one batch, and only then answers.
//
// Concurrency: begin and finish belong to one goroutine, everything else may be
// called by any.
type rank struct {
	number int
	cfg    *Config
	pub    *Publisher // nil: a model's
	sink   sink
	clock  clock
	wake   chan struct{}

	mu       sync.Mutex
	sched    scheduler // guarded by mu; its cache is another one after a restart
	ended    bool      // guarded by mu
	counts   counts    // guarded by mu
	reported time.Time // of the throughput; guarded by mu
	over     []Stats   // whose end is to be told; guarded by mu
	hold     holds     // guarded by mu
	letIn    time.Time // when the last request was ready; guarded by mu
}

// holds is what slows a rank down on purpose. The zero value does nothing.
type holds struct {
	paused bool
	delay  time.Duration // before a request may be let in
	apart  time.Duration // between two such
	starve float64       // share of the time that passes do not get, 0 to below 1
}

// counts are a rank's totals since it began.
type counts struct {
	generated uint64 // tokens
	prompt    uint64 // tokens of admitted prompts
	cached    uint64 // of these, found cached
	loaded    uint64 // of those, found on the second tier
	passes    uint64
	last      uint64 // generated when the throughput was last asked for
	ended     uint64 // requests

	busy time.Duration // that passes with prompts in them took
}

// job is one request on its rank.
type job struct {
	Request
	sequence
	stats  Stats
	ready  time.Time // before this it is not let in
	target int       // tokens there were when it was let in: those after are decoded
	share  int       // tokens that the pass in the air computes
	over   bool
	state  uint64 // of the drawn tokens
	out    chan Output
}

func newRank(number int, c *Config, pub *Publisher, to sink, at clock) *rank {
	r := &rank{number: number, cfg: c, pub: pub, sink: to, clock: at, wake: make(chan struct{}, 1), reported: at.now()}
	r.sched = scheduler{cache: c.cache(), limits: c.limits()}
	return r
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
	case q.LoRA != "" && r.cfg.radix() && !r.cfg.tells(wire.FieldLoRAName):
		return nil, errAdapter
	case len(q.Embeds) > 0 && (r.cfg.radix() || len(q.Embeds) != len(q.Tokens)):
		return nil, errEmbeds
	case len(q.Items) > 0 && !inOrder(q.Items, len(q.Tokens)):
		return nil, errItems
	case limit > r.cfg.ContextLength || r.cfg.needs(limit) > r.cfg.Blocks:
		return nil, fmt.Errorf("%w: %d tokens and %d to generate, the context is %d and the cache %d blocks, of which that takes %d", errTooLong,
			len(q.Tokens), q.MaxTokens, r.cfg.ContextLength, r.cfg.Blocks, r.cfg.needs(limit))
	}
	j := &job{Request: q, state: r.cfg.Seed, out: make(chan Output, q.MaxTokens+1)}
	j.tokens, j.of = append(make([]uint32, 0, limit), q.Tokens...), *q.space()
	j.session = q.Session
	if q.Prompt.fits(r.cfg, len(q.Tokens)) {
		j.names = slices.Clip(q.Prompt.names)
	}
	j.Tokens, j.Prompt = j.tokens[:len(q.Tokens):len(q.Tokens)], nil
	for _, t := range q.Tokens {
		j.state = mix(j.state ^ uint64(t))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil, errEnded
	}
	same := func(other *job) bool { return other.ID == q.ID }
	if slices.ContainsFunc(r.sched.waiting, same) || slices.ContainsFunc(r.sched.running, same) {
		return nil, fmt.Errorf("%w: %q", errTaken, q.ID)
	}
	now := r.clock.now()
	j.stats = Stats{ID: q.ID, Rank: r.number, LoRA: q.LoRA, Salt: q.Salt, Prompt: len(q.Tokens), Arrived: now}
	j.ready = now.Add(r.cfg.overhead() + r.hold.delay)
	if next := r.letIn.Add(r.hold.apart); r.hold.apart > 0 && next.After(j.ready) {
		j.ready = next
	}
	r.letIn = j.ready
	r.sched.waiting = append(r.sched.waiting, j)
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

// unlock gives mu back and tells what ended meanwhile.
func (r *rank) unlock() {
	over := r.over
	r.over = nil
	r.mu.Unlock()
	if r.cfg.Ended != nil {
		for _, s := range over {
			r.cfg.Ended(s)
		}
	}
}

// abort ends the requests, waiting or running, whose ids are chosen, and reports
// whether there was one.
func (r *rank) abort(chosen func(id string) bool) (some bool) {
	r.mu.Lock()
	defer r.unlock()
	for _, j := range slices.Concat(r.sched.running, r.sched.waiting) {
		if chosen(j.ID) {
			r.sched.remove(j.ID)
			r.deliver(j, Output{Finish: aborted})
			some = true
		}
	}
	return some
}

// deliver sends an output, and tells the end if it is the last. The caller holds mu.
func (r *rank) deliver(j *job, o Output) {
	now := r.clock.now()
	o.Generated, o.Cached = j.generated(), j.stats.Cached
	if o.Finish != aborted && j.stats.FirstToken.IsZero() {
		j.stats.FirstToken = now
	}
	j.out <- o
	if o.Finish == "" {
		return
	}
	close(j.out)
	j.stats.Output, j.stats.Finish, j.stats.Ended = o.Generated, o.Finish, now
	r.counts.ended++
	r.over = append(r.over, j.stats)
}

// inOrder reports whether items lie side by side within n tokens.
func inOrder(items []Item, n int) bool {
	past := 0
	for _, it := range items {
		if it.ID == "" || it.Length < 1 || it.Offset < past || it.Length > n-it.Offset {
			return false
		}
		past = it.Offset + it.Length
	}
	return true
}

func (j *job) generated() int { return len(j.tokens) - len(j.Tokens) }

// run makes passes until ctx ends.
func (r *rank) run(ctx context.Context) {
	defer r.stop()
	for ctx.Err() == nil {
		due, ok := r.begin()
		if ok {
			if r.clock.until(ctx, due, nil) {
				r.finish()
			}
			continue
		}
		r.idle()
		if !due.IsZero() {
			r.clock.until(ctx, due, r.wake)
			continue
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
		}
	}
}

// stop ends every request.
func (r *rank) stop() {
	r.mu.Lock()
	defer r.unlock()
	r.ended = true
	r.abortAll()
}

// abortAll ends every request. The caller holds mu.
func (r *rank) abortAll() {
	for _, j := range r.sched.removeAll() {
		r.deliver(j, Output{Finish: aborted})
	}
}

// begin begins a pass and returns when it will be done. Where there is nothing to
// compute it is not ok, and due is when there will be: zero if nobody knows.
func (r *rank) begin() (due time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold.paused {
		return time.Time{}, false
	}
	now := r.clock.now()
	if !r.sched.schedule(func(j *job) bool { return !j.ready.After(now) }) {
		if w := r.sched.waiting; len(w) > 0 && w[0].ready.After(now) {
			return w[0].ready, false
		}
		return time.Time{}, false
	}
	if r.cfg.audit != nil {
		r.cfg.audit(&r.sched)
	}
	for _, j := range r.sched.pass.jobs {
		if j.stats.Admitted.IsZero() {
			j.stats.Admitted = now
			r.counts.prompt += uint64(len(j.Tokens))
			r.counts.cached += uint64(j.stats.Cached)
			r.counts.loaded += uint64(j.stats.Loaded)
		}
	}
	r.counts.passes++
	took := r.took()
	if r.sched.pass.prompts > 0 {
		r.counts.busy += took
	}
	return now.Add(took), true
}

// took returns how long the pass in the air takes. The caller holds mu.
func (r *rank) took() time.Duration {
	d := r.cfg.PassTime
	if r.cfg.Timing != nil {
		used, of := r.sched.cache.used()
		d = time.Duration(float64(r.cfg.Timing.took(&r.sched.pass, used*r.cfg.BlockSize, of*r.cfg.BlockSize)) / r.cfg.Speed)
	}
	return time.Duration(float64(d) / (1 - r.hold.starve))
}

// finish ends the pass in the air: its events go out, then the tokens.
func (r *rank) finish() {
	r.mu.Lock()
	defer r.unlock()
	outputs := r.sched.settle(r.draw)
	if r.cfg.audit != nil {
		r.cfg.audit(&r.sched)
	}
	r.publish()
	for _, o := range outputs {
		r.deliver(o.job, o.output)
	}
}

// draw adds the next token to a job's answer.
func (r *rank) draw(j *job) Output {
	j.state = mix(j.state)
	token := firstWord + uint32(j.state%uint64(r.cfg.Vocabulary-firstWord))
	if n := j.generated(); n < len(j.Answer) {
		token = j.Answer[n]
	}
	j.state ^= uint64(token)
	j.tokens = append(j.tokens, token)
	r.counts.generated++
	o := Output{Token: token}
	switch {
	case slices.Contains(j.Stops, token):
		o.Finish = stopped
	case j.generated() == j.MaxTokens:
		o.Finish = filled
	}
	return o
}

// idle publishes what no pass will: SGLang's loop does that when it has nothing to
// do, vLLM's never.
func (r *rank) idle() {
	if !r.cfg.radix() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

// publish sends the cache's events, if there are any. The caller holds mu, so that
// a truth and the number that it belongs to are never apart.
func (r *rank) publish() {
	for range 2 { // what was copied to the host is told in a batch of its own
		if events := r.sched.cache.take(); len(events) > 0 {
			_, _ = r.sink.Publish(events) // a closed publisher: the engine ends
		}
		r.sched.cache.offload()
	}
}

// The tokens that are no words, and the first that is one.
const (
	itemWord  = 0 // holds an item's place
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

// Block is one cached block in one place.
type Block struct {
	Engine   kv.EngineHash  `json:"hash"`
	Parent   *kv.EngineHash `json:"parent,omitempty"` // absent: it begins a chain
	Content  kv.ContentHash `json:"content"`
	Position Position       `json:"position"`
	Tokens   []uint32       `json:"tokens"`
	Tier     string         `json:"tier"`   // TierDevice, TierHost, TierDisk or TierRemote
	Group    int            `json:"group"`  // of caches: the last is the main one, if there is one
	Copies   int            `json:"copies"` // physical, there
}

// Where a block can be.
const (
	TierDevice = "device"
	TierHost   = "host"
	TierDisk   = "disk"
	TierRemote = "remote"
)

func (r *rank) truth() Truth {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.sched.cache
	t := Truth{Rank: r.number, Pending: len(c.events), Blocks: c.content()}
	if seq, ok := r.sink.Published(); ok {
		t.Sequence = &seq
	}
	return t
}

// Reuse is what one rank would find of a prompt, in blocks.
type Reuse struct {
	Rank int `json:"rank"`
	Held int `json:"held"` // leading blocks that are cached so that a request can begin with them
	Used int `json:"used"` // of these, those that a request would not compute again
}

func (r *rank) reuse(p *Prompt) Reuse {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.sched.cache
	onDevice, lower := c.found(p.names)
	out := Reuse{r.number, onDevice + lower, onDevice + lower}
	switch most := c.usable(len(p.names), p.tokens); {
	case most == len(p.names):
	case len(c.windows) == 0 && (len(c.lower) == 0 || c.lower[0].chunk == 1):
		out.Used = min(out.Held, most)
	default: // fewer blocks may end where a window or a chunk does not
		onDevice, lower = c.found(p.names[:most])
		out.Used = onDevice + lower
	}
	return out
}

// reset empties the cache unless something runs.
func (r *rank) reset() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.nudge()
	return r.sched.cache.reset()
}

// restart begins another life: an empty cache and, by again, numbers from 0. Whatever
// runs is aborted. No pass ends in between, so that a life tells all that it holds.
func (r *rank) restart(again func() error) error {
	r.mu.Lock()
	defer r.unlock()
	defer r.nudge()
	r.abortAll()
	r.sched.cache = r.cfg.cache()
	return again()
}

// slow sets what slows the rank down.
func (r *rank) slow(change func(*holds)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.hold)
	if r.hold.delay == 0 && r.hold.apart == 0 { // those that were held back are let go
		r.letIn = time.Time{}
		for _, j := range r.sched.waiting {
			if at := j.stats.Arrived.Add(r.cfg.overhead()); at.Before(j.ready) {
				j.ready = at
			}
		}
	}
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
	Preemptions     uint64  `json:"preemptions"`
	Ended           uint64  `json:"ended"` // requests
	PromptTokens    uint64  `json:"prompt_tokens"`
	CachedTokens    uint64  `json:"cached_tokens"` // of the prompts'
	LoadedTokens    uint64  `json:"loaded_tokens"` // of those, from the second tier
	OutputTokens    uint64  `json:"output_tokens"`

	Busy time.Duration `json:"busy_ns"` // that passes with prompts in them took
}

// uncached returns how many tokens of those that wait are not cached. The caller holds
// mu.
func (r *rank) uncached() (n int) {
	for _, j := range r.sched.waiting {
		onDevice, lower := r.sched.cache.hits(&j.sequence)
		n += len(j.tokens) - (onDevice+lower)*r.cfg.BlockSize
	}
	return n
}

func (r *rank) load() Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.sched
	used, of := s.cache.used()
	l := Load{
		Rank: r.number, Running: len(s.running), Waiting: len(s.waiting), MaxRunning: r.cfg.MaxRunning, Passes: r.counts.passes,
		UsedTokens: used * r.cfg.BlockSize, MaxTokens: of * r.cfg.BlockSize, Preemptions: s.preempted, Ended: r.counts.ended,
		PromptTokens: r.counts.prompt, CachedTokens: r.counts.cached, LoadedTokens: r.counts.loaded, OutputTokens: r.counts.generated,
	}
	l.WaitingUncached, l.Busy = r.uncached(), r.counts.busy
	if r.counts.prompt > 0 {
		l.HitRate = float64(r.counts.cached) / float64(r.counts.prompt)
	}
	now := r.clock.now()
	if gone := now.Sub(r.reported).Seconds(); gone > 0 {
		l.Throughput = float64(r.counts.generated-r.counts.last) / gone
	}
	r.counts.last, r.reported = r.counts.generated, now
	return l
}
