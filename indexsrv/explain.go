// SPDX-License-Identifier: Apache-2.0

// Before: HTTP, gRPC, a program that embeds the host. After: the index, along one
// chain, between two batches of each stream.

package indexsrv

import (
	"context"
	"errors"
	"slices"

	"github.com/valyala/fasthttp"

	"kindex/internal/jsonscan"
	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/shard"
)

// maxExplains bounds the explanations under way: each asks every stream of a model
// to stand still in turn.
const maxExplains = 4

// Cover is [shard.Cover] in the turn of h's shard.
func (w *Writer) Cover(h shard.Holder, ns kv.Namespace, chain []kv.ContentHash) (c *shard.Coverage, err error) {
	err = w.in(h, func(idx shard.Index) (err error) { c, err = shard.Cover(idx, h, ns, chain); return err })
	return c, err
}

// Explain says how each rank of q's model has the blocks of q, and why its match
// ends where it does; q.Limit is of ranks, those that hold most come first. A stream
// waits while it is looked at, and its shard for a part of that; lookups do not.
//
// Errors: those of [Host.Lookup]; ErrInvalid for a prompt of more than
// lookup.MaxExplainBlocks; ErrUnavailable where others have taken all places.
func (h *Host) Explain(ctx context.Context, q *lookup.Query) (*lookup.Explanation, error) {
	if err := lookup.OfContext(ctx); err != nil {
		return nil, err
	}
	if err := q.Check(); err != nil {
		return nil, err
	}
	name := makeModelName(q.Tenant, q.Model, q.Group)
	m := h.reg.find(name)
	if m == nil {
		return nil, lookup.NoModel(name.tenant, name.model, name.group)
	}
	blocks := len(q.Hashes)
	if len(q.Tokens) > 0 {
		blocks = len(q.Tokens) / m.blockSize
	}
	if blocks > lookup.MaxExplainBlocks {
		return nil, refuse(ErrInvalid, "token_ids: must be at most %d blocks to be explained, and are %d", lookup.MaxExplainBlocks, blocks)
	}
	chain, err := q.AppendHashes(nil, m.blockSize)
	if err != nil {
		return nil, err
	}
	select {
	case h.explains <- struct{}{}:
		defer func() { <-h.explains }()
	default:
		return nil, refuse(ErrUnavailable, "busy: %d explanations are under way, try again", maxExplains)
	}
	e := &lookup.Explanation{
		Model: name.model, Group: name.group, Tenant: name.tenant,
		BlockSize: m.blockSize, Blocks: len(chain), Tail: len(q.Tokens) % m.blockSize, Holders: []lookup.Explained{},
	}
	ns := m.key.Namespace(kv.ContentSeed(q.LoRA, q.Salt))
	ranks, more := h.explained(m, q, ns, chain)
	e.More = more
	for _, r := range ranks {
		if err := lookup.OfContext(ctx); err != nil {
			return nil, err
		}
		d, err := r.explain(h.idx, ns, chain, e.Tail)
		if errors.Is(err, shard.ErrUnknownHolder) {
			continue // unregistered meanwhile
		}
		if err != nil {
			return nil, err
		}
		e.Holders = append(e.Holders, d)
	}
	// As they are now, not as they were when they were chosen.
	slices.SortStableFunc(e.Holders, func(a, b lookup.Explained) int {
		m := lookup.Match{Device: a.Device, Host: a.Host, Any: a.Any}
		return m.Compare(&lookup.Match{Device: b.Device, Host: b.Host, Any: b.Any})
	})
	return e, nil
}

// explained returns the ranks that q asks about, in the order of registration, and
// how many of them its limit leaves out: those that hold least.
func (h *Host) explained(m *model, q *lookup.Query, ns kv.Namespace, chain []kv.ContentHash) (ranks []*rank, more int) {
	for _, w := range h.reg.workers(func(n modelName) bool { return n == m.name }) {
		if q.Only == nil || slices.Contains(q.Only, w.id.text) {
			ranks = append(ranks, *w.ranks.Load()...)
		}
	}
	limit := lookup.MaxExplainHolders
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	if len(ranks) <= limit {
		return ranks, 0
	}
	depths := map[shard.Holder]lookup.Match{}
	for _, x := range h.idx.Lookup(ns, chain, nil) {
		depths[shard.Holder(x.Holder)] = lookup.Match{Device: x.Device, Host: x.Host, Any: x.Any}
	}
	deepest := slices.Clone(ranks)
	slices.SortStableFunc(deepest, func(a, b *rank) int {
		x, y := depths[a.holder], depths[b.holder]
		return x.Compare(&y)
	})
	chosen := map[*rank]bool{}
	for _, r := range deepest[:limit] {
		chosen[r] = true
	}
	return slices.DeleteFunc(ranks, func(r *rank) bool { return !chosen[r] }), len(deepest) - limit
}

// explain says how r has the blocks of chain, tail tokens of which follow.
//
// Errors: shard.ErrUnknownHolder.
func (r *rank) explain(idx *Writer, ns kv.Namespace, chain []kv.ContentHash, tail int) (d lookup.Explained, err error) {
	var cover *shard.Coverage
	var st StreamStatus
	r.stream.between(func(now StreamStatus) {
		st = now
		if cover, err = idx.Cover(r.holder, ns, chain); err == nil {
			cover.FindWaiting()
		}
	})
	if err != nil {
		return d, err
	}
	id := r.worker.id
	d = lookup.Explained{
		Instance: lookup.ExplainedID{Text: id.text, Number: id.number}, Rank: r.number,
		Status: st.State.String(), LastError: st.LastError, Epoch: st.Epoch, Orphans: st.Orphans,
	}
	if st.HasSeq {
		d.LastSeq = &st.LastSeq
	}
	bits := make([]lookup.BlockBits, len(chain))
	for i, b := range cover.Blocks {
		bits[i] = lookup.BlockBits(b)
	}
	d.Fill(bits, tail, r.worker.model.blockSize, st.Dropped["block_size"])
	return d, nil
}

// serveExplain answers POST /explain: the fields of /query, or those of
// /query_by_hash.
func (h *Host) serveExplain(ctx *fasthttp.RequestCtx, q *queryScratch) {
	q.reset()
	byToken, byHash := false, false
	fields := append(q.commonFields(),
		jsonscan.Field{Name: "token_ids", Read: func(name string) error { byToken = true; return q.readTokens(name) }},
		jsonscan.Field{Name: "block_hashes", Read: func(name string) error { byHash = true; return q.readHashes(name) }})
	if err := q.scan.Object(fields); err != nil {
		refuseErr(ctx, err)
		return
	}
	if byToken == byHash {
		refuseErr(ctx, refuse(ErrInvalid, "token_ids: must be given, or block_hashes in its place"))
		return
	}
	ask := lookup.Query{
		Model: string(q.model), Group: string(q.group), Tenant: string(q.tenant), LoRA: string(q.lora), Salt: string(q.salt),
		Extra: q.extra.all(), Limit: q.maxResults,
	}
	if byToken {
		ask.Tokens = q.tokens
	} else {
		ask.Hashes = q.hashes
	}
	if q.filtered {
		ask.Only = []string{}
		for _, id := range q.instances {
			ask.Only = append(ask.Only, string(id))
		}
	}
	e, err := h.Explain(context.Background(), &ask) // bounded by the prompt's and the fleet's size
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	replyValue(ctx, fasthttp.StatusOK, e)
}
