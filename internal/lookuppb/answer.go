// SPDX-License-Identifier: Apache-2.0

// Before: a reply as gRPC received it. After: the caller's answer.

package lookuppb

import (
	"math"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"kindex/internal/lookup"
)

// Names keeps one string for each name that comes again, so that decoding answers
// about the same instances allocates nothing.
//
// Concurrency: any goroutine.
type Names struct {
	mu   sync.RWMutex
	kept map[string]string
}

// maxNames bounds what is kept; then it begins anew.
const maxNames = 1 << 14

func (n *Names) of(b []byte) string {
	n.mu.RLock()
	s, ok := n.kept[string(b)]
	n.mu.RUnlock()
	if ok {
		return s
	}
	s = string(b)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil || len(n.kept) >= maxNames {
		n.kept = map[string]string{}
	}
	n.kept[s] = s
	return s
}

// A Response is a decoded LookupResponse or LookupStreamResponse: an answer, or of a
// stream's a refusal. It keeps its memory for the next.
//
// Concurrency: one goroutine at a time.
type Response struct {
	ID      uint64
	Refused bool
	Kind    int32  // of index.proto
	Text    string // of the refusal

	instances                        []string
	which, ranks, device, host, rest []uint32
	number, degraded                 []bool
	blockSize                        uint32
}

// Decode decodes a LookupResponse into a, whose names are kept in names.
//
// Errors: ErrInvalid.
func (r *Response) Decode(b []byte, names *Names, a *lookup.Answer) error {
	ok := r.decode(b, 0, fieldOnly, 0, names)
	if !ok || !r.give(a) {
		a.Reset()
		return malformed("LookupResponse")
	}
	return nil
}

// DecodeStream decodes a LookupStreamResponse; Give then has its answer.
//
// Errors: ErrInvalid.
func (r *Response) DecodeStream(b []byte, names *Names) error {
	if !r.decode(b, fieldID, fieldAnswer, fieldRefusal, names) {
		return malformed("LookupStreamResponse")
	}
	return nil
}

// Give makes a the answer that was decoded.
//
// Errors: ErrInvalid where it contradicts itself; a is empty then.
func (r *Response) Give(a *lookup.Answer) error {
	if !r.give(a) {
		a.Reset()
		return malformed("LookupStreamResponse")
	}
	return nil
}

func (r *Response) decode(b []byte, id, answer, refusal protowire.Number, names *Names) bool {
	r.ID, r.Refused, r.Kind, r.Text, r.blockSize = 0, false, 0, "", 0
	r.instances, r.number, r.degraded = r.instances[:0], r.number[:0], r.degraded[:0]
	r.which, r.ranks, r.device, r.host, r.rest = r.which[:0], r.ranks[:0], r.device[:0], r.host[:0], r.rest[:0]
	return fields(b, func(num protowire.Number, typ protowire.Type, v []byte, n uint64) bool {
		switch {
		case num == id && typ == protowire.VarintType:
			r.ID = n
		case num == answer && typ == protowire.BytesType:
			return r.answer(v, names)
		case num == refusal && refusal != 0 && typ == protowire.BytesType:
			r.Refused = true
			return r.refusal(v)
		}
		return true
	})
}

func (r *Response) refusal(b []byte) bool {
	return fields(b, func(num protowire.Number, typ protowire.Type, v []byte, n uint64) bool {
		switch {
		case num == refusalKind && typ == protowire.VarintType:
			r.Kind = int32(n)
		case num == refusalText && typ == protowire.BytesType:
			return setString(&r.Text, v)
		}
		return true
	})
}

func (r *Response) answer(b []byte, names *Names) bool {
	columns := [...]*[]uint32{&r.which, &r.ranks, &r.device, &r.host, &r.rest}
	return fields(b, func(num protowire.Number, typ protowire.Type, v []byte, n uint64) bool {
		bytes, varint := typ == protowire.BytesType, typ == protowire.VarintType
		switch {
		case num == answerBlockSize && varint:
			r.blockSize = uint32(n)
		case num == answerInstances && bytes:
			r.instances = append(r.instances, names.of(v))
			return utf8.Valid(v)
		case num == answerNumber || num == answerDegraded:
			flags := &r.number
			if num == answerDegraded {
				flags = &r.degraded
			}
			return eachVarint(typ, v, n, func(x uint64) { *flags = append(*flags, x != 0) })
		case num >= answerInstance && num <= answerAny:
			c := columns[num-answerInstance]
			return eachVarint(typ, v, n, func(x uint64) { *c = append(*c, uint32(x)) })
		}
		return true
	})
}

// eachVarint calls fn for each number of a repeated field, packed or not.
func eachVarint(typ protowire.Type, v []byte, n uint64, fn func(uint64)) bool {
	switch typ {
	case protowire.VarintType:
		fn(n)
	case protowire.BytesType:
		for len(v) > 0 {
			x, size := protowire.ConsumeVarint(v)
			if size < 0 {
				return false
			}
			fn(x)
			v = v[size:]
		}
	case protowire.Fixed32Type, protowire.Fixed64Type, protowire.StartGroupType, protowire.EndGroupType:
	}
	return true
}

// give fills a, and reports whether the columns fit together.
func (r *Response) give(a *lookup.Answer) bool {
	a.Reset()
	n := len(r.which)
	if len(r.ranks) != n || len(r.device) != n || len(r.host) != n || len(r.rest) != n || r.blockSize > math.MaxInt32 ||
		len(r.number) != len(r.instances) || len(r.degraded) != len(r.instances) {
		return false
	}
	a.BlockSize = int(r.blockSize)
	for i, k := range r.which {
		if int(k) >= len(r.instances) {
			return false
		}
		a.Matches = append(a.Matches, lookup.Match{
			Instance: r.instances[k], Number: r.number[k], Degraded: r.degraded[k],
			Rank: int(r.ranks[i]), Device: r.device[i], Host: r.host[i], Any: r.rest[i],
		})
	}
	return true
}

// ResponseID returns the id of a LookupStreamResponse, 0 where it has none.
func ResponseID(b []byte) (id uint64) {
	fields(b, func(num protowire.Number, typ protowire.Type, _ []byte, n uint64) bool {
		if num == fieldID && typ == protowire.VarintType {
			id = n
		}
		return true
	})
	return id
}
