// SPDX-License-Identifier: Apache-2.0

// Before: the front, which has read a request. After: place.go.

package route

import (
	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
	"kindex/gateway/prompt"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// A Request is one request on its way to a worker, over all its tries. It has the
// memory that placing needs and keeps it over [Request.Reset]: whoever serves many
// should keep a few.
//
// Concurrency: one goroutine, and no call on a placement of it may be under way when it
// is reset.
type Request struct {
	Call *openai.Call
	ID   string // as the client knows it

	RoutingKey   string // X-Kindex-Routing-Key
	TargetWorker string // X-Kindex-Target-Worker: an id or a URL
	Rank         int    // X-data-parallel-rank; -1: free
	Explain      bool   // fill in Placement.Decision.Record

	// Exclude are the workers that were tried: it grows with each try.
	Exclude []*fleet.Worker

	// Prompt is what came of the call's tokens at the first try.
	Prompt   Prompt
	resolved bool

	Marks Marks // of the newest try

	hashes    []kv.ContentHash // of the prompt's whole blocks; empty: not made
	blockSize int              // of hashes
	view      overlay.View
	query     lookup.Query
	answer    lookup.Answer
	whole     bool          // all are asked for, not the deepest alone
	more      bool          // than are in answer have something
	alone     lookup.Answer // of one holder: see exact
	matches   []policy.Match
	question  policy.Question
	tries     int
}

// NewRequest returns an empty request.
func NewRequest() *Request {
	r := &Request{}
	r.Reset()
	return r
}

// Reset empties q for another request.
func (q *Request) Reset() {
	clear(q.Exclude)
	clear(q.matches)
	*q = Request{
		Rank: -1, Exclude: q.Exclude[:0], Prompt: Prompt{Tokens: q.Prompt.Tokens[:0]},
		hashes: q.hashes[:0], view: q.view, answer: q.answer, matches: q.matches[:0],
	}
	q.answer.Reset()
}

// Failed notes that w was tried for q and is not to be asked again.
func (q *Request) Failed(w *fleet.Worker) { q.Exclude = append(q.Exclude, w) }

// Prompt is what is known of a call's tokens.
type Prompt = prompt.Prompt
