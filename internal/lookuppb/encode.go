// SPDX-License-Identifier: Apache-2.0

// Before: a client's query, a host's answer. After: codec.go, as bytes.

package lookuppb

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"kindex/internal/lookup"
)

// Numbers of fields, as index.proto has them.
const (
	fieldID      = 1 // LookupStreamRequest, LookupStreamResponse
	fieldQuery   = 2 // LookupStreamRequest
	fieldAnswer  = 2 // LookupStreamResponse
	fieldRefusal = 3 // LookupStreamResponse
	fieldOnly    = 1 // LookupRequest, LookupResponse: their only one

	queryModel     = 1
	queryGroup     = 2
	queryTenant    = 3
	queryLoRA      = 4
	querySalt      = 5
	queryTokens    = 6
	queryHashes    = 7
	queryExtra     = 8
	queryInstances = 9
	queryLimit     = 10

	instancesIDs = 1

	answerBlockSize = 1
	answerInstances = 2
	answerNumber    = 3
	answerDegraded  = 4
	answerInstance  = 5
	answerRank      = 6
	answerDevice    = 7
	answerHost      = 8
	answerAny       = 9

	refusalKind = 1
	refusalText = 2
)

// AppendRequest appends the LookupRequest of q.
func AppendRequest(b []byte, q *lookup.Query) []byte {
	return appendQuery(b, fieldOnly, q)
}

// AppendStreamRequest appends the LookupStreamRequest of q.
func AppendStreamRequest(b []byte, id uint64, q *lookup.Query) []byte {
	return appendQuery(appendUint(b, fieldID, id), fieldQuery, q)
}

// appendQuery appends q as field number n.
func appendQuery(b []byte, n protowire.Number, q *lookup.Query) []byte {
	b = protowire.AppendTag(b, n, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(sizeQuery(q)))
	for i, s := range [...]string{q.Model, q.Group, q.Tenant, q.LoRA, q.Salt} {
		if s != "" {
			b = protowire.AppendTag(b, protowire.Number(queryModel+i), protowire.BytesType)
			b = protowire.AppendString(b, s)
		}
	}
	if len(q.Tokens) > 0 {
		b = protowire.AppendTag(b, queryTokens, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(4*len(q.Tokens)))
		for _, t := range q.Tokens {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
	}
	if len(q.Hashes) > 0 {
		b = protowire.AppendTag(b, queryHashes, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(8*len(q.Hashes)))
		for _, h := range q.Hashes {
			b = binary.LittleEndian.AppendUint64(b, uint64(h))
		}
	}
	for _, e := range q.Extra {
		b = protowire.AppendTag(b, queryExtra, protowire.BytesType)
		b = protowire.AppendBytes(b, e)
	}
	if q.Only != nil {
		b = protowire.AppendTag(b, queryInstances, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeStrings(q.Only)))
		for _, id := range q.Only {
			b = protowire.AppendTag(b, instancesIDs, protowire.BytesType)
			b = protowire.AppendString(b, id)
		}
	}
	return appendUint(b, queryLimit, uint64(q.Limit))
}

// sizeQuery returns the length of q's fields. All of them have one-byte tags.
func sizeQuery(q *lookup.Query) int {
	n := 0
	for _, s := range [...]string{q.Model, q.Group, q.Tenant, q.LoRA, q.Salt} {
		if s != "" {
			n += 1 + protowire.SizeBytes(len(s))
		}
	}
	if len(q.Tokens) > 0 {
		n += 1 + protowire.SizeBytes(4*len(q.Tokens))
	}
	if len(q.Hashes) > 0 {
		n += 1 + protowire.SizeBytes(8*len(q.Hashes))
	}
	for _, e := range q.Extra {
		n += 1 + protowire.SizeBytes(len(e))
	}
	if q.Only != nil {
		n += 1 + protowire.SizeBytes(sizeStrings(q.Only))
	}
	return n + sizeUint(uint64(q.Limit))
}

func sizeStrings(list []string) int {
	n := 0
	for _, s := range list {
		n += 1 + protowire.SizeBytes(len(s))
	}
	return n
}

// appendUint appends a number that is not 0.
func appendUint(b []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func sizeUint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

// AnswerEncoder encodes answers. It keeps its memory between them.
//
// Concurrency: one goroutine at a time.
type AnswerEncoder struct {
	fields []byte            // of the Answer
	at     map[string]uint32 // of a match's instance among instances
	firsts []int             // the first match of each instance
	column []byte
	which  []uint32 // of instances, by match
}

// AppendResponse appends the LookupResponse of a.
func (e *AnswerEncoder) AppendResponse(b []byte, a *lookup.Answer) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, fieldOnly, protowire.BytesType), e.encode(a))
}

// AppendStreamResponse appends the LookupStreamResponse of a.
func (e *AnswerEncoder) AppendStreamResponse(b []byte, id uint64, a *lookup.Answer) []byte {
	b = appendUint(b, fieldID, id)
	return protowire.AppendBytes(protowire.AppendTag(b, fieldAnswer, protowire.BytesType), e.encode(a))
}

// AppendRefusal appends the LookupStreamResponse of a refusal. kind is one of
// index.proto's.
func AppendRefusal(b []byte, id uint64, kind int32, text string) []byte {
	b = appendUint(b, fieldID, id)
	n := sizeUint(uint64(kind)) + 1 + protowire.SizeBytes(len(text))
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldRefusal, protowire.BytesType), uint64(n))
	b = appendUint(b, refusalKind, uint64(kind))
	return protowire.AppendString(protowire.AppendTag(b, refusalText, protowire.BytesType), text)
}

// fewInstances is up to how many instances one is sought by comparing.
const fewInstances = 16

// encode returns a's fields, until the next call.
func (e *AnswerEncoder) encode(a *lookup.Answer) []byte {
	e.index(a)
	b := appendUint(e.fields[:0], answerBlockSize, uint64(a.BlockSize))
	for _, i := range e.firsts {
		b = protowire.AppendTag(b, answerInstances, protowire.BytesType)
		b = protowire.AppendString(b, a.Matches[i].Instance)
	}
	b = e.flags(b, answerNumber, a, func(m *lookup.Match) bool { return m.Number })
	b = e.flags(b, answerDegraded, a, func(m *lookup.Match) bool { return m.Degraded })
	b = e.numbers(b, answerInstance, len(a.Matches), func(i int) uint32 { return e.which[i] })
	b = e.numbers(b, answerRank, len(a.Matches), func(i int) uint32 { return uint32(a.Matches[i].Rank) })
	b = e.numbers(b, answerDevice, len(a.Matches), func(i int) uint32 { return a.Matches[i].Device })
	b = e.numbers(b, answerHost, len(a.Matches), func(i int) uint32 { return a.Matches[i].Host })
	b = e.numbers(b, answerAny, len(a.Matches), func(i int) uint32 { return a.Matches[i].Any })
	e.fields = b
	return b
}

// index finds a's instances, each once.
func (e *AnswerEncoder) index(a *lookup.Answer) {
	e.firsts, e.which = e.firsts[:0], e.which[:0]
	if e.at == nil {
		e.at = map[string]uint32{}
	}
	clear(e.at)
	for i := range a.Matches {
		id := a.Matches[i].Instance
		at, ok := uint32(0), false
		if len(e.firsts) <= fewInstances {
			for k, first := range e.firsts {
				if a.Matches[first].Instance == id {
					at, ok = uint32(k), true
					break
				}
			}
		} else {
			at, ok = e.at[id]
		}
		if !ok {
			at = uint32(len(e.firsts))
			e.firsts = append(e.firsts, i)
			if len(e.firsts) == fewInstances+1 {
				for k, first := range e.firsts {
					e.at[a.Matches[first].Instance] = uint32(k)
				}
			} else if len(e.firsts) > fewInstances {
				e.at[id] = at
			}
		}
		e.which = append(e.which, at)
	}
}

func (e *AnswerEncoder) flags(b []byte, n protowire.Number, a *lookup.Answer, of func(*lookup.Match) bool) []byte {
	if len(e.firsts) == 0 {
		return b
	}
	b = protowire.AppendTag(b, n, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(e.firsts)))
	for _, i := range e.firsts {
		b = append(b, byte(protowire.EncodeBool(of(&a.Matches[i]))))
	}
	return b
}

func (e *AnswerEncoder) numbers(b []byte, n protowire.Number, count int, of func(int) uint32) []byte {
	if count == 0 {
		return b
	}
	e.column = e.column[:0]
	for i := range count {
		e.column = protowire.AppendVarint(e.column, uint64(of(i)))
	}
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), e.column)
}
