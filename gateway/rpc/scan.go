// SPDX-License-Identifier: Apache-2.0

// Before: call.go, with a message's bytes. After: the router, which needs token ids;
// placements, which need counts.

package rpc

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// asked is what routing needs of a request.
type asked struct {
	id     string
	tokens []uint32 // empty: it has none
	items  bool     // it has more than text
	stream bool
	lora   string
	rank   int // -1: free
	n      int // answers
}

// errMalformed is what is no message of protobuf.
var errMalformed = errors.New("the message is malformed")

// maxRank bounds what is taken for a rank.
const maxRank = 1 << 16

// scan reads b, a request whose fields have the numbers of r. The tokens' memory is
// used again. Fields that it does not know are stepped over.
func (a *asked) scan(b []byte, r *request) error {
	*a = asked{tokens: a.tokens[:0], rank: -1, n: 1}
	return fields(b, func(f field) error {
		switch f.num {
		case r.id:
			a.id = string(f.bytes)
		case r.tokenized:
			return fields(f.bytes, func(f field) error {
				if f.num != r.ids {
					return nil
				}
				return a.ids(&f)
			})
		case r.items[0], r.items[1], r.items[2]:
			a.items = true
		case r.stream:
			a.stream = f.value != 0
		case r.lora:
			a.lora = string(f.bytes)
		case r.rank:
			if f.kind == protowire.VarintType && f.value <= maxRank && (f.value > 0 || !r.zeroFree) {
				a.rank = int(f.value)
			}
		case r.params:
			return fields(f.bytes, func(f field) error {
				if f.num == r.n && f.kind == protowire.VarintType {
					a.n = int(min(max(f.value, 1), 1<<20))
				}
				return nil
			})
		}
		return nil
	})
}

// ids takes token ids, packed or one by one.
func (a *asked) ids(f *field) error {
	if f.kind == protowire.VarintType {
		a.tokens = append(a.tokens, uint32(f.value))
		return nil
	}
	for b := f.bytes; len(b) > 0; {
		if b[0] < 0x80 { // most ids take more, and a few do not
			a.tokens = append(a.tokens, uint32(b[0]))
			b = b[1:]
			continue
		}
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return errMalformed
		}
		a.tokens = append(a.tokens, uint32(v))
		b = b[n:]
	}
	return nil
}

// counted is what an answer's message tells.
type counted struct {
	part, whole                bool // a chunk, or the end of one answer
	output                     bool // it carries tokens
	index                      uint64
	prompt, completion, cached int64
}

// scan reads b, an answer of kind k. What is malformed passes through as well: it is the
// client's to refuse.
func (c *counted) scan(b []byte, k *answer) {
	*c = counted{}
	_ = fields(b, func(f field) error {
		switch f.num {
		case k.chunk:
			c.part = true
			c.counts(f.bytes, k.chunkTokens, k.chunkIDs, k.chunkIndex)
		case k.complete:
			c.whole = true
			c.counts(f.bytes, k.completeTokens, k.completeIDs, k.completeIndex)
		}
		return nil
	})
}

func (c *counted) counts(b []byte, t tokens, ids, index int32) {
	_ = fields(b, func(f field) error {
		switch f.num {
		case ids:
			c.output = c.output || len(f.bytes) > 0 || f.kind == protowire.VarintType
		case t.prompt:
			c.prompt = int64(f.value)
		case t.completion:
			c.completion = int64(f.value)
		case t.cached:
			c.cached = int64(f.value)
		case index:
			c.index = f.value
		}
		return nil
	})
}

// field is one field of a message: bytes of those with a length, else the value.
type field struct {
	num   int32
	kind  protowire.Type
	bytes []byte
	value uint64
}

// fields calls see with each field of b.
func fields(b []byte, see func(field) error) error {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		f := field{num: int32(num), kind: kind}
		switch kind {
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type, protowire.Fixed64Type, protowire.StartGroupType, protowire.EndGroupType:
			n = protowire.ConsumeFieldValue(num, kind, b)
		default:
			return errMalformed
		}
		if n < 0 {
			return errMalformed
		}
		if err := see(f); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// withRank returns b with its rank set: the last value of a field counts.
func withRank(b []byte, num int32, rank int) []byte {
	out := make([]byte, len(b), len(b)+16)
	copy(out, b)
	out = protowire.AppendTag(out, protowire.Number(num), protowire.VarintType)
	return protowire.AppendVarint(out, uint64(rank))
}
