// SPDX-License-Identifier: Apache-2.0

// Before: flight.go, with a question. After: a worker's /tokenize.

package prompt

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
	"kindex/internal/jsonscan"
)

const (
	// maxAnswer bounds an engine's answer, bytes: seven a token.
	maxAnswer = 64 << 20
	// looked is among how many workers the best one is looked for.
	looked = 64
	// tries is how many workers are asked one question.
	tries = 2

	firstPause = 250 * time.Millisecond // after a fault; doubled with each in a row
	longest    = 10 * time.Second
	deniedFor  = 30 * time.Second // a key that is wrong stays so
	chatlessIn = 3                // chats refused, and none answered: there is no such thing
	chatlessIs = time.Minute
)

// paths are where engines answer, in the order of trial.
var paths = [...]string{"/tokenize", "/v1/tokenize"}

// asker is what is known of one worker's /tokenize.
type asker struct {
	slots   chan struct{}
	under   atomic.Int64 // questions that have this worker or wait for it
	path    atomic.Int32 // index of paths; len(paths): it has none
	paused  atomic.Int64 // until then it is not asked, by fleet.Now
	faults  atomic.Int32 // in a row
	chats   atomic.Bool  // it has answered for a chat
	refused atomic.Int32 // chats, before it ever did
	noChats atomic.Int64 // until then it is asked for none
}

func (r *Resolver) asker(w *fleet.Worker) *asker {
	if v, ok := r.askers.Load(w); ok {
		if a, ok := v.(*asker); ok {
			return a
		}
	}
	v, _ := r.askers.LoadOrStore(w, &asker{slots: make(chan struct{}, r.o.PerWorker)})
	a, ok := v.(*asker)
	if !ok {
		panic("BUG: prompt: askers has something else")
	}
	return a
}

// Left forgets a worker. The registry's hook for leaving workers calls it.
func (r *Resolver) Left(w *fleet.Worker) { r.askers.Delete(w) }

var (
	errUnsupported = errors.New("no worker answers it")
	errUnanswered  = errors.New("no worker could be asked")
	errRefused     = errors.New("refused")
)

// pick returns the worker of pool that is best asked: ready, not vetoed for its health,
// and with the least to do, of a number of them that a large pool draws. not is one that has failed already.
func (r *Resolver) pick(pool *fleet.Pool, chat bool, not *fleet.Worker) (*fleet.Worker, *asker, error) {
	var best *fleet.Worker
	var of *asker
	var least int64
	able, seen := false, 0
	now := fleet.Now()
	start := 0
	if n := len(pool.Workers); n > 1 {
		start = rand.IntN(n)
	}
	for i := range pool.Workers {
		w := pool.Workers[(start+i)%len(pool.Workers)]
		if w.State() != fleet.Ready || w == not || w.Spec.GRPC() {
			continue
		}
		a := r.asker(w)
		if int(a.path.Load()) == len(paths) || chat && a.noChats.Load() > now {
			continue
		}
		able = true
		if a.paused.Load() > now {
			continue
		}
		if seen++; seen > looked {
			break
		}
		// A question costs the server's front, not the engine: its own questions weigh
		// more than requests under way. Who is in bad health is asked when nobody else is
		// there.
		cost := a.under.Load()*4 + w.InFlight()
		if w.Vetoes()&(fleet.Unreachable|fleet.Wedged|fleet.BreakerOpen) != 0 {
			cost += 1 << 40
		}
		if best == nil || cost < least {
			best, of, least = w, a, cost
		}
	}
	switch {
	case best != nil:
		return best, of, nil
	case able || len(pool.Workers) == 0 || not != nil:
		return nil, nil, errUnanswered
	}
	for _, w := range pool.Workers {
		if w.State() != fleet.Ready {
			return nil, nil, errUnanswered
		}
	}
	return nil, nil, errUnsupported
}

// ask puts one question to a worker of pool, and to another one if that fails.
//
// Errors: errUnsupported, errUnanswered, errRefused; ctx's.
func (r *Resolver) ask(ctx context.Context, pool *fleet.Pool, chat bool, body []byte) ([]uint32, error) {
	var not *fleet.Worker
	var last error
	for range tries {
		w, a, err := r.pick(pool, chat, not)
		if err != nil {
			if last != nil {
				err = last
			}
			return nil, err
		}
		tokens, err := r.askOne(ctx, w, a, chat, body)
		if err == nil || errors.Is(err, errRefused) || ctx.Err() != nil {
			return tokens, err
		}
		not, last = w, err
	}
	return nil, last
}

// askOne puts a question to one worker.
func (r *Resolver) askOne(ctx context.Context, w *fleet.Worker, a *asker, chat bool, body []byte) ([]uint32, error) {
	a.under.Add(1)
	defer a.under.Add(-1)
	select {
	case a.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-a.slots }()
	for {
		at := a.path.Load()
		if int(at) == len(paths) {
			return nil, errUnsupported
		}
		began := fleet.Now()
		status, answer, err := r.o.Client.Post(ctx, w, paths[at], body, maxAnswer)
		r.n.calls.Add(1)
		r.n.sent.Add(uint64(len(body)))
		r.n.seconds.Add(uint64(fleet.Now() - began))
		if err == nil && (status == 404 && !modelUnknown(answer) || status == 405 || status == 501) {
			r.n.failed.Add(1)
			a.path.CompareAndSwap(at, at+1)
			continue
		}
		return r.judge(ctx, a, chat, status, answer, err)
	}
}

// modelUnknown reports whether a 404 is about the model, not the path.
func modelUnknown(answer []byte) bool {
	var s jsonscan.Scanner
	s.Reset(answer)
	found := false
	_ = s.Object([]jsonscan.Field{
		{Name: "error", Read: func(string) error { found = true; return s.Skip(8) }},
		{Name: "object", Read: func(string) error { found = true; return s.Skip(8) }},
	})
	return found
}

// judge makes of an answer what it says, and what it says of the worker.
func (r *Resolver) judge(ctx context.Context, a *asker, chat bool, status int, answer []byte, err error) ([]uint32, error) {
	switch {
	case err != nil && ctx.Err() != nil:
		// Too slow, or the resolver closes; the one is a fault.
		r.n.failed.Add(1)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			a.fault(0)
		}
		return nil, ctx.Err()
	case err != nil || status >= 500 || status == 429:
		r.n.failed.Add(1)
		a.fault(0)
		return nil, errUnanswered
	case status == 401 || status == 403:
		r.n.failed.Add(1)
		a.fault(deniedFor)
		return nil, errUnanswered
	case status != 200:
		r.n.failed.Add(1)
		if chat && !a.chats.Load() && a.refused.Add(1) >= chatlessIn {
			a.noChats.Store(fleet.Now() + int64(chatlessIs))
			a.refused.Store(0)
		}
		return nil, errRefused
	}
	tokens, err := readTokens(answer)
	if err != nil {
		r.n.failed.Add(1)
		a.fault(0)
		return nil, errUnanswered
	}
	a.faults.Store(0)
	if chat {
		a.chats.Store(true)
	}
	return tokens, nil
}

// fault pauses a worker for d; 0: longer with each fault in a row.
func (a *asker) fault(d time.Duration) {
	n := a.faults.Add(1)
	if d == 0 {
		d = min(firstPause<<min(n-1, 10), longest)
	}
	a.paused.Store(fleet.Now() + int64(d))
}

var errAnswer = errors.New("not an answer of /tokenize")

// readTokens reads an engine's answer: the tokens, as many as it says there are.
func readTokens(answer []byte) ([]uint32, error) {
	var s jsonscan.Scanner
	s.Reset(answer)
	var tokens []uint32
	count, counted := uint64(0), false
	err := s.Object([]jsonscan.Field{
		{Name: "tokens", Required: true, Read: func(name string) (err error) {
			tokens, err = s.AppendTokens(name, make([]uint32, 0, len(answer)/7+8))
			return err
		}},
		{Name: "count", Read: func(string) (err error) {
			count, counted, err = s.Integer(0, 1<<40)
			return err
		}},
	})
	if err != nil {
		return nil, err
	}
	if counted && count != uint64(len(tokens)) {
		return nil, errAnswer
	}
	return tokens, nil
}
