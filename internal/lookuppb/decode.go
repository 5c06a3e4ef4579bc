// SPDX-License-Identifier: Apache-2.0

// Before: a message as gRPC received it. After: the host's lookup.

package lookuppb

import (
	"encoding/binary"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// malformed is what both ends say of bytes that are no such message.
func malformed(what string) error {
	return lookup.Refuse(lookup.ErrInvalid, "message: must be a kindex.v1.%s", what)
}

// fields calls fn for each field of b: v is the bytes of one of that type, n the
// number of any other. It stops where fn returns false, and reports whether all
// was well formed and fn never did.
func fields(b []byte, fn func(num protowire.Number, typ protowire.Type, v []byte, n uint64) bool) bool {
	for len(b) > 0 {
		num, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return false
		}
		b = b[size:]
		var v []byte
		var n uint64
		switch typ {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var x uint32
			x, size = protowire.ConsumeFixed32(b)
			n = uint64(x)
		case protowire.Fixed64Type:
			n, size = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			v, size = protowire.ConsumeBytes(b)
		case protowire.StartGroupType, protowire.EndGroupType:
			size = protowire.ConsumeFieldValue(num, typ, b)
		default:
			return false
		}
		if size < 0 {
			return false
		}
		b = b[size:]
		if !fn(num, typ, v, n) {
			return false
		}
	}
	return true
}

// setString makes *p b's text, keeping the string that is there where it is the
// same; it reports whether b is UTF-8.
func setString(p *string, b []byte) bool {
	if *p != string(b) {
		*p = string(b)
	}
	return utf8.Valid(b)
}

// A Request is a decoded LookupRequest or LookupStreamRequest. It keeps its memory
// for the next, and strings that come again.
//
// Concurrency: one goroutine at a time.
type Request struct {
	ID    uint64
	Query lookup.Query

	names  [5]string // kept
	tokens []uint32
	hashes []kv.ContentHash
	extra  []byte
	ends   []int
	keys   [][]byte
	only   []string
	fault  error // what is too much of
}

// MaxExtra bounds the entries of extra keys: no prompt has so many blocks.
const MaxExtra = 1 << 20

// Decode decodes a LookupRequest.
//
// Errors: ErrInvalid.
func (r *Request) Decode(b []byte) error { return r.decode(b, 0, fieldOnly, "LookupRequest") }

// DecodeStream decodes a LookupStreamRequest. The ID is what could be read also
// where there is an error.
//
// Errors: ErrInvalid.
func (r *Request) DecodeStream(b []byte) error {
	return r.decode(b, fieldID, fieldQuery, "LookupStreamRequest")
}

// Size is about how much memory r keeps, bytes.
func (r *Request) Size() int {
	return 4*cap(r.tokens) + 8*cap(r.hashes) + cap(r.extra) + 8*cap(r.ends) + 24*cap(r.keys) + 64*cap(r.only)
}

func (r *Request) decode(b []byte, id, query protowire.Number, what string) error {
	r.ID, r.Query, r.fault = 0, lookup.Query{}, nil
	r.tokens, r.hashes, r.extra, r.ends, r.keys, r.only = r.tokens[:0], r.hashes[:0], r.extra[:0], r.ends[:0], r.keys[:0], r.only[:0]
	var found, filtered bool
	var set uint
	ok := fields(b, func(num protowire.Number, typ protowire.Type, v []byte, n uint64) bool {
		switch {
		case num == id && typ == protowire.VarintType:
			r.ID = n
		case num == query && typ == protowire.BytesType:
			found = true
			return r.query(v, &filtered, &set)
		}
		return true
	})
	switch {
	case r.fault != nil:
		return r.fault
	case !ok:
		return malformed(what)
	case !found:
		return lookup.Refuse(lookup.ErrInvalid, "query: is missing")
	}
	for i, p := range [...]*string{&r.Query.Model, &r.Query.Group, &r.Query.Tenant, &r.Query.LoRA, &r.Query.Salt} {
		if set>>i&1 != 0 {
			*p = r.names[i]
		}
	}
	if len(r.tokens) > 0 {
		r.Query.Tokens = r.tokens
	}
	if len(r.hashes) > 0 {
		r.Query.Hashes = r.hashes
	}
	start := 0
	for _, end := range r.ends {
		r.keys = append(r.keys, r.extra[start:end])
		start = end
	}
	if len(r.keys) > 0 {
		r.Query.Extra = r.keys
	}
	if filtered {
		r.Query.Only = r.only
		if r.only == nil {
			r.Query.Only = []string{}
		}
	}
	return nil
}

// query decodes a Query; set gets a bit for each name that is in it.
func (r *Request) query(b []byte, filtered *bool, set *uint) bool {
	return fields(b, func(num protowire.Number, typ protowire.Type, v []byte, n uint64) (ok bool) {
		bytes := typ == protowire.BytesType
		switch {
		case num >= queryModel && num <= querySalt && bytes:
			i := num - queryModel
			*set |= 1 << i
			return setString(&r.names[i], v)
		case num == queryTokens && typ == protowire.Fixed32Type:
			r.tokens = append(r.tokens, uint32(n))
		case num == queryTokens && bytes:
			return r.readTokens(v)
		case num == queryHashes && typ == protowire.Fixed64Type:
			r.hashes = append(r.hashes, kv.ContentHash(n))
		case num == queryHashes && bytes:
			return r.readHashes(v)
		case num == queryExtra && bytes:
			if len(r.ends) == MaxExtra {
				r.fault = lookup.Refuse(lookup.ErrInvalid, "extra_keys: must have at most %d entries", MaxExtra)
				return false
			}
			r.extra = append(r.extra, v...)
			r.ends = append(r.ends, len(r.extra))
		case num == queryInstances && bytes:
			*filtered = true
			return r.readOnly(v)
		case num == queryLimit && typ == protowire.VarintType:
			r.Query.Limit = int(uint32(n))
		}
		return true
	})
}

func (r *Request) readTokens(v []byte) bool {
	for ; len(v) >= 4; v = v[4:] {
		r.tokens = append(r.tokens, binary.LittleEndian.Uint32(v))
	}
	return len(v) == 0
}

func (r *Request) readHashes(v []byte) bool {
	for ; len(v) >= 8; v = v[8:] {
		r.hashes = append(r.hashes, kv.ContentHash(binary.LittleEndian.Uint64(v)))
	}
	return len(v) == 0
}

func (r *Request) readOnly(b []byte) bool {
	return fields(b, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) bool {
		if num != instancesIDs || typ != protowire.BytesType {
			return true
		}
		if len(r.only) == lookup.MaxInstances {
			r.fault = lookup.Refuse(lookup.ErrInvalid, "instances: must have at most %d ids", lookup.MaxInstances)
			return false
		}
		// The string that stood in this place is often the same.
		if n := len(r.only); n < cap(r.only) {
			r.only = r.only[:n+1]
			return setString(&r.only[n], v)
		}
		r.only = append(r.only, string(v))
		return utf8.Valid(v)
	})
}
