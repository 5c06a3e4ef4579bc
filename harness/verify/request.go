// SPDX-License-Identifier: Apache-2.0

// Before: a recording's req and resp lines. After: credit.go.

package verify

import (
	"slices"

	"kindex/harness/record"
	"kindex/internal/kv"
)

// request is one request and what the recording says of it.
type request struct {
	req  *record.Req
	resp *record.Resp // nil: never answered
	line int          // of the request
	t    float64      // sent, seconds
	end  float64      // answered, seconds
	last int          // line of the answer

	rank    int  // that served it; -1 while unknown
	asked   bool // the rank is recorded, by the request or its routing
	overlap bool // another request was in flight while it was

	// naive is what a lookup predicted in blocks when the request was sent, by
	// rank; device leaves out what lies in lower tiers.
	naive  map[int]int
	device map[int]int

	// The stores that this request made, by its rank's events.
	first int // item of the first; -1: none
	start int // block that the first began at
	next  int // block that the next one is expected to begin at
}

// requests collects the requests of a file in the order they were sent, and
// which rank each one was for.
func collectRequests(f *record.File, ranks []int) []*request {
	var out []*request
	open := map[string]*request{}
	routes := map[string]int{}
	for i := range f.Lines {
		l := &f.Lines[i]
		switch {
		case l.Ctl != nil && l.Ctl.Op == "route":
			routes[l.Ctl.ID] = l.Ctl.Rank
		case l.Req != nil:
			r := &request{req: l.Req, line: l.N, t: l.T, end: maxTime, rank: -1, first: -1, naive: map[int]int{}, device: map[int]int{}}
			switch rank, routed := routes[l.Req.ID]; {
			case l.Req.Rank != nil:
				r.rank, r.asked = *l.Req.Rank, true
			case routed:
				r.rank, r.asked = rank, true
			case len(ranks) == 1:
				r.rank, r.asked = ranks[0], true
			}
			for _, o := range open {
				r.overlap, o.overlap = true, true
			}
			open[l.Req.ID] = r
			out = append(out, r)
		case l.Resp != nil:
			if r := open[l.Resp.ID]; r != nil {
				r.resp, r.end, r.last = l.Resp, l.T, l.N
				delete(open, l.Resp.ID)
			}
		}
	}
	return out
}

const maxTime = 1e300

// cached returns the engine's own number, if it gave one.
func (r *request) cached() (int, bool) {
	if r.resp == nil || r.resp.Cached == nil {
		return 0, false
	}
	return *r.resp.Cached, true
}

// tokens returns the prompt and, where it is known, what the engine added.
func (r *request) tokens() []uint32 {
	if r.resp == nil {
		return r.req.Prompt
	}
	return slices.Concat(r.req.Prompt, r.resp.Output)
}

// lora returns the adapter's name.
func (r *request) lora() string {
	if r.req.LoRA == nil {
		return ""
	}
	return r.req.LoRA.Name
}

// namespace returns the part of the request's namespace that its engine's events
// do not show, "" where they show it all.
func (r *request) namespace() string {
	if r.req.LoRA != nil {
		return ""
	}
	return r.req.ExtraKey
}

// reannounces reports that the request asked for its hits to be told again.
func (r *request) reannounces() bool { return r.req.Extra["kv_cache_report_mode"] == "full" }

// keys returns the extra keys of the block of size tokens that begins at from:
// each item that overlaps it, with its offset from the block's start.
func (r *request) keys(from, size int) []kv.ExtraKey {
	var out []kv.ExtraKey
	for _, m := range r.req.MM {
		if m.Offset < from+size && m.Offset+m.Length > from {
			out = append(out, kv.ExtraKey{Kind: kv.ExtraItem, ID: m.ID, Offset: int64(m.Offset - from)})
		}
	}
	return out
}

// query is the request as a client of the index asks it: content hashes of the
// prompt's whole blocks.
func (r *request) query(m kv.ModelKey, size int) (kv.Namespace, []kv.ContentHash) {
	seed := kv.ContentSeed(r.lora(), r.req.Salt)
	n := len(r.req.Prompt) / size
	b := kv.Blocks{Tokens: r.req.Prompt[:n*size], BlockSize: size}
	if len(r.req.MM) > 0 {
		b.Extra = make([][]byte, n)
		for i := range n {
			for _, k := range r.keys(i*size, size) {
				b.Extra[i] = kv.AppendExtraKey(b.Extra[i], k)
			}
		}
	}
	return m.Namespace(seed), b.AppendHashes(nil, seed)
}

// shape is how an engine makes blocks of tokens.
type shape struct {
	size   int  // tokens
	bigram bool // a block is pairs of neighbouring tokens
	ahead  int  // tokens after a block that its hash covers
}

// blocks returns how many of n tokens' blocks have a hash.
func (s shape) blocks(n int) int {
	if s.bigram {
		n--
	}
	return max(n-s.ahead, 0) / s.size
}

// limit returns how many blocks of a prompt of n tokens can be a hit: the last
// token is always computed.
func (s shape) limit(n int) int { return min(s.blocks(n), s.blocks(n-1+s.ahead)) }

// block returns block i of r's tokens.
func (s shape) block(r *request, tokens []uint32, i int) block {
	from, to := i*s.size, (i+1)*s.size
	b := block{tokens: tokens[from:to], extra: r.keys(from, s.size)}
	if s.bigram {
		b.second = tokens[from+1 : to+1]
	}
	if s.ahead > 0 {
		b.ahead = tokens[to : to+s.ahead]
	}
	return b
}

// path returns the position of every whole block of tokens, as the engine's
// events would tell it.
func (s shape) path(f *forest, r *request, tokens []uint32) []posID {
	n := s.blocks(len(tokens))
	out := make([]posID, n)
	p := f.root(r.lora(), r.req.Salt)
	for i := range out {
		b := s.block(r, tokens, i)
		p = f.child(p, &b)
		out[i] = p
	}
	return out
}
