// SPDX-License-Identifier: Apache-2.0

// Before: resolve.go, with a prompt that is not kept. After: ask.go; the cache.

package prompt

import (
	"context"
	"slices"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
)

// flight is a question under way, for everybody who has the same prompt.
type flight struct {
	done   chan struct{}
	tokens []uint32 // nil: see why. Immutable once done is closed
	from   Source
	why    string
}

const (
	proofsNeeded = 2  // equal to the engine's answer for the whole, before any is used
	compareEach  = 32 // and later one in so many, and chats of twice as many messages as any before
	apartMost    = 4  // in a row that could not be joined: nobody tries for a while
	aloneFor     = 10 * time.Minute
	apartFor     = time.Minute
)

// fly returns the question about a prompt that is under way, or begins it; nil: too
// many are. q and c are the caller's own.
func (r *Resolver) fly(q *question, c *openai.Call, turns []openai.Turn) *flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.flights[q.key]; f != nil {
		r.n.shared.Add(1)
		return f
	}
	size := int64(len(c.Text) + len(c.Messages))
	if len(r.flights) >= r.o.Waiting || r.closed || r.under > 0 && r.under+size > maxUnder {
		return nil
	}
	r.under += size
	f := &flight{done: make(chan struct{})}
	own := *q
	own.keys = slices.Clone(q.keys)
	own.keep(c, turns)
	if q.partly {
		own.role = slices.Clone(q.role)
	}
	r.flights[q.key] = f
	r.flying.Go(func() {
		ctx, cancel := context.WithTimeout(r.base, 2*r.o.Timeout)
		defer cancel()
		r.run(ctx, &own, f)
		r.mu.Lock()
		r.under -= size
		r.mu.Unlock()
	})
	return f
}

// maxUnder bounds the bytes of prompts whose questions are under way.
const maxUnder = 64 << 20

// land hands a flight's answer to those who wait.
func (r *Resolver) land(q *question, f *flight, tokens []uint32, from Source, err error) {
	f.tokens, f.from = tokens, from
	if err != nil {
		f.tokens, f.why = nil, reason(err)
	}
	r.mu.Lock()
	delete(r.flights, q.key)
	r.mu.Unlock()
	close(f.done)
}

// run answers one question.
func (r *Resolver) run(ctx context.Context, q *question, f *flight) {
	if q.partly {
		tokens, err := r.stem(ctx, q)
		if err == nil {
			r.put(q, tokens, 0)
		}
		r.land(q, f, tokens, Asked, err)
		return
	}
	g := r.growth(q)
	proved := q.state.proofs.Load() >= proofsNeeded
	if g != nil && proved {
		if tokens, ok := r.grow(ctx, q, g); ok {
			r.put(q, tokens, g.from)
			r.land(q, f, tokens, Grown, nil)
			if q.state.joined.Add(1)%compareEach == 0 || len(q.turns) > 2*int(q.state.longest.Load()) && q.chat {
				if whole, err := r.whole(ctx, q); err == nil {
					r.compare(q, whole, tokens)
				}
			}
			return
		}
		q.state.noJoin()
	}
	whole, err := r.whole(ctx, q)
	from := 0
	if g != nil {
		from = g.from
	}
	if err == nil {
		r.put(q, whole, from)
	}
	r.land(q, f, whole, Asked, err)
	if err == nil && g != nil && !proved {
		if tokens, ok := r.grow(ctx, q, g); ok {
			r.compare(q, whole, tokens)
		} else {
			q.state.noJoin()
		}
	}
}

// noJoin notes that a prompt could not be joined with what it continues: where that is
// usual, nobody tries for a while.
func (s *poolState) noJoin() {
	if s.apart.Add(1) >= apartMost {
		s.apart.Store(0)
		s.alone.Store(fleet.Now() + int64(apartFor))
	}
}

// compare holds a joined prompt against the engine's answer for the whole.
func (r *Resolver) compare(q *question, whole, joined []uint32) {
	r.n.proofs.Add(1)
	if slices.Equal(whole, joined) {
		q.state.apart.Store(0)
		q.state.proofs.Add(1)
		if n := int64(len(q.turns)); n > q.state.longest.Load() {
			q.state.longest.Store(n)
		}
		return
	}
	r.n.differences.Add(1)
	q.state.proofs.Store(0)
	q.state.longest.Store(0)
	q.state.alone.Store(fleet.Now() + int64(aloneFor))
	r.put(q, whole, 0)
	r.o.Log.Warn("prompts that continue others are asked for as a whole for a while: their ends alone have other tokens", "model", q.pool.Model, "chat", q.chat, "for", aloneFor)
}

// put keeps a prompt's tokens. from is where the window began that they were asked by.
func (r *Resolver) put(q *question, tokens []uint32, from int) {
	e := &entry{key: q.key, begin: key{n: -1}, from: from, tokens: tokens, partly: q.partly}
	if q.chat {
		e.length = len(q.turns)
	} else {
		e.begin, e.length = q.keys[len(q.keys)-1], len(q.text)
	}
	r.cache.put(e)
}

// whole asks for all of a prompt.
func (r *Resolver) whole(ctx context.Context, q *question) (tokens []uint32, err error) {
	if q.chat {
		tokens, err = r.ask(ctx, q.pool, true, q.chatBody(q.turns))
	} else {
		tokens, err = r.textTokens(ctx, q, q.text, q.options, q.special)
	}
	if err == nil && len(tokens) == 0 {
		err = errRefused // no engine takes a prompt of none
	}
	return tokens, err
}

// textTokens finds the tokens of a text: in this process where that is proved.
func (r *Resolver) textTokens(ctx context.Context, q *question, text, options []byte, special bool) ([]uint32, error) {
	if q.state.local.Load() == localProved {
		return r.o.Local.Encode(make([]uint32, 0, len(text)/3+4), text, special)
	}
	return r.ask(ctx, q.pool, false, q.textBody(text, options))
}

// growth is a known prompt that another one continues.
type growth struct {
	known *entry
	from  int // where the window begins
}

// growth returns what q continues, with a window that is much shorter than q; nil: there
// is nothing of the kind.
func (r *Resolver) growth(q *question) *growth {
	if q.state.alone.Load() > fleet.Now() {
		return nil
	}
	if q.chat {
		return r.chatGrowth(q)
	}
	if len(q.text) < longText {
		return nil
	}
	e := r.cache.begin(q.keys, q.text)
	if e == nil || e.length < longText/2 {
		return nil
	}
	g := &growth{e, e.from}
	if g.from == 0 || e.length-g.from > windowMost {
		g.from = window(q.text, e.length)
	}
	if g.from == 0 || 2*(len(q.text)-g.from) > len(q.text) {
		return nil
	}
	return g
}

func (r *Resolver) chatGrowth(q *question) *growth {
	var e *entry
	n := len(q.turns) - 1
	for ; n > 0 && e == nil; n-- {
		e = r.cache.get(q.keys[n-1])
	}
	if e == nil {
		return nil
	}
	bytes := func(from, to int) (n int) {
		for _, t := range q.turns[from:to] {
			n += len(t)
		}
		return n
	}
	g := &growth{e, e.from}
	if g.from == 0 || bytes(g.from, e.length) > windowMost {
		g.from = e.length - 1
		for g.from > 0 && (bytes(g.from, e.length) < windowLeast/2 || !userTurn(q.turns[g.from])) {
			g.from--
		}
	}
	if g.from == 0 || 2*bytes(g.from, len(q.turns)) > bytes(0, len(q.turns)) {
		return nil
	}
	return g
}

// grow asks for the end of a prompt and joins it with what is known of its begin.
func (r *Resolver) grow(ctx context.Context, q *question, g *growth) ([]uint32, bool) {
	before, err := r.part(ctx, q, g.from, g.known.length)
	if err != nil {
		return nil, false
	}
	past := len(q.text)
	if q.chat {
		past = len(q.turns)
	}
	after, err := r.part(ctx, q, g.from, past)
	if err != nil {
		return nil, false
	}
	return join(g.known.tokens, before, after)
}

// part finds the tokens of a part of a prompt by itself.
func (r *Resolver) part(ctx context.Context, q *question, from, to int) ([]uint32, error) {
	var k key
	if q.chat {
		k = q.root
		for i, t := range q.turns[from:to] {
			k = k.then(t, i+1)
		}
	} else {
		_, k = texts(nil, root(ofText, []byte(q.pool.Model), []byte(q.pool.Base), q.model, plain), q.text[from:to])
	}
	if e := r.cache.get(k); e != nil {
		return e.tokens, nil
	}
	var tokens []uint32
	var err error
	if q.chat {
		tokens, err = r.ask(ctx, q.pool, true, q.chatBody(q.turns[from:to]))
	} else {
		tokens, err = r.textTokens(ctx, q, q.text[from:to], plain, false)
	}
	if err == nil {
		r.cache.put(&entry{key: k, begin: key{n: -1}, length: to - from, tokens: tokens})
	}
	return tokens, err
}

// stem asks for the tokens that a chat begins with whatever its next message says: what
// two such messages have in common, less the last ones, which what follows might change.
func (r *Resolver) stem(ctx context.Context, q *question) ([]uint32, error) {
	const slack = 2
	role := q.role
	if len(role) == 0 {
		role = []byte("user")
	}
	var both [2][]uint32
	for i, text := range []string{"a", "7"} {
		next := append(append([]byte(`{"role":"`), role...), `","content":"`+text+`"}`...)
		tokens, err := r.ask(ctx, q.pool, true, q.chatBody(append(slices.Clone(q.turns), next)))
		if err != nil {
			return nil, err
		}
		both[i] = tokens
	}
	n := 0
	for n < len(both[0]) && n < len(both[1]) && both[0][n] == both[1][n] {
		n++
	}
	if n <= slack {
		return nil, errRefused
	}
	return both[0][:n-slack], nil
}
