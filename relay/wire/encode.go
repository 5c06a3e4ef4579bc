// SPDX-License-Identifier: Apache-2.0

package wire

// Before this file: events that a mock engine or a test made. After it: a
// payload, byte for byte as the release of the layout writes it.

import (
	"encoding/binary"
	"math"

	"kindex/internal/kv"
)

// AppendBatch appends b's payload in layout l. What the layout has no field for
// is left out, as an engine of that release would.
//
// Shape: of each event Extra, Digests and Lookahead are nil or as long as
// Hashes, and Second is nil or as long as Tokens.
func AppendBatch(dst []byte, b *kv.Batch, l *Layout) []byte {
	n := 3
	if !b.HasRank && !l.RankAlways {
		n = 2
	}
	dst = appendArray(dst, n)
	dst = append(dst, float64b)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(b.Timestamp))
	dst = appendArray(dst, len(b.Events))
	for i := range b.Events {
		dst = l.appendEvent(dst, &b.Events[i])
	}
	switch {
	case b.HasRank:
		dst = appendInt(dst, int64(b.Rank))
	case n == 3:
		dst = append(dst, nilByte)
	}
	return dst
}

func (l *Layout) appendEvent(dst []byte, e *kv.Event) []byte {
	fields := l.fields(e.Kind)
	if l.Array {
		if l.OmitTail {
			for len(fields) > 0 && !fields[len(fields)-1].Always && !has(e, fields[len(fields)-1].Field) {
				fields = fields[:len(fields)-1]
			}
		}
		dst = appendArray(dst, 1+len(fields))
		dst = appendText(dst, e.Kind.String())
		for _, f := range fields {
			dst = l.appendField(dst, e, f.Field)
		}
		return dst
	}
	n := 1
	for _, f := range fields {
		if f.Always || has(e, f.Field) {
			n++
		}
	}
	// The header's width is that of all declared fields, present or not: how
	// msgspec writes structs whose defaults may be left out.
	dst = appendMap(dst, n, 1+len(fields))
	dst = appendText(dst, fieldType.String())
	dst = appendText(dst, e.Kind.String())
	for _, f := range fields {
		if f.Always || has(e, f.Field) {
			dst = appendText(dst, f.Field.String())
			dst = l.appendField(dst, e, f.Field)
		}
	}
	return dst
}

// has tells whether the event has something to say in field f.
func has(e *kv.Event, f Field) bool {
	switch f {
	case FieldHashes, FieldTokens, FieldBlockSize:
		return true
	case FieldParent:
		return e.HasParent
	case FieldLoRAID:
		return e.HasLoRAID
	case FieldExtraKeys:
		return e.HasExtra
	case FieldGroup:
		return e.HasGroup
	case FieldWindow:
		return e.HasWindow
	case FieldSalt:
		return e.HasSalt
	case FieldLocality:
		return e.Locality != kv.LocalityUnstated
	case FieldLookahead:
		return e.Lookahead != nil
	default:
		return wordOf(e, f) != ""
	}
}

func wordOf(e *kv.Event, f Field) string {
	switch f {
	case FieldMedium:
		return e.Medium
	case FieldLoRAName:
		return e.LoRAName
	case FieldSpec:
		return e.SpecName
	case FieldOwnership:
		return e.Ownership
	case FieldSession:
		return e.SessionID
	case FieldSalt:
		return e.Salt
	case FieldLocality:
		if e.Locality == kv.LocalityRemote {
			return "REMOTE"
		}
		return "LOCAL"
	default:
		return ""
	}
}

func (l *Layout) appendField(dst []byte, e *kv.Event, f Field) []byte {
	if !has(e, f) {
		return append(dst, nilByte)
	}
	switch f {
	case FieldHashes:
		dst = appendArray(dst, len(e.Hashes))
		for i, h := range e.Hashes {
			var digest []byte
			if e.Digests != nil {
				digest = e.Digests[i]
			}
			dst = l.appendHash(dst, h, digest, e.Form)
		}
		return dst
	case FieldParent:
		return l.appendHash(dst, e.Parent, e.ParentDigest, e.Form)
	case FieldTokens:
		return appendTokens(dst, e.Tokens, e.Second)
	case FieldBlockSize:
		return appendInt(dst, int64(e.BlockSize))
	case FieldLoRAID:
		return appendInt(dst, e.LoRAID)
	case FieldGroup:
		return appendInt(dst, int64(e.Group))
	case FieldWindow:
		return appendInt(dst, int64(e.Window))
	case FieldExtraKeys:
		return l.appendExtraKeys(dst, e.Extra)
	case FieldLookahead:
		dst = appendArray(dst, len(e.Lookahead))
		for _, list := range e.Lookahead {
			dst = appendTokens(dst, list, nil)
		}
		return dst
	default:
		return appendText(dst, wordOf(e, f))
	}
}

func (l *Layout) appendHash(dst []byte, h kv.EngineHash, digest []byte, form kv.HashForm) []byte {
	switch {
	case l.Signed:
		return appendInt(dst, int64(h))
	case digest != nil:
		return appendBinary(dst, digest)
	case form == kv.FormSigned:
		return appendInt(dst, int64(h))
	}
	return appendUint(dst, uint64(h))
}

func (l *Layout) appendExtraKeys(dst []byte, lists [][]kv.ExtraKey) []byte {
	dst = appendArray(dst, len(lists))
	for _, keys := range lists {
		if len(keys) == 0 {
			dst = append(dst, nilByte)
			continue
		}
		dst = appendArray(dst, len(keys))
		for _, k := range keys {
			switch {
			case k.Kind == kv.ExtraBytes:
				dst = appendBinary(dst, []byte(k.ID))
			case k.Kind == kv.ExtraItem && !l.BareItems:
				dst = append(dst, fixArray|2)
				dst = appendText(dst, k.ID)
				dst = appendInt(dst, k.Offset)
			default:
				dst = appendText(dst, k.ID)
			}
		}
	}
	return dst
}

func appendTokens(dst []byte, tokens, second []uint32) []byte {
	dst = appendArray(dst, len(tokens))
	for i, t := range tokens {
		if second != nil {
			dst = append(dst, fixArray|2)
			dst = appendUint(dst, uint64(t))
			dst = appendUint(dst, uint64(second[i]))
			continue
		}
		dst = appendUint(dst, uint64(t))
	}
	return dst
}

// appendInt appends v in the shortest format, negative or not.
func appendInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return appendUint(dst, uint64(v))
	case v >= -32:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, int8b, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, int16b), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, int32b), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, int64b), uint64(v))
}

func appendUint(dst []byte, v uint64) []byte {
	switch {
	case v < fixMap:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, uint8b, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, uint16b), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, uint32b), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, uint64b), v)
}

func appendArray(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, fixArray|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, array16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, array32), uint32(n))
}

// appendMap appends a map's header for n pairs, as wide as declared pairs need.
func appendMap(dst []byte, n, declared int) []byte {
	if declared < 16 {
		return append(dst, fixMap|byte(n))
	}
	return binary.BigEndian.AppendUint16(append(dst, map16), uint16(n))
}

func appendText(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, fixStr|byte(n))
	default:
		dst = appendLength(dst, str8, n)
	}
	return append(dst, s...)
}

func appendBinary(dst, b []byte) []byte { return append(appendLength(dst, bin8, len(b)), b...) }

// appendLength appends a length behind the first of three formats, which take
// 1, 2 and 4 bytes for it.
func appendLength(dst []byte, format byte, n int) []byte {
	switch {
	case n <= math.MaxUint8:
		return append(dst, format, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, format+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, format+2), uint32(n))
}
