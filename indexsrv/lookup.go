// SPDX-License-Identifier: Apache-2.0

// Before: whoever asks in process: a program that embeds the host, the servers of
// shared memory and gRPC. After: the index's lookup.

package indexsrv

import (
	"cmp"
	"context"
	"slices"

	"kindex/internal/lookup"
)

// Lookup implements [lookup.Index]. It takes no lock, and allocates nothing once a
// has room.
//
// Errors: ErrNotFound for a model without workers; ErrInvalid; the context's end.
func (h *Host) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	a.Reset()
	if err := lookup.OfContext(ctx); err != nil {
		return err
	}
	if err := q.Check(); err != nil {
		return err
	}
	sc, ok := h.scratch.Get().(*queryScratch)
	if !ok {
		panic("BUG: indexsrv: the pool holds something else than scratch")
	}
	tokens, hashes := sc.tokens, sc.hashes
	byHash := sc.load(q)
	sc.maxHits = q.Limit
	blockSize, err := h.find(sc, byHash)
	if err == nil {
		a.BlockSize = blockSize
		a.Matches = sc.appendMatches(a.Matches)
	}
	// The pool keeps nothing of the caller's.
	sc.tokens, sc.extra.given = tokens[:0], nil
	if byHash && len(q.Extra) == 0 {
		sc.hashes = hashes[:0]
	}
	h.putScratch(sc)
	return err
}

// load makes the scratch's query q's, and reports whether that is of hashes. The
// scratch points to q's tokens and, where they need no change, to its hashes.
func (q *queryScratch) load(from *lookup.Query) (byHash bool) {
	q.body = q.body[:0]
	q.reset()
	q.text = q.text[:0]
	q.model, q.group, q.tenant = q.copied(from.Model), q.copied(from.Group), q.copied(from.Tenant)
	q.lora, q.salt = q.copied(from.LoRA), q.copied(from.Salt)
	q.filtered = from.Only != nil
	for _, id := range from.Only {
		q.instances = append(q.instances, q.copied(id))
	}
	q.maxResults = from.Limit
	q.extra.given = from.Extra
	if len(from.Tokens) > 0 {
		q.tokens = from.Tokens
		return false
	}
	if len(from.Extra) == 0 {
		q.hashes = from.Hashes
	} else {
		q.hashes = append(q.hashes, from.Hashes...)
	}
	return true
}

// copied returns s in the scratch's memory: what was returned before stays where it
// is when that grows.
func (q *queryScratch) copied(s string) []byte {
	at := len(q.text)
	q.text = append(q.text, s...)
	return q.text[at:]
}

// appendMatches appends q's hits, the deepest first.
func (q *queryScratch) appendMatches(dst []lookup.Match) []lookup.Match {
	q.order()
	n := len(q.hits)
	if q.maxResults > 0 {
		n = min(n, q.maxResults)
	}
	for _, t := range q.hits[:n] {
		dst = append(dst, lookup.Match{
			Instance: t.worker.id.text, Number: t.worker.id.number, Rank: t.number,
			Device: t.device, Host: t.host, Any: t.any, Degraded: !t.worker.exact(),
		})
	}
	return dst
}

// order sorts q's hits, the deepest first. Most of many hold but the beginning that all
// prompts have, in the order of their registration already: only the others are sorted.
func (q *queryScratch) order() {
	if len(q.hits) < fewHits {
		slices.SortFunc(q.hits, compareHits)
		return
	}
	least := &q.hits[0]
	for i := range q.hits {
		if t := &q.hits[i]; compareDepths(t, least) > 0 {
			least = t
		}
	}
	flat := *least
	q.deep = q.deep[:0]
	at, sorted := len(q.hits), true
	for _, t := range slices.Backward(q.hits) {
		if compareDepths(&t, &flat) != 0 {
			q.deep = append(q.deep, t)
			continue
		}
		if at < len(q.hits) && sorted {
			sorted = compareHits(t, q.hits[at]) < 0
		}
		at--
		q.hits[at] = t
	}
	if !sorted {
		slices.SortFunc(q.hits[at:], compareHits)
	}
	slices.SortFunc(q.deep, compareHits)
	copy(q.hits, q.deep)
}

// fewHits are sorted as they are.
const fewHits = 16

// compareDepths is [compareHits] without who it is.
func compareDepths(a, b *hit) int {
	switch {
	case a.any != b.any:
		return cmp.Compare(b.any, a.any)
	case a.host != b.host:
		return cmp.Compare(b.host, a.host)
	}
	return cmp.Compare(b.device, a.device)
}

// compareHits orders as answers are ordered: see [lookup.Match.Compare]. It is
// written out: most hits are told apart by their first word.
func compareHits(a, b hit) int {
	switch {
	case a.any != b.any:
		return cmp.Compare(b.any, a.any)
	case a.host != b.host:
		return cmp.Compare(b.host, a.host)
	case a.device != b.device:
		return cmp.Compare(b.device, a.device)
	case a.worker.order != b.worker.order:
		return cmp.Compare(a.worker.order, b.worker.order)
	}
	return cmp.Compare(a.number, b.number)
}
