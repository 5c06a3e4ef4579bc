// SPDX-License-Identifier: Apache-2.0

// Before: the HTTP handler, or a program that embeds the host. After: the
// index's lookup; the registry says whom its holders stand for.

package indexsrv

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"kindex/internal/jsonscan"
	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/shard"
)

// queryScratch is what one query needs besides its request. Queries take one
// from a pool, so that a query of any length allocates nothing.
type queryScratch struct {
	body []byte // the request's
	out  []byte // the answer's
	scan jsonscan.Scanner

	stripe             int              // of the histograms
	fields, hashFields []jsonscan.Field // of /query and of /query_by_hash

	// The query.
	model, group, tenant []byte
	lora, salt           []byte
	text                 []byte // what the names above lie in, where they came as strings
	tokens               []uint32
	hashes               []kv.ContentHash
	extra                extraKeys
	instances            [][]byte // sorted; only these, where filtered
	filtered             bool
	names                []uint32 // hashes of instances, where these are few
	maxResults           int      // 0: all
	maxHits              int      // the deepest so many ranks are enough; 0: all

	// The answer.
	matches []kv.Match
	hits    []hit
	deep    []hit    // see order
	top     []placed // see cutEqual
	rows    []row
}

// hit is one rank's part of an answer, in blocks.
type hit struct {
	*rank
	device, host, any uint32
}

// row is one instance's part of an answer: its hits and their greatest depths,
// in blocks.
type row struct {
	*worker
	hits              []hit
	device, host, any uint32
}

// maxKeptBytes is how much of a large request's memory the pool keeps; what is
// larger goes with its request.
const maxKeptBytes = 1 << 20

func newQueryScratch(stripe int) *queryScratch {
	q := &queryScratch{stripe: stripe}
	q.fields = append(q.commonFields(), jsonscan.Field{Name: "token_ids", Required: true, Read: q.readTokens})
	q.hashFields = append(q.commonFields(), jsonscan.Field{Name: "block_hashes", Required: true, Read: q.readHashes})
	return q
}

func (h *Host) putScratch(q *queryScratch) {
	if cap(q.body)+cap(q.text)+4*cap(q.tokens)+8*cap(q.hashes)+cap(q.out)+16*cap(q.matches)+32*cap(q.hits)+32*cap(q.deep)+24*cap(q.top) > maxKeptBytes {
		return
	}
	clear(q.hits) // hold no unregistered rank
	clear(q.deep)
	clear(q.rows)
	h.scratch.Put(q)
}

// reset empties the query, not the body.
func (q *queryScratch) reset() {
	q.scan.Reset(q.body)
	q.model, q.group, q.tenant, q.lora, q.salt = nil, nil, nil, nil, nil
	q.tokens, q.hashes = q.tokens[:0], q.hashes[:0]
	q.extra.reset()
	q.instances, q.filtered, q.maxResults = q.instances[:0], false, 0
	q.maxHits = 0
	q.matches, q.hits, q.rows = q.matches[:0], q.hits[:0], q.rows[:0]
}

// ask answers q, whose chain is tokens, or hashes where byHash is set, into
// q.rows: deepest first where they are limited, else in order of registration.
func (h *Host) ask(q *queryScratch, byHash bool) (blockSize int, err error) {
	blockSize, err = h.find(q, byHash)
	if err == nil {
		q.byInstance()
	}
	return blockSize, err
}

// find answers q into q.hits, in no order.
func (h *Host) find(q *queryScratch, byHash bool) (blockSize int, err error) {
	group, tenant := q.group, q.tenant
	if len(group) == 0 {
		group = defaultGroupBytes
	}
	if len(tenant) == 0 {
		tenant = defaultGroupBytes
	}
	// Written out so that the key costs no allocation.
	m := (*h.reg.models.Load())[modelName{tenant: string(tenant), model: string(q.model), group: string(group)}]
	if m == nil {
		return 0, lookup.NoModel(string(tenant), string(q.model), string(group))
	}
	if q.filtered {
		slices.SortFunc(q.instances, bytes.Compare)
	}
	seed := kv.ContentSeed(string(q.lora), string(q.salt))
	switch extra := q.extra.all(); {
	case !byHash:
		q.hashes, err = lookup.AppendHashes(q.hashes, seed, m.blockSize, q.tokens, nil, extra)
	case len(extra) > 0:
		q.hashes, err = lookup.AppendHashes(q.hashes[:0], seed, m.blockSize, nil, q.hashes, extra)
	}
	if err != nil || len(q.hashes) == 0 {
		return m.blockSize, err
	}
	start := time.Now()
	q.matches = h.idx.Lookup(m.key.Namespace(seed), q.hashes, q.matches)
	h.met.lookup.observe(q.stripe, time.Since(start))
	if q.maxHits > 0 && !q.filtered {
		h.cut(q, q.maxHits)
	}
	h.collect(q)
	if h.traffic.due(q.stripe) {
		h.traffic.note(m, seed, q.hashes, q.hits, true)
	}
	return m.blockSize, nil
}

var defaultGroupBytes = []byte(defaultGroup)

// fewNames: instances that are asked about are looked for by their hashes up to so many.
const fewNames = 8

// collect turns matches into hits.
func (h *Host) collect(q *queryScratch) {
	if q.filtered && len(q.instances) <= fewNames {
		h.pick(q)
	}
	for _, m := range q.matches {
		// A holder without a rank was unregistered while the index was asked.
		if r := h.reg.holders.get(shard.Holder(m.Holder)); r != nil && q.wants(r.worker) {
			q.hits = append(q.hits, hit{r, m.Device, m.Host, m.Any})
		}
	}
}

// pick leaves in q.matches those of the few instances that are asked about, and perhaps
// some more. Most holders of a popular prompt are others, and it touches no rank of them.
func (h *Host) pick(q *queryScratch) {
	q.names = q.names[:0]
	for _, id := range q.instances {
		q.names = append(q.names, uint32(xxh3.Hash(id)))
	}
	names := h.reg.holders.reader()
	kept := q.matches[:0]
	for i := range q.matches {
		if slices.Contains(q.names, names.name(shard.Holder(q.matches[i].Holder))) {
			kept = append(kept, q.matches[i])
		}
	}
	q.matches = kept
}

// byInstance turns hits into rows.
func (q *queryScratch) byInstance() {
	slices.SortFunc(q.hits, func(a, b hit) int {
		if c := cmp.Compare(a.worker.order, b.worker.order); c != 0 {
			return c
		}
		return cmp.Compare(a.number, b.number)
	})
	for i, t := range q.hits {
		if i == 0 || q.hits[i-1].worker != t.worker {
			q.rows = append(q.rows, row{worker: t.worker, hits: q.hits[i:i]})
		}
		r := &q.rows[len(q.rows)-1]
		r.hits = r.hits[:len(r.hits)+1]
		r.device, r.host, r.any = max(r.device, t.device), max(r.host, t.host), max(r.any, t.any)
	}
	if q.maxResults == 0 || len(q.rows) <= q.maxResults {
		return
	}
	slices.SortFunc(q.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.any, a.any), cmp.Compare(b.host, a.host), cmp.Compare(b.device, a.device),
			cmp.Compare(a.order, b.order))
	})
	q.rows = q.rows[:q.maxResults]
}

// wants reports whether w is among the instances asked about.
func (q *queryScratch) wants(w *worker) bool {
	if !q.filtered {
		return true
	}
	_, ok := slices.BinarySearchFunc(q.instances, w.id.text, compareBytesString)
	return ok
}

func compareBytesString(b []byte, s string) int {
	n := min(len(b), len(s))
	for i := range n {
		if c := cmp.Compare(b[i], s[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(b), len(s))
}
