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

// Reset empties r for another request.
func (r *Request) Reset() {
	clear(r.Exclude)
	clear(r.matches)
	*r = Request{
		Rank: -1, Exclude: r.Exclude[:0], Prompt: Prompt{Tokens: r.Prompt.Tokens[:0]},
		hashes: r.hashes[:0], view: r.view, answer: r.answer, matches: r.matches[:0],
	}
	r.answer.Reset()
}

// Failed notes that w was tried for r and is not to be asked again.
func (r *Request) Failed(w *fleet.Worker) { r.Exclude = append(r.Exclude, w) }

// Prompt is what is known of a call's tokens.
type Prompt = prompt.Prompt
