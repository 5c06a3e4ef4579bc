// SPDX-License-Identifier: Apache-2.0

// Before: the fronts, which have a request. After: rank.go, which runs it.

package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kindex/relay/wire"
)

// Engine is a running engine.
//
// Concurrency: any goroutine.
type Engine struct {
	cfg     Config
	ranks   []*rank
	load    []*loadSocket // by rank; none where nobody asked for them
	hash    hashers
	started time.Time
	named   atomic.Uint64 // requests that came without an id
	cancel  context.CancelFunc
	loops   sync.WaitGroup
	closing sync.Once
}

// New starts an engine's ranks: sockets bound, passes running. The fronts are the
// caller's to open.
//
// Errors: what [Config.Validate] says, or a socket that cannot be bound.
func New(c Config) (*Engine, error) {
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	layout, err := wire.LayoutFor(c.Engine, c.Version)
	if err != nil {
		return nil, err
	}
	pubs, err := openPublishers(&c, layout)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: c, started: time.Now()}
	e.hash.cfg = &e.cfg
	for i, pub := range pubs {
		e.ranks = append(e.ranks, newRank(i, &e.cfg, pub, pub, wallClock{}))
	}
	if e.load, err = openLoads(&e.cfg, pubs, e.ranks); err != nil {
		for _, p := range pubs {
			p.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	for _, l := range e.load {
		e.loops.Go(func() { l.run(ctx) })
	}
	for _, r := range e.ranks {
		e.loops.Go(func() { r.run(ctx) })
	}
	return e, nil
}

// openTries is how often ports are looked for that lie side by side.
const openTries = 50

// openPublishers binds the sockets of all ranks. Where the system chooses rank 0's
// ports, the other ranks' lie above them all the same.
func openPublishers(c *Config, layout *wire.Layout) (pubs []*Publisher, err error) {
	chosen := strings.HasSuffix(c.Pub, ":0") || strings.HasSuffix(c.Replay, ":0")
	for range openTries {
		p := PublisherConfig{Layout: layout, Topic: c.Topic, Pub: c.Pub, Replay: c.Replay, Buffer: c.Buffer, Dials: c.Dials}
		for p.Rank = range c.Ranks {
			var pub *Publisher
			if pub, err = NewPublisher(p); err != nil {
				break
			}
			pubs = append(pubs, pub)
			if p.Rank == 0 {
				p.Pub, p.Replay = pub.Live, pub.Replay
			}
		}
		if err == nil {
			return pubs, nil
		}
		taken := chosen && len(pubs) > 0
		for _, pub := range pubs {
			pub.Close()
		}
		if pubs = nil; !taken {
			break
		}
	}
	return nil, err
}

// Close ends every request and the sockets.
func (e *Engine) Close() {
	e.closing.Do(func() {
		e.cancel()
		e.loops.Wait()
		for _, r := range e.ranks {
			r.pub.Close()
		}
	})
}

// Publishers returns where each rank publishes, by rank.
func (e *Engine) Publishers() []*Publisher {
	out := make([]*Publisher, len(e.ranks))
	for i, r := range e.ranks {
		out[i] = r.pub
	}
	return out
}

// LoadEndpoints returns where each rank publishes its load, by rank; none: nowhere.
func (e *Engine) LoadEndpoints() (all []string) {
	for _, l := range e.load {
		all = append(all, l.at)
	}
	return all
}

// Submit begins a request on the rank that it names, else on the one with the
// least to do. The channel gets an output for each token and is closed after the
// last; it has room for all, so that nobody needs to read it.
//
// Errors: a rank that is not there, a prompt that is empty or too long, an id that
// is running.
func (e *Engine) Submit(q Request) (<-chan Output, error) {
	r := e.least()
	if q.Rank >= 0 {
		if q.Rank >= len(e.ranks) {
			return nil, fmt.Errorf("%w: %d: there are %d", errRank, q.Rank, len(e.ranks))
		}
		r = e.ranks[q.Rank]
	}
	if !q.Prompt.fits(&e.cfg, len(q.Tokens)) {
		q.Prompt = e.PromptOf(&q)
	}
	j, err := r.submit(q)
	if err != nil {
		return nil, err
	}
	return j.out, nil
}

// least returns the rank with the least to do, the first of equals: waiting
// requests count four times, as in vLLM's own balancer.
func (e *Engine) least() *rank {
	best, score := e.ranks[0], -1
	for _, r := range e.ranks {
		r.mu.Lock()
		n := 4*len(r.sched.waiting) + len(r.sched.running)
		r.mu.Unlock()
		if score < 0 || n < score {
			best, score = r, n
		}
	}
	return best
}

// Abort ends a request, wherever it is, and reports whether there was one.
func (e *Engine) Abort(id string) bool {
	return e.abortWhere(func(other string) bool { return other == id })
}

// abortWhere ends the requests whose ids are chosen, and reports whether there was one.
func (e *Engine) abortWhere(chosen func(id string) bool) (some bool) {
	for _, r := range e.ranks {
		some = r.abort(chosen) || some
	}
	return some
}

// Reset empties the caches. It reports false where a request runs: that rank's
// stays as it is.
func (e *Engine) Reset() bool {
	all := true
	for _, r := range e.ranks {
		all = r.reset() && all
	}
	return all
}

// Restart begins another life of every rank on the same sockets: empty caches,
// numbers from 0, nothing to replay; requests are aborted.
func (e *Engine) Restart() {
	for _, r := range e.ranks {
		_ = r.restart(func() error { r.pub.Forget(); return nil })
	}
}

// Reopen is [Engine.Restart] on new sockets at the same endpoints: who was connected
// is cut, and connects again.
//
// Errors: an endpoint that was taken meanwhile. That rank's publisher is closed then.
func (e *Engine) Reopen() error {
	var errs []error
	for _, r := range e.ranks {
		errs = append(errs, r.restart(r.pub.Rebind))
	}
	return errors.Join(errs...)
}

// Truth returns what each rank's cache holds.
func (e *Engine) Truth() []Truth { return each(e, (*rank).truth) }

// Loads returns what each rank does now.
func (e *Engine) Loads() []Load { return each(e, (*rank).load) }

// Prompt hashes a prompt as the engine does.
func (e *Engine) Prompt(tokens []uint32, lora, salt string) *Prompt {
	return e.hash.prompt(tokens, &space{LoRA: lora, Salt: salt})
}

// PromptOf hashes a request's prompt as the engine does.
func (e *Engine) PromptOf(q *Request) *Prompt { return e.hash.prompt(q.Tokens, q.space()) }

// Reuse returns what each rank would find of a prompt.
func (e *Engine) Reuse(tokens []uint32, salt string) []Reuse {
	return e.ReuseOf(e.Prompt(tokens, "", salt))
}

// ReuseOf is [Engine.Reuse] of a prompt that an engine with the same hashes and
// blocks has hashed.
func (e *Engine) ReuseOf(p *Prompt) []Reuse {
	return each(e, func(r *rank) Reuse { return r.reuse(p) })
}

// Pause lets no pass begin from now on, or lets them go on. The pass in the air
// ends.
func (e *Engine) Pause(on bool) { e.slow(func(h *holds) { h.paused = on }) }

// SlowAdmission lets each request that arrives from now on be let in only after
// delay, and apart after the one before it. Zero undoes either; both zero let those
// go that wait for it.
func (e *Engine) SlowAdmission(delay, apart time.Duration) {
	e.slow(func(h *holds) { h.delay, h.apart = delay, apart })
}

// Starve takes a share of the time from passes, 0 to below 1, as another process
// on the engine's cores would: each takes 1/(1-share) as long. 0 undoes it.
func (e *Engine) Starve(share float64) {
	e.slow(func(h *holds) { h.starve = min(max(share, 0), mostStarved) })
}

// mostStarved is the largest share of the time that passes can be denied.
const mostStarved = 0.999

func (e *Engine) slow(change func(*holds)) {
	for _, r := range e.ranks {
		r.slow(change)
	}
}

func each[T any](e *Engine, f func(*rank) T) []T {
	out := make([]T, len(e.ranks))
	for i, r := range e.ranks {
		out[i] = f(r)
	}
	return out
}
