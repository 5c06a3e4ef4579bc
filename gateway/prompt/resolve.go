// SPDX-License-Identifier: Apache-2.0

// Before: the router, with a call. After: the cache; else flight.go.

package prompt

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
)

// Resolver finds tokens.
//
// Users: New, Resolve for each request, Confirm for each answer, Left for each worker
// that leaves, Close.
//
// Concurrency: any goroutine.
type Resolver struct {
	o     Options
	n     counters
	cache *cache

	mu      sync.Mutex
	flights map[key]*flight // questions under way, guarded by mu
	under   int64           // bytes of their prompts, guarded by mu
	closed  bool            // guarded by mu

	askers sync.Map // *fleet.Worker to *asker
	pools  sync.Map // poolName to *poolState

	base   context.Context // of all questions
	end    context.CancelFunc
	flying sync.WaitGroup

	keys sync.Pool // of *scratch
}

// scratch is what finding a prompt in the cache needs.
type scratch struct {
	q     question
	bytes []byte
}

// New returns a resolver.
func New(o Options) *Resolver {
	o.fill()
	r := &Resolver{o: o, cache: newCache(o.CacheBytes), flights: make(map[key]*flight)}
	r.base, r.end = context.WithCancel(context.Background())
	return r
}

// Close ends all questions and waits for them. Resolve may be called no more.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end()
	r.flying.Wait()
}

// poolName tells pools and kinds of questions apart.
type poolName struct {
	model, base string
	chat        bool
}

// poolState is what was learned of a pool's answers to one kind of question.
type poolState struct {
	proofs  atomic.Int32  // joined prompts that were equal to the engine's whole
	longest atomic.Int64  // messages of the longest of them
	apart   atomic.Int32  // in a row that could not be joined
	alone   atomic.Int64  // until then nothing is joined, by fleet.Now
	joined  atomic.Uint64 // prompts
	doubts  atomic.Int32  // answers in a row whose prompt had another number of tokens
	muted   atomic.Int64  // until then nobody is asked
	local   atomic.Int32  // how the tokenizer in this process stands
	locals  atomic.Uint64 // prompts that it had
	proving atomic.Int64  // until then it is not tried again
}

func (r *Resolver) state(pool *fleet.Pool, chat bool) *poolState {
	name := poolName{pool.Model, pool.Base, chat}
	v, ok := r.pools.Load(name)
	if !ok {
		v, _ = r.pools.LoadOrStore(name, new(poolState))
	}
	s, ok := v.(*poolState)
	if !ok {
		panic("BUG: prompt: pools has something else")
	}
	return s
}

// Resolve finds the tokens of a call's first prompt, and the namespace that an engine
// keeps them in. It takes no longer than the budget, and ends with ctx. What it cannot
// find it says in p.
//
// Cost: of token ids their copy; of what is kept one pass over the prompt, no
// allocation; else a question.
func (r *Resolver) Resolve(ctx context.Context, pool *fleet.Pool, c *openai.Call, p *Prompt) {
	*p = Prompt{Tokens: p.Tokens[:0], Salt: c.Salt, LoRA: adapter(pool, c)}
	switch {
	case c.Unsure != "":
		r.none(p, c.Unsure)
	case c.Form == openai.IDs && c.Multimodal:
		r.none(p, Items) // the ids hold places of items, whose numbers the engine makes
	case c.Form == openai.IDs:
		r.found(p, c.Tokens, Given)
	case c.Form == openai.Text && c.Multimodal:
		r.none(p, Items)
	case c.Form == openai.Messages && c.Kind != openai.Chat:
		r.none(p, openai.Odd) // a template's other defaults
	case c.Form == openai.Text && len(c.Text) == 0, c.Form == openai.Messages && len(c.Turns()) == 0:
		r.none(p, NoPrompt)
	case c.Form == openai.Text && len(c.Text)+2 < pool.BlockSize:
		// No token is made of less than a byte, but for those that every prompt begins and
		// ends with.
		r.none(p, Short)
	case c.Form == openai.Text, c.Form == openai.Messages:
		r.resolve(ctx, pool, c, p)
	default:
		r.none(p, NoPrompt)
	}
}

// adapter returns the adapter that a call means, "" for the base model: one that the
// body names, or the model's own name where the pool is of another one.
func adapter(pool *fleet.Pool, c *openai.Call) string {
	switch {
	case c.LoRA != "":
		return c.LoRA
	case c.Model == "" || c.Model == pool.Model && pool.Base == "":
		return ""
	}
	if after, ok := strings.CutPrefix(c.Model, pool.Weights()+":"); ok {
		return after // SGLang's way to name both
	}
	return c.Model
}

// resolve finds the tokens of text or a chat.
func (r *Resolver) resolve(ctx context.Context, pool *fleet.Pool, c *openai.Call, p *Prompt) {
	s, ok := r.keys.Get().(*scratch)
	if !ok {
		s = new(scratch)
	}
	defer r.keys.Put(s)
	q := &s.q
	*q = question{keys: q.keys[:0], chat: c.Form == openai.Messages}
	turns := c.Turns()
	if q.chat && c.Multimodal {
		n := 0
		for n < len(turns) && !turns[n].Item {
			n++
		}
		if n == 0 {
			r.none(p, Items)
			return
		}
		q.partly, q.role = true, roleOf(c.Body[turns[n].From:turns[n].To])
		turns = turns[:n]
	}
	q.state = r.state(pool, q.chat)
	s.bytes = prepare(q, c, pool, turns, s.bytes)
	p.key, p.pool, p.Partial = q.key, q.state, q.partly
	if e := r.cache.get(q.key); e != nil {
		r.found(p, e.tokens, Cached)
		return
	}
	if r.localOn(q, c) {
		own := *q
		own.keep(c, turns)
		r.encode(p, &own)
		return
	}
	switch {
	case r.o.Budget <= 0:
		r.none(p, Off)
	case q.state.muted.Load() > fleet.Now():
		r.none(p, Disagrees)
	default:
		r.wait(ctx, r.fly(q, c, turns), p)
	}
}

// wait waits for a question's answer as long as the budget lets it.
func (r *Resolver) wait(ctx context.Context, f *flight, p *Prompt) {
	if f == nil {
		r.none(p, Busy)
		return
	}
	timer := time.NewTimer(r.o.Budget)
	defer timer.Stop()
	select {
	case <-f.done:
	case <-timer.C:
		r.none(p, Late)
		return
	case <-ctx.Done():
		r.none(p, Gone)
		return
	}
	if f.tokens == nil {
		r.none(p, f.why)
		return
	}
	r.found(p, f.tokens, f.from)
}

// Confirm holds what was found of a prompt against what the answer to it says. A prompt
// that had another number of tokens is forgotten, and what leads to several such in a
// row is left for a while.
func (r *Resolver) Confirm(c *openai.Call, p *Prompt, u openai.Usage) {
	if !u.Known || c.Prompts != 1 || c.N != 1 || p.Partial || p.Source == None || p.Source == Given || p.pool == nil {
		return
	}
	if u.Prompt == int64(len(p.Tokens)) {
		r.n.confirmed.Add(1)
		p.pool.doubts.Store(0)
		return
	}
	r.n.mismatches.Add(1)
	r.cache.drop(p.key)
	now := fleet.Now()
	p.pool.alone.Store(now + int64(aloneFor))
	p.pool.proofs.Store(0)
	if p.Source == Local {
		r.refute(p.pool, c.Model, "an engine's answer says that a prompt had another number of tokens")
		return
	}
	if p.pool.doubts.Add(1) == doubtsMost {
		p.pool.doubts.Store(0)
		p.pool.muted.Store(now + int64(mutedFor))
		r.o.Log.Warn("prompts are routed by load for a while: answers say other numbers of tokens than /tokenize", "model", c.Model, "for", mutedFor)
	}
}

const (
	doubtsMost = 3
	mutedFor   = 5 * time.Minute
)

// reason returns why a question has no answer.
func reason(err error) string {
	switch {
	case errors.Is(err, errUnsupported):
		return Unsupported
	case errors.Is(err, errRefused):
		return Refused
	}
	return Unanswered
}
