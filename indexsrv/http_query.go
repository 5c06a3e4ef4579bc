// SPDX-License-Identifier: Apache-2.0

// Before: a request's body. After: Host.ask; then back, as JSON.

package indexsrv

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"kindex/internal/jsonscan"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

func (h *Host) serveQuery(ctx *fasthttp.RequestCtx, q *queryScratch) {
	h.answer(ctx, q, q.fields, false)
}

func (h *Host) serveQueryByHash(ctx *fasthttp.RequestCtx, q *queryScratch) {
	h.answer(ctx, q, q.hashFields, true)
}

func (h *Host) answer(ctx *fasthttp.RequestCtx, q *queryScratch, fields []jsonscan.Field, byHash bool) {
	q.reset()
	if err := q.scan.Object(fields); err != nil {
		refuseErr(ctx, err)
		return
	}
	blockSize, err := h.ask(q, byHash)
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	q.out = appendAnswer(q.out[:0], q.rows, uint64(blockSize))
	replyJSON(ctx, fasthttp.StatusOK, q.out)
}

// appendAnswer appends the reply of /query: scores for device copies, by
// instance and rank; instances with cumulative tiers. All numbers are tokens.
func appendAnswer(b []byte, rows []row, blockSize uint64) []byte {
	tokens := func(name string, blocks uint32) {
		b = append(b, name...)
		b = strconv.AppendUint(b, uint64(blocks)*blockSize, 10)
	}
	b = append(b, `{"scores":{`...)
	first := true
	for i := range rows {
		r := &rows[i]
		if r.device == 0 {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, r.key...)
		b = append(b, ':')
		b = appendByRank(b, r.hits, blockSize, false)
	}
	b = append(b, `},"frequencies":[],"instances":{`...)
	for i := range rows {
		r := &rows[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, r.key...)
		tokens(`:{"longest_matched":`, r.any)
		tokens(`,"gpu":`, r.device)
		tokens(`,"cpu":`, r.host)
		tokens(`,"disk":`, r.any)
		b = append(b, `,"dp":`...)
		b = appendByRank(b, r.hits, blockSize, true)
		if !r.exact() {
			b = append(b, `,"degraded":true`...)
		}
		b = append(b, '}')
	}
	return append(b, "}}"...)
}

// appendByRank appends {"0":64}: device tokens by rank. A rank that holds copies
// in slower tiers only is left out, or has 0 where all ranks are wanted, as the
// field's indexer writes its dp.
func appendByRank(b []byte, hits []hit, blockSize uint64, all bool) []byte {
	b = append(b, '{')
	empty := true
	for i := range hits {
		d := hits[i].device
		if d == 0 && !all {
			continue
		}
		if !empty {
			b = append(b, ',')
		}
		empty = false
		b = append(b, hits[i].key...)
		b = append(b, ':')
		b = strconv.AppendUint(b, uint64(d)*blockSize, 10)
	}
	return append(b, '}')
}

// commonFields are those of both query routes.
func (q *queryScratch) commonFields() []jsonscan.Field {
	text := func(name string, required bool, p *[]byte) jsonscan.Field {
		return jsonscan.Field{Name: name, Required: required, Read: func(name string) (err error) {
			if *p, err = q.scan.TextField(name); err == nil && required && len(*p) == 0 {
				err = refuse(ErrInvalid, "%s: must not be empty", name)
			}
			return err
		}}
	}
	return []jsonscan.Field{
		text("model_name", true, &q.model),
		text("routing_group", false, &q.group),
		text("tenant_id", false, &q.tenant),
		text("lora_name", false, &q.lora),
		text("cache_salt", false, &q.salt),
		{Name: "extra_keys", Read: q.readExtra},
		{Name: "instances", Read: q.readInstances},
		{Name: "max_results", Read: func(name string) error {
			n, err := q.scan.IntField(name, 1, lookup.MaxResults)
			q.maxResults = int(n)
			return err
		}},
	}
}

func (q *queryScratch) readTokens(name string) (err error) {
	q.tokens, err = q.scan.AppendTokens(name, q.tokens)
	return err
}

func (q *queryScratch) readHashes(name string) (err error) {
	q.hashes, err = jsonscan.AppendHashes(&q.scan, name, q.hashes)
	return err
}

func (q *queryScratch) readInstances(name string) error {
	if err := q.scan.Array(name, "instance ids"); err != nil {
		return err
	}
	q.filtered = true
	for first := true; ; first = false {
		done, err := q.scan.Next(first, ']')
		if done || err != nil {
			return err
		}
		id, _, err := q.scan.IDField(name)
		if err != nil {
			return err
		}
		if len(q.instances) == lookup.MaxInstances {
			return refuse(ErrInvalid, "%s: must have at most %d ids", name, lookup.MaxInstances)
		}
		q.instances = append(q.instances, id)
	}
}

// extraKeys are the extra keys of a query, one entry per block, in the canonical
// encoding that events' keys have (kv.AppendExtraKey).
type extraKeys struct {
	buf     []byte
	ends    []int // entry i is buf up to ends[i]
	entries [][]byte
	given   [][]byte // the entries, in place of buf, where a caller in process gave them
}

func (e *extraKeys) reset() {
	e.buf, e.ends, e.entries, e.given = e.buf[:0], e.ends[:0], e.entries[:0], nil
}

// all returns the entries.
func (e *extraKeys) all() [][]byte {
	if e.given != nil {
		return e.given
	}
	e.entries = e.entries[:0]
	start := 0
	for _, end := range e.ends {
		e.entries = append(e.entries, e.buf[start:end])
		start = end
	}
	return e.entries
}

const extraForm = "must be null or an array of strings and [identifier, offset] pairs"

// readExtra reads extra_keys in the shape of vLLM's events.
func (q *queryScratch) readExtra(name string) error {
	s, e := &q.scan, &q.extra
	if err := s.Array(name, "one entry per block"); err != nil {
		return err
	}
	for first := true; ; first = false {
		done, err := s.Next(first, ']')
		if done || err != nil {
			return err
		}
		switch s.Space() {
		case 'n':
			err = s.Literal("null")
		case '[':
			err = q.readExtraEntry(name)
		default:
			if err = s.Skip(jsonscan.MaxNesting - 2); err == nil {
				err = refuse(ErrInvalid, "%s[%d]: %s", name, len(e.ends), extraForm)
			}
		}
		if err != nil {
			return err
		}
		e.ends = append(e.ends, len(e.buf))
	}
}

// readExtraEntry reads the keys of one block.
func (q *queryScratch) readExtraEntry(name string) error {
	s, e := &q.scan, &q.extra
	s.Take('[')
	for first := true; ; first = false {
		done, err := s.Next(first, ']')
		if done || err != nil {
			return err
		}
		var k kv.ExtraKey
		ok := false
		switch s.Space() {
		case '"':
			var id []byte
			id, err = s.Text()
			k, ok = kv.ExtraKey{Kind: kv.ExtraString, ID: string(id)}, true
		case '[':
			k, ok, err = readItem(s)
		default:
			err = s.Skip(jsonscan.MaxNesting - 3)
		}
		if err == nil && !ok {
			err = refuse(ErrInvalid, "%s[%d]: %s", name, len(e.ends), extraForm)
		}
		if err != nil {
			return err
		}
		e.buf = kv.AppendExtraKey(e.buf, k)
	}
}

// readItem reads [identifier, offset]; ok is false where it is something else. What
// is left of it then is not read: the body is refused anyway.
func readItem(s *jsonscan.Scanner) (k kv.ExtraKey, ok bool, err error) {
	s.Take('[')
	switch s.Space() {
	case '"':
	case ']':
		return k, false, nil
	default:
		return k, false, s.Skip(jsonscan.MaxNesting - 4)
	}
	id, err := s.Text()
	if err != nil || !s.Take(',') {
		return k, false, err
	}
	offset, ok, err := s.Integer(1<<63, 1<<63-1)
	if err != nil || !ok {
		return k, false, err
	}
	k = kv.ExtraKey{Kind: kv.ExtraItem, ID: string(id), Offset: int64(offset)}
	return k, s.Take(']'), nil
}
