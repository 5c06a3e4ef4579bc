// SPDX-License-Identifier: Apache-2.0

// Before: a decision. After: X-Kindex-Explain, logs, traces.

package policy

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// MaxRecord bounds a record's JSON, in bytes.
const MaxRecord = 2048

// maxShown is how many candidates a record has.
const maxShown = 4

// maxNameShown bounds a name in a record, in bytes.
const maxNameShown = 64

// Record is a decision's inputs and parts. The zero Record is ready for use, and one
// may be used again.
type Record struct {
	Policy string
	Branch Branch
	Tried  bool

	Prompt    int64 // tokens; 0: not known
	BlockSize int
	Blocks    int // of the prompt
	Matches   int // holders that have some of it, as far as they were looked up
	More      bool
	Pool      int // holders in all
	Read      int // of them, those whose state was read
	Sampled   bool
	Share     float64 // of the prompt that the deepest have
	Mean      float64 // requests, of those that stand for the fleet
	Limit     float64 // requests past which a holder is under pressure
	Gated     int     // of those read

	Shown int // of Best
	Best  [maxShown]Candidate
}

// Candidate is one holder in a record, the first of them the one that was chosen.
// Times are in seconds.
type Candidate struct {
	Worker string
	Rank   int

	Cached    int64  // tokens of the prompt
	Blocks    uint32 // of the prompt
	Device    uint32 // of these, on the device
	Predicted bool
	Degraded  bool
	Gated     bool
	Warm      bool
	Unmatched bool // what it has of the prompt was not looked up
	Vetoes    uint32

	InFlight float64 // requests with a lease
	Since    float64 // of them, those that its reading has not
	Reported float64 // requests in its reading
	Queued   float64 // tokens to prefill in its reading
	Pending  float64 // tokens to prefill that its reading has not
	Load     float64 // requests that were counted
	KV       float64 // in its reading
	Rate     float64 // tokens a second
	Age      float64 // of its reading; negative: none
	Trust    float64 // in it

	Cost     float64 // factor
	Ahead    float64
	Pressure float64
	Own      float64
	Expected float64 // Cost * (Ahead + Pressure + Own)
}

// record fills d.Record.
func (s *set) record(chosen *candidate, d *Decision) {
	if chosen.cost == 0 { // of a policy that read nothing
		s.price()
	}
	r := d.Record
	*r = Record{
		Policy: s.p.Name(), Branch: d.Branch, Tried: d.Tried,
		Prompt: s.q.Prompt, BlockSize: s.q.BlockSize, Blocks: s.q.Blocks, Matches: len(s.q.Matches), More: s.q.More,
		Pool: len(s.q.Pool.Holders), Read: s.n, Sampled: !s.read && d.Branch != Pinned,
		Share: s.share, Mean: s.mean, Limit: s.limit,
	}
	r.show(chosen)
	for i := range s.cands() {
		c := &s.list[i]
		c.flags &^= runs
		if c.is(gated) {
			r.Gated++
		}
	}
	chosen.flags |= runs
	for r.Shown < maxShown {
		c := s.least(0, runs)
		if c == nil {
			break
		}
		c.flags |= runs
		r.show(c)
	}
}

func (r *Record) show(c *candidate) {
	r.Best[r.Shown] = Candidate{
		Worker: c.h.Worker.ID, Rank: c.h.Rank,
		Cached: c.cached, Blocks: c.blocks, Device: c.device,
		Predicted: c.is(predicted), Degraded: c.is(degraded), Gated: c.is(gated), Warm: c.is(warm), Unmatched: c.is(unmatched),
		Vetoes:   uint32(c.h.Worker.Vetoes()),
		InFlight: c.inFlight, Since: c.since, Reported: c.reported, Queued: c.queued, Pending: c.pending,
		Load: c.load, KV: c.kv, Rate: c.rate, Age: c.age, Trust: c.trust,
		Cost: c.cost, Ahead: c.ahead, Pressure: c.pressure, Own: c.own, Expected: c.total,
	}
	r.Shown++
}

// AppendJSON appends r as one JSON object of at most [MaxRecord] bytes, in ASCII, so that
// it can be a header. Candidates that do not fit are left out, the last ones first.
func (r *Record) AppendJSON(dst []byte) []byte {
	first := len(dst)
	dst = append(dst, `{"policy":`...)
	dst = appendName(dst, r.Policy)
	dst = append(dst, `,"branch":"`...)
	dst = append(dst, r.Branch.String()...)
	dst = append(dst, '"')
	dst = appendBool(dst, "tried_before", r.Tried)
	dst = appendInt(dst, "prompt_tokens", r.Prompt)
	dst = appendInt(dst, "block_size", int64(r.BlockSize))
	dst = appendInt(dst, "blocks", int64(r.Blocks))
	dst = appendInt(dst, "matches", int64(r.Matches))
	dst = appendBool(dst, "more", r.More)
	dst = appendInt(dst, "pool", int64(r.Pool))
	dst = appendInt(dst, "read", int64(r.Read))
	dst = appendBool(dst, "sampled", r.Sampled)
	dst = appendFloat(dst, "share", r.Share)
	dst = appendFloat(dst, "mean_load", r.Mean)
	dst = appendFloat(dst, "load_limit", r.Limit)
	dst = appendInt(dst, "gated", int64(r.Gated))
	dst = append(dst, `,"candidates":[`...)
	for i := range r.Best[:r.Shown] {
		before := len(dst)
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = r.Best[i].appendJSON(dst)
		if len(dst)-first > MaxRecord-2 {
			dst = dst[:before]
			break
		}
	}
	return append(dst, "]}"...)
}

func (c *Candidate) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"worker":`...)
	dst = appendName(dst, c.Worker)
	dst = appendInt(dst, "rank", int64(c.Rank))
	dst = appendFloat(dst, "expected_s", c.Expected)
	dst = appendFloat(dst, "ahead_s", c.Ahead)
	dst = appendFloat(dst, "pressure_s", c.Pressure)
	dst = appendFloat(dst, "own_s", c.Own)
	dst = appendFloat(dst, "cost", c.Cost)
	dst = appendInt(dst, "cached_tokens", c.Cached)
	dst = appendInt(dst, "depth", int64(c.Blocks))
	dst = appendInt(dst, "device_depth", int64(c.Device))
	dst = appendFloat(dst, "load", c.Load)
	dst = appendFloat(dst, "in_flight", c.InFlight)
	dst = appendFloat(dst, "unreported", c.Since)
	dst = appendFloat(dst, "prefill_tokens", c.Queued+c.Pending)
	dst = appendFloat(dst, "throughput", c.Rate)
	if c.Age >= 0 {
		dst = appendFloat(dst, "reported", c.Reported)
		dst = appendFloat(dst, "kv", c.KV)
		dst = appendFloat(dst, "age_s", c.Age)
		if c.Trust < 1 {
			dst = appendFloat(dst, "trust", c.Trust)
		}
	}
	for _, f := range [...]struct {
		name string
		is   bool
	}{{"gated", c.Gated}, {"warm", c.Warm}, {"predicted", c.Predicted}, {"degraded", c.Degraded}, {"unmatched", c.Unmatched}} {
		if f.is {
			dst = appendBool(dst, f.name, true)
		}
	}
	if c.Vetoes != 0 {
		dst = appendInt(dst, "vetoes", int64(c.Vetoes))
	}
	return append(dst, '}')
}

func appendKey(dst []byte, key string) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, key...)
	return append(dst, `":`...)
}

func appendBool(dst []byte, key string, b bool) []byte {
	return strconv.AppendBool(appendKey(dst, key), b)
}

func appendInt(dst []byte, key string, n int64) []byte {
	return strconv.AppendInt(appendKey(dst, key), n, 10)
}

// appendFloat appends f to six digits; what JSON cannot say is null.
func appendFloat(dst []byte, key string, f float64) []byte {
	dst = appendKey(dst, key)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, f, 'g', 6, 64)
}

// appendName appends a name, cut and in printable ASCII.
func appendName(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s) && i < maxNameShown; i++ {
		c := s[i]
		if c < ' ' || c >= utf8.RuneSelf-1 || c == '"' || c == '\\' {
			c = '_'
		}
		dst = append(dst, c)
	}
	return append(dst, '"')
}
