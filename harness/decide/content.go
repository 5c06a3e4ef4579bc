// SPDX-License-Identifier: Apache-2.0

// Before: a trace. After: feed.go, which announces the content, and arms.go, which asks.

package decide

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"kindex/harness/corpus"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

const (
	modelName = "m"

	// blockTokens stand for a block of the trace, which has more: depths are counted in
	// blocks, and a lookup sees only their hashes.
	blockTokens = 16
)

// world is what all workers hold, and what is asked.
type world struct {
	corpus    *corpus.Corpus
	hashes    []kv.ContentHash // by content
	held      []bits           // by worker, of nodes: with all that is above them
	blocks    int              // held in all
	questions []question
}

// question is a prompt and who has how much of it.
type question struct {
	query  lookup.Query
	prompt int64          // tokens
	depths map[string]int // by instance
	last   []lookup.Match // as answered
}

// bits are a set of nodes.
type bits []uint64

func (b bits) is(x uint32) bool { return b[x/64]>>(x%64)&1 != 0 }

func (b bits) set(x uint32, on bool) {
	if on {
		b[x/64] |= 1 << (x % 64)
	} else {
		b[x/64] &^= 1 << (x % 64)
	}
}

// newWorld replays the trace.
func newWorld(ctx context.Context, o *Options, p *trial.Progress) (*world, error) {
	rows, _, err := corpus.BuiltInTrace()
	if err != nil {
		return nil, err
	}
	rows = rows[:min(o.Rows, len(rows))]
	c, err := corpus.Simulate(ctx, rows, o.params(), func(done, of int) { p.Sayf("simulating: %d of %d workers", done, of) })
	if err != nil {
		return nil, err
	}
	w := &world{corpus: c}
	top := uint32(0)
	for _, x := range c.Contents {
		top = max(top, x)
	}
	w.hashes = make([]kv.ContentHash, top+1)
	for i := range w.hashes {
		b := kv.Blocks{Tokens: tokensOf(uint32(i), nil), BlockSize: blockTokens}
		w.hashes[i] = b.AppendHashes(nil, kv.HashSeed)[0]
	}
	w.replay(o.Workers)
	if w.ask(o); len(w.questions) == 0 {
		return nil, fmt.Errorf("%d rows of the trace have no prompt of a block", o.Rows)
	}
	return w, nil
}

// tokensOf appends the tokens that stand for a content: no two have the same.
func tokensOf(content uint32, dst []uint32) []uint32 {
	for i := range uint32(blockTokens) {
		dst = append(dst, (content>>(i%4*8)&0xff)<<4|i)
	}
	return dst
}

// replay leaves in held what each worker has at the end, less what lies behind a hole.
func (w *world) replay(workers int) {
	c := w.corpus
	w.held = make([]bits, workers)
	for i := range w.held {
		w.held[i] = make(bits, len(c.Parents)/64+1)
	}
	var path []uint32
	for i := range c.Ops {
		op := &c.Ops[i]
		has := w.held[op.Worker]
		switch op.Kind {
		case corpus.Store:
			path, _ = c.Path(op.At, op.N, path)
			for _, x := range path {
				has.set(x, true)
			}
		case corpus.Remove:
			for _, x := range c.Gone(op) {
				has.set(x, false)
			}
		case corpus.Clear:
			clear(has)
		case corpus.Lookup:
		}
	}
	for _, has := range w.held {
		for x, p := range c.Parents { // a parent's number is less than its child's
			n := uint32(x)
			if !has.is(n) {
				continue
			}
			if p == corpus.NoNode || has.is(p) {
				w.blocks++
			} else {
				has.set(n, false)
			}
		}
	}
}

// ask takes the last prompts of the trace.
func (w *world) ask(o *Options) {
	c := w.corpus
	var path []uint32
	for i := len(c.Ops) - 1; i >= 0 && len(w.questions) < o.Questions; i-- {
		op := &c.Ops[i]
		if op.Kind != corpus.Lookup || op.N == 0 {
			continue
		}
		path, _ = c.Path(op.At, op.N, path)
		q := question{
			query:  lookup.Query{Model: modelName, Hashes: make([]kv.ContentHash, len(path)), Limit: o.Limit},
			prompt: int64(len(path))*blockTokens + 5, depths: map[string]int{},
		}
		for k, x := range path {
			q.query.Hashes[k] = w.hashes[c.Contents[x]]
		}
		for worker, has := range w.held {
			if n := slices.IndexFunc(path, func(x uint32) bool { return !has.is(x) }); n != 0 {
				if n < 0 {
					n = len(path)
				}
				q.depths[strconv.Itoa(worker+1)] = n
			}
		}
		w.questions = append(w.questions, q)
	}
}

// right reports whether a says what is held.
func (q *question) right(a *lookup.Answer) bool {
	want := len(q.depths)
	if q.query.Limit > 0 {
		want = min(want, q.query.Limit)
	}
	if len(a.Matches) != want {
		return false
	}
	for i := range a.Matches {
		if m := &a.Matches[i]; q.depths[m.Instance] != int(m.Device) {
			return false
		}
	}
	return true
}
