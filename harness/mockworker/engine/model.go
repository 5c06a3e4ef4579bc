// SPDX-License-Identifier: Apache-2.0

// Before: whoever wants an engine's answer without its time: an oracle, a
// comparison with a real engine. After: rank.go.

package engine

import (
	"context"
	"time"

	"kindex/internal/kv"
)

// Model is one rank of an engine without sockets, goroutines or a wall clock: its
// owner makes the passes, and time goes by with them alone. It is the same code
// that an [Engine] runs.
//
// Concurrency: one goroutine.
type Model struct {
	rank  *rank
	hash  hashers
	sink  *list
	begun time.Time
	due   time.Time // when the pass in the air will be done; zero: there is none
}

// NewModel returns a model with an empty cache at the time 0. What c says of
// sockets and ranks is ignored.
//
// Errors: what [Config.Validate] says.
func NewModel(c Config) (*Model, error) {
	c.Ranks, c.Pub, c.Replay, c.LoadPub, c.GRPC, c.Admin = 1, "tcp://127.0.0.1:0", "", "", "", ""
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	clock := newVirtualClock()
	m := &Model{sink: &list{}, begun: clock.now()}
	m.rank = newRank(0, &c, nil, m.sink, clock)
	m.hash.cfg = &c
	return m, nil
}

// Submit queues a request; see [Engine.Submit].
func (m *Model) Submit(q Request) (<-chan Output, error) {
	j, err := m.rank.submit(q)
	if err != nil {
		return nil, err
	}
	return j.out, nil
}

// Step makes one pass and returns its events, and whether there was anything to
// do. Where the next request is not ready yet it waits for that first. No pass may be in
// the air.
func (m *Model) Step() (events []kv.Event, ok bool) {
	ctx := context.Background()
	due, ok := m.rank.begin()
	if !ok && !due.IsZero() {
		m.rank.clock.until(ctx, due, nil)
		due, ok = m.rank.begin()
	}
	if !ok {
		m.rank.idle()
		return m.sink.take(), false
	}
	m.rank.clock.until(ctx, due, nil)
	m.rank.finish()
	return m.sink.take(), true
}

// Advance makes the passes that are due up to at; their events are lost. One that
// began before and ends later stays in the air, until Advance or [Model.Drain] ends it.
func (m *Model) Advance(at time.Duration) {
	ctx := context.Background()
	end := m.begun.Add(at)
	for m.land(end) {
		due, ok := m.rank.begin()
		switch {
		case ok:
			m.due = due
		case due.IsZero(), due.After(end):
			m.rank.idle()
			m.rank.clock.until(ctx, end, nil)
			m.sink.take()
			return
		default: // the next request is not ready before that
			m.rank.clock.until(ctx, due, nil)
		}
	}
	m.rank.clock.until(ctx, end, nil)
	m.sink.take()
}

// land ends the pass in the air, and reports false where it is not due by end.
func (m *Model) land(end time.Time) bool {
	switch {
	case m.due.IsZero():
		return true
	case m.due.After(end):
		return false
	}
	m.rank.clock.until(context.Background(), m.due, nil)
	m.rank.finish()
	m.due = time.Time{}
	return true
}

// Drain makes passes until there is nothing to do. Their events are lost.
func (m *Model) Drain() {
	m.land(m.due)
	for more := true; more; {
		_, more = m.Step()
	}
}

// Now returns how much time has gone by.
func (m *Model) Now() time.Duration { return m.rank.clock.now().Sub(m.begun) }

// Wait lets time go by, up to at. No pass is made.
func (m *Model) Wait(at time.Duration) {
	m.rank.clock.until(context.Background(), m.begun.Add(at), nil)
}

// Abort ends a request and reports whether there was one.
func (m *Model) Abort(id string) bool {
	return m.rank.abort(func(other string) bool { return other == id })
}

// BlockSize returns how many tokens a block has.
func (m *Model) BlockSize() int { return m.rank.cfg.BlockSize }

// Reset empties the cache, unless something runs, and reports whether it did.
func (m *Model) Reset() bool { return m.rank.reset() }

// Truth returns what the cache holds.
func (m *Model) Truth() Truth { return m.rank.truth() }

// Load returns what the rank does now.
func (m *Model) Load() Load { return m.rank.load() }

// Prompt hashes a prompt as the engine does.
func (m *Model) Prompt(tokens []uint32, lora, salt string) *Prompt {
	return m.hash.prompt(tokens, &space{LoRA: lora, Salt: salt})
}

// PromptOf hashes a request's prompt as the engine does.
func (m *Model) PromptOf(q *Request) *Prompt { return m.hash.prompt(q.Tokens, q.space()) }

// Reuse returns what the cache would give for a prompt.
func (m *Model) Reuse(p *Prompt) Reuse { return m.rank.reuse(p) }

// list is a model's sink.
type list struct {
	events []kv.Event
	next   uint64
}

func (l *list) Publish(events []kv.Event) (uint64, error) {
	l.events = append(l.events, events...)
	l.next++
	return l.next - 1, nil
}

func (l *list) Published() (uint64, bool) { return l.next - 1, l.next > 0 }

func (l *list) take() []kv.Event {
	out := l.events
	l.events = nil
	return out
}
