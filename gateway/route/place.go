// SPDX-License-Identifier: Apache-2.0

// Before: the front, or the engines' own contract. After: package fleet, whose holder
// gives the lease; placement.go.

package route

import (
	"context"
	"errors"
	"strings"

	"github.com/zeebo/xxh3"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// Place names a holder for q and takes a lease on it. Another call for the same request
// is another try: what is known of its prompt is not asked again, and nobody of
// q.Exclude is named: where nobody else is ready that is an error, too.
//
// Errors: an *[openai.Error] for the client; ctx's where it ended.
func (r *Router) Place(ctx context.Context, q *Request) (*Placement, error) {
	q.tries++
	pool, err := r.pool(q)
	if err != nil {
		return nil, err
	}
	p := &Placement{router: r, request: q, Pool: pool, Try: q.tries}
	pol := r.o.Policy
	q.matches = q.matches[:0]
	if withPrompt(q.Call) {
		if err := r.match(ctx, pool, q); err != nil {
			return nil, err
		}
	} else {
		pol = r.o.Plain
	}
	if err := r.settle(ctx, pol, pool, q, p); err != nil {
		r.stats.refused.Add(1)
		return nil, err
	}
	r.stats.placed(p.Decision.Branch)
	return p, nil
}

// rounds bounds how often a request is decided anew because another one came first.
const rounds = 8

// settle decides until the decision stands: nobody with the same prefix came first, and
// the holder takes it.
func (r *Router) settle(ctx context.Context, pol policy.Policy, pool *fleet.Pool, q *Request, p *Placement) error {
	for round := 1; ; round++ {
		if err := r.decide(pol, pool, q, p); err != nil {
			return err
		}
		r.exact(ctx, q, p)
		if !r.claim(q, p, round == rounds) {
			q.matches = q.matches[:0]
			r.named(pool, q)
			continue
		}
		if p.take(q) {
			return nil
		}
		// It began to drain as it was named; the pool may still have it.
		p.withdraw()
		r.stats.drained.Add(1)
		if round >= rounds {
			return refusal("its workers drain")
		}
		q.Exclude = append(q.Exclude, p.Holder.Worker)
	}
}

// claim says in the overlay what p's holder is about to have.
func (r *Router) claim(q *Request, p *Placement, anyhow bool) bool {
	p.expect(q)
	if r.o.Overlay == nil || len(q.hashes) == 0 {
		return true
	}
	var ok bool
	p.predicted, ok = r.o.Overlay.Claim(&q.view, q.matches, p.Holder, q.question.Now, anyhow)
	return ok
}

// pool returns who serves q's model.
func (r *Router) pool(q *Request) (*fleet.Pool, error) {
	model := q.Call.Model
	if model == "" {
		model = r.soleModel()
	}
	pool := r.o.Fleet.Pool(model)
	switch {
	case pool != nil && len(pool.Holders) > 0:
		return pool, nil
	case model == "":
		r.stats.unknownModel.Add(1)
		return nil, &openai.Error{
			Status: 400, Type: openai.InvalidRequest, Code: "missing_required_parameter", Param: "model",
			Message: "model: must be given where several models are served",
		}
	}
	r.stats.unknownModel.Add(1)
	if o, ok := r.o.Fleet.(*Only); ok && o.Whole(model) != nil {
		return nil, &openai.Error{
			Status: 404, Type: openai.InvalidRequest, Code: "model_not_found", Param: "model",
			Message: "The model `" + model + "` is served, but no worker of it is spoken to by what this request came by.",
		}
	}
	return nil, &openai.Error{
		Status: 404, Type: openai.InvalidRequest, Code: "model_not_found", Param: "model",
		Message: "The model `" + strings.ToValidUTF8(model[:min(len(model), 256)], "\uFFFD") + "` does not exist.",
	}
}

// soleModel returns the one model that is served, adapters aside; "": there are several,
// or none. SGLang's own routes name no model, and a tokenizer's need not.
func (r *Router) soleModel() (model string) {
	for _, p := range r.o.Fleet.Models() {
		if p.Base != "" || p.Model == model {
			continue
		}
		if model != "" {
			return ""
		}
		model = p.Model
	}
	return model
}

// withPrompt reports whether a call is one that an engine prefills.
func withPrompt(c *openai.Call) bool {
	switch c.Kind {
	case openai.Chat, openai.Completion, openai.Embedding, openai.Generate:
		return true
	case openai.Tokenize, openai.Detokenize:
	}
	return false
}

// decide asks the policy.
func (r *Router) decide(pol policy.Policy, pool *fleet.Pool, q *Request, p *Placement) error {
	u := &q.question
	*u = policy.Question{
		Pool: pool, Prompt: int64(len(q.Prompt.Tokens)), BlockSize: q.blockSize, Blocks: len(q.hashes),
		Matches: q.matches, More: q.more, Key: q.key(), Worker: q.TargetWorker, Rank: q.rank(), Exclude: q.Exclude, Now: fleet.Now(),
	}
	if q.Explain {
		p.Decision.Record = new(policy.Record)
	}
	q.Marks.Decide = u.Now
	err := pol.Decide(u, &p.Decision)
	q.Marks.Decided = fleet.Now()
	switch {
	case err == nil && !p.Decision.Tried:
		p.Holder = p.Decision.Holder
		return nil
	case err == nil:
		return refusal("no other worker of the model is ready")
	}
	if errors.Is(err, policy.ErrPinned) || errors.Is(err, policy.ErrRank) {
		return &openai.Error{Status: 400, Type: openai.InvalidRequest, Code: "worker_not_found", Message: err.Error()}
	}
	return refusal(err.Error())
}

// refusal is the answer to a request that nobody can take now.
func refusal(why string) *openai.Error {
	return &openai.Error{Status: 503, Type: openai.ServerError, Code: "no_available_workers", Message: why}
}

// rank returns the rank that the caller wants; -1: any.
func (q *Request) rank() int {
	if q.Rank >= 0 {
		return q.Rank
	}
	return q.Call.Rank
}

// headBytes is how much of a text says where it belongs, for a policy that goes by a
// key and has no other.
const headBytes = 1024

// key returns what consistent hashing goes by: the caller's key, else the user, else
// the prompt's head.
func (q *Request) key() uint64 {
	switch c := q.Call; {
	case q.RoutingKey != "":
		return xxh3.HashString(q.RoutingKey)
	case c.User != "":
		return xxh3.HashString(c.User)
	case len(q.hashes) > 0:
		return uint64(q.hashes[0])
	case len(c.Tokens) > 0:
		key := uint64(0)
		for _, t := range c.Tokens[:min(len(c.Tokens), headBytes/4)] {
			key = (key ^ uint64(t)) * 0x9E37_79B9_7F4A_7C15
		}
		return key
	case len(c.Text) > 0:
		return xxh3.Hash(c.Text[:min(len(c.Text), headBytes)])
	default:
		return xxh3.Hash(c.Messages[:min(len(c.Messages), headBytes)])
	}
}

// resolve finds the prompt's tokens, once for all tries.
func (r *Router) resolve(ctx context.Context, pool *fleet.Pool, q *Request) {
	if q.resolved || r.o.Prompts == nil {
		return
	}
	q.resolved = true
	q.Marks.Resolve = fleet.Now()
	r.o.Prompts.Resolve(ctx, pool, q.Call, &q.Prompt)
	q.Marks.Resolved = fleet.Now()
}

// match finds who holds the prompt's head, into q.matches.
func (r *Router) match(ctx context.Context, pool *fleet.Pool, q *Request) error {
	if !r.o.Policy.NeedsMatches() {
		return nil
	}
	r.resolve(ctx, pool, q)
	if err := ctx.Err(); err != nil {
		return err // nobody waits for the answer any more
	}
	if r.o.Index == nil || len(q.Prompt.Tokens) == 0 {
		r.stats.blind.Add(1)
		return nil
	}
	r.lookup(ctx, pool, q)
	if err := ctx.Err(); err != nil {
		return err
	}
	known, unknown := r.named(pool, q)
	if q.more && known < deepest/2 { // the deepest are others'
		q.whole, q.matches = true, q.matches[:0]
		r.lookup(ctx, pool, q)
		known, unknown = r.named(pool, q)
	}
	r.seen(known, unknown)
	return nil
}

// Of pools with more holders than wide the index is asked for the deepest alone: behind
// one system prompt all have something of every prompt, and to name them all would take
// longer than to decide.
const (
	wide    = 64
	deepest = 32
)

// exact finds out what p's holder has of the prompt where the index was not asked.
func (r *Router) exact(ctx context.Context, q *Request, p *Placement) {
	if !p.Decision.Guess {
		return
	}
	p.Decision.Guess, p.Decision.Cached = false, 0
	one := q.query
	one.Limit, one.Only = 0, []string{p.Holder.Worker.Spec.Instance}
	if err := r.o.Index.Lookup(ctx, &one, &q.alone); err != nil {
		return
	}
	for i := range q.alone.Matches {
		m := &q.alone.Matches[i]
		if m.Rank != p.Holder.Rank {
			continue
		}
		p.Decision.Cached = int64(min(m.Any, overlay.Usable(int64(len(q.Prompt.Tokens)), q.blockSize))) * int64(q.blockSize)
		q.matches = append(q.matches, policy.Match{Holder: p.Holder, Blocks: m.Any, Device: m.Device, Degraded: m.Degraded})
	}
}

// lookup asks the index who holds the prompt's head, into q.answer.
func (r *Router) lookup(ctx context.Context, pool *fleet.Pool, q *Request) {
	u := &q.query
	*u = lookup.Query{Model: pool.Weights(), Group: r.o.Group, Tenant: r.o.Tenant, LoRA: q.Prompt.LoRA, Salt: q.Prompt.Salt}
	if q.blockSize == 0 {
		q.blockSize = pool.BlockSize
	}
	if len(pool.Holders) > wide && !q.whole {
		u.Limit = deepest
	}
	if q.hash() {
		u.Hashes = q.hashes // the extra keys are in them
	} else {
		u.Tokens, u.Extra = q.Prompt.Tokens, q.Prompt.Extra
	}
	r.stats.lookups.Add(1)
	q.Marks.Lookup = fleet.Now()
	err := r.o.Index.Lookup(ctx, u, &q.answer)
	if n := q.answer.BlockSize; err == nil && n > 0 && n != q.blockSize {
		// The index counts in other blocks than the hashes were made of.
		q.blockSize, q.hashes = n, q.hashes[:0]
		if q.hash() && len(u.Hashes) > 0 {
			r.stats.otherBlocks.Add(1)
			u.Hashes = q.hashes
			err = r.o.Index.Lookup(ctx, u, &q.answer)
		}
	}
	q.Marks.LookedUp = fleet.Now()
	if err != nil {
		r.stats.lookupsFailed.Add(1)
		q.answer.Reset()
	}
	q.more = u.Limit > 0 && len(q.answer.Matches) >= u.Limit
	// One router asks for one group and tenant: they need not be in it.
	q.view.Open(xxh3.HashString(pool.Weights())+kv.ContentSeed(q.Prompt.LoRA, q.Prompt.Salt), q.hashes)
}

// hash makes the hashes of the prompt's whole blocks, where the size of a block is
// known, and reports whether they are there.
func (q *Request) hash() bool {
	if len(q.hashes) > 0 {
		return true
	}
	if q.blockSize <= 0 {
		return false
	}
	u := lookup.Query{LoRA: q.Prompt.LoRA, Salt: q.Prompt.Salt, Tokens: q.Prompt.Tokens, Extra: q.Prompt.Extra}
	hashes, err := u.AppendHashes(q.hashes[:0], q.blockSize)
	if err != nil { // extra keys that fit no block: the index refuses them
		return false
	}
	q.hashes = hashes
	return len(hashes) > 0
}
