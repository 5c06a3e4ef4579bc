// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"

	"kindex/internal/kv"
)

// This file decodes a second time, with another library and without regard for
// cost: the payload becomes a tree of values, and the tree is read by the rules
// of the package comment.

// oraclePairs is a map with its keys in order, of any type and maybe equal.
type oraclePairs [][2]any

// oracleValue reads one value as nil, bool, int64, uint64, float64, string,
// []byte, []any, oraclePairs, or an extension.
func oracleValue(b []byte) (v any, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.ArrayType:
		n, b, err := msgp.ReadArrayHeaderBytes(b)
		out := []any{}
		for range n {
			if err != nil {
				return nil, nil, err
			}
			if v, b, err = oracleValue(b); err == nil {
				out = append(out, v)
			}
		}
		return out, b, err
	case msgp.MapType:
		n, b, err := msgp.ReadMapHeaderBytes(b)
		out := oraclePairs{}
		for range n {
			var pair [2]any
			for i := range pair {
				if err != nil {
					return nil, nil, err
				}
				pair[i], b, err = oracleValue(b)
			}
			out = append(out, pair)
		}
		return out, b, err
	case msgp.NilType:
		b, err = msgp.ReadNilBytes(b)
		return nil, b, err
	case msgp.StrType:
		return first3(msgp.ReadStringBytes(b))
	case msgp.BinType:
		return first3(msgp.ReadBytesBytes(b, nil))
	case msgp.BoolType:
		return first3(msgp.ReadBoolBytes(b))
	case msgp.IntType:
		if len(b) > 0 && b[0] >= uint8b && b[0] <= uint64b {
			return first3(msgp.ReadUint64Bytes(b))
		}
		return first3(msgp.ReadInt64Bytes(b))
	case msgp.UintType:
		return first3(msgp.ReadUint64Bytes(b))
	case msgp.Float32Type:
		f, b, err := msgp.ReadFloat32Bytes(b)
		return float64(f), b, err
	case msgp.Float64Type:
		return first3(msgp.ReadFloat64Bytes(b))
	default:
		rest, err = msgp.Skip(b)
		return struct{}{}, rest, err
	}
}

func first3[T any](v T, rest []byte, err error) (any, []byte, error) { return v, rest, err }

// oracleInt returns v's 64 bits.
func oracleInt(v any) (bits uint64, negative, ok bool) {
	switch v := v.(type) {
	case int64:
		return uint64(v), v < 0, true
	case uint64:
		return v, false, true
	}
	return 0, false, false
}

func oracleBetween(v any, most uint64) bool {
	n, negative, ok := oracleInt(v)
	return ok && !negative && n <= most
}

// oracleDecode returns a line for each event that counts and how many do not,
// by reason. ok is false when the payload is no batch.
func oracleDecode(payload []byte) (lines []string, drops Drops, ok bool) {
	v, rest, err := oracleValue(payload)
	top, isArray := v.([]any)
	if err != nil || len(rest) > 0 || !isArray || len(top) < 2 {
		return nil, drops, false
	}
	switch top[0].(type) {
	case float64, int64, uint64:
	default:
		return nil, drops, false
	}
	events, ok := top[1].([]any)
	if !ok {
		return nil, drops, false
	}
	rank := ""
	if len(top) > 2 && top[2] != nil {
		if !oracleBetween(top[2], math.MaxInt32) {
			return nil, drops, false
		}
		rank = fmt.Sprint(top[2])
	}
	lines = append(lines, "rank "+rank)
	for _, e := range events {
		line, reason := oracleEvent(e)
		if reason == NumReasons {
			lines = append(lines, line)
		} else {
			drops[reason]++
		}
	}
	return lines, drops, true
}

func oracleEvent(v any) (string, Reason) {
	var tag any
	fields := map[string]any{}
	var order []string
	switch v := v.(type) {
	case []any:
		if len(v) == 0 {
			return "", BadEvent
		}
		tag = v[0]
		names := map[any]string{
			"BlockStored":  "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx kv_cache_spec_kind kv_cache_spec_sliding_window",
			"BlockRemoved": "block_hashes medium group_idx",
		}
		if s, ok := tag.(string); ok {
			for i, name := range strings.Fields(names[s]) {
				if i+1 < len(v) {
					fields[name] = v[i+1]
					order = append(order, name)
				}
			}
		}
	case oraclePairs:
		for _, p := range v {
			name, ok := p[0].(string)
			if ok && name == "type" && tag == nil {
				if tag = p[1]; tag == nil {
					return "", BadEvent
				}
			}
		}
		if tag == nil {
			return "", BadEvent
		}
		return oraclePairsEvent(v, tag)
	default:
		return "", BadEvent
	}
	return oracleFields(tag, order, func(i int) any { return fields[order[i]] })
}

func oraclePairsEvent(v oraclePairs, tag any) (string, Reason) {
	known := map[any]string{
		"BlockStored": "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx " +
			"kv_cache_spec_kind kv_cache_spec_sliding_window locality ownership session_id cache_salt lookahead_token_ids",
		"BlockRemoved": "block_hashes medium group_idx locality ownership",
	}
	var order []string
	var values []any
	s, ok := tag.(string)
	for _, p := range v {
		name, isText := p[0].(string)
		if ok && isText && name != "" && strings.Contains(" "+known[s]+" ", " "+name+" ") {
			order, values = append(order, name), append(values, p[1])
		}
	}
	return oracleFields(tag, order, func(i int) any { return values[i] })
}

func oracleFields(tag any, order []string, value func(int) any) (string, Reason) {
	kind, ok := tag.(string)
	if !ok {
		return "", BadEvent
	}
	if kind != "BlockStored" && kind != "BlockRemoved" && kind != "AllBlocksCleared" {
		return "", UnknownEvent
	}
	texts := map[string]string{}
	for i, name := range order {
		text, reason := oracleField(name, value(i))
		if reason != NumReasons {
			return "", reason
		}
		texts[name] = text
	}
	for _, need := range map[string][]string{"BlockStored": {"block_hashes", "token_ids", "block_size"}, "BlockRemoved": {"block_hashes"}}[kind] {
		if _, ok := texts[need]; !ok {
			return "", MissingField
		}
	}
	count := func(name string) int { return strings.Count(texts[name], ";") }
	if texts["extra_keys"] != "" && count("extra_keys") != count("block_hashes") {
		return "", BadField
	}
	if texts["lookahead_token_ids"] != "" && count("lookahead_token_ids")-1 != count("block_hashes") {
		return "", BadField
	}
	out := kind
	for f := FieldHashes; f < numFields; f++ {
		if s := texts[f.String()]; s != "" {
			out += fmt.Sprintf(" %s=%s", f, s)
		}
	}
	return out, NumReasons
}

// oracleField returns a text for what the field says, "" for nothing.
func oracleField(name string, v any) (string, Reason) {
	hash := func(v any) (string, bool) {
		if b, ok := v.([]byte); ok {
			return fmt.Sprintf("%x", b), len(b) > 0
		}
		n, _, ok := oracleInt(v)
		return fmt.Sprint(n), ok
	}
	ints := func(v any) (string, bool) {
		items, ok := v.([]any)
		out := ""
		for _, x := range items {
			ok = ok && oracleBetween(x, math.MaxUint32)
			n, _, _ := oracleInt(x)
			out += fmt.Sprint(n, ",")
		}
		return out, ok
	}
	items, isArray := v.([]any)
	switch name {
	case "block_hashes":
		out, ok := "#", isArray
		for _, x := range items {
			s, good := hash(x)
			out, ok = out+s+";", ok && good
		}
		return verdict(out, ok, BadField)
	case "parent_block_hash":
		if v == nil {
			return "", NumReasons
		}
		s, ok := hash(v)
		return verdict(s, ok, BadField)
	case "token_ids":
		if isArray && len(items) > 0 {
			if _, nested := items[0].([]any); nested {
				out, ok := "", true
				for _, x := range items {
					s, good := ints(x)
					pair, _ := x.([]any)
					out, ok = out+"("+s+")", ok && good && len(pair) == 2
				}
				return verdict(out, ok, BadField)
			}
		}
		s, ok := ints(v)
		return verdict("#"+s, ok, BadField)
	case "lookahead_token_ids":
		if v == nil {
			return "", NumReasons
		}
		out, ok := ";", isArray
		for _, x := range items {
			s, good := ints(x)
			out, ok = out+s+";", ok && good
		}
		return verdict(out, ok, BadField)
	case "block_size":
		return verdict(fmt.Sprint(v), oracleBetween(v, math.MaxInt32), BadField)
	case "extra_keys":
		return oracleExtra(v)
	case "lora_id":
		n, negative, ok := oracleInt(v)
		if v == nil {
			return "", NumReasons
		}
		return verdict(fmt.Sprint(int64(n)), ok && (negative || n <= math.MaxInt64), BadField)
	case "group_idx", "kv_cache_spec_sliding_window":
		if v == nil {
			return "", NumReasons
		}
		return verdict(fmt.Sprint(v), oracleBetween(v, math.MaxInt32), BadField)
	}
	if v == nil {
		return "", NumReasons
	}
	s, ok := v.(string)
	ok = ok && utf8.ValidString(s)
	if name == "locality" {
		ok = ok && (s == "" || s == "LOCAL" || s == "REMOTE")
	}
	if name == "cache_salt" {
		s = "salt " + s
	}
	return verdict(s, ok, BadField)
}

func oracleExtra(v any) (string, Reason) {
	entries, ok := v.([]any)
	if v == nil || (ok && len(entries) == 0) {
		return "", NumReasons
	}
	out := ""
	text := func(v any) (string, bool) {
		s, ok := v.(string)
		return fmt.Sprintf("%x", s), ok && utf8.ValidString(s)
	}
	for _, entry := range entries {
		if entry != nil {
			list, isArray := entry.([]any)
			ok = ok && isArray
			for _, k := range list {
				switch k := k.(type) {
				case string:
					s, good := text(k)
					out, ok = out+"s"+s+",", ok && good
				case []byte:
					out += fmt.Sprintf("b%x,", k)
				case []any:
					if len(k) != 2 {
						return "", BadField
					}
					s, good := text(k[0])
					n, negative, isInt := oracleInt(k[1])
					ok = ok && good && isInt && (negative || n <= math.MaxInt64)
					out += fmt.Sprintf("i%s@%d,", s, int64(n))
				default:
					return "", BadField
				}
			}
		}
		out += ";"
	}
	return verdict(out, ok, BadField)
}

func verdict(s string, ok bool, reason Reason) (string, Reason) {
	if !ok {
		return "", reason
	}
	return s, NumReasons
}

// oracleLines writes a decoded batch as oracleDecode does.
func oracleLines(b *kv.Batch) []string {
	lines := []string{"rank "}
	if b.HasRank {
		lines[0] = fmt.Sprint("rank ", b.Rank)
	}
	for i := range b.Events {
		e := &b.Events[i]
		line := e.Kind.String()
		for f := FieldHashes; f < numFields; f++ {
			if s := oracleText(e, f); s != "" {
				line += fmt.Sprintf(" %s=%s", f, s)
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func oracleText(e *kv.Event, f Field) string {
	hash := func(h kv.EngineHash, digest []byte) string {
		if digest != nil {
			return fmt.Sprintf("%x", digest)
		}
		return fmt.Sprint(uint64(h))
	}
	ints := func(tokens []uint32) (s string) {
		for _, t := range tokens {
			s += fmt.Sprint(t, ",")
		}
		return s
	}
	if e.Kind == kv.KindCleared || (e.Kind == kv.KindRemoved && (f == FieldTokens || f == FieldBlockSize)) {
		return ""
	}
	s := ""
	switch f {
	case FieldHashes:
		s = "#"
		for i, h := range e.Hashes {
			var digest []byte
			if e.Digests != nil {
				digest = e.Digests[i]
			}
			s += hash(h, digest) + ";"
		}
	case FieldParent:
		if e.HasParent {
			s = hash(e.Parent, e.ParentDigest)
		}
	case FieldTokens:
		for i, t := range e.Tokens {
			if e.Second != nil {
				s += fmt.Sprintf("(%d,%d,)", t, e.Second[i])
			}
		}
		if e.Second == nil {
			s = "#" + ints(e.Tokens)
		}
	case FieldLookahead:
		if e.Lookahead != nil {
			s = ";"
			for _, list := range e.Lookahead {
				s += ints(list) + ";"
			}
		}
	case FieldExtraKeys:
		for _, keys := range e.Extra {
			for _, k := range keys {
				switch k.Kind {
				case kv.ExtraItem:
					s += fmt.Sprintf("i%x@%d,", k.ID, k.Offset)
				case kv.ExtraBytes:
					s += fmt.Sprintf("b%x,", k.ID)
				case kv.ExtraString:
					s += fmt.Sprintf("s%x,", k.ID)
				}
			}
			s += ";"
		}
	case FieldSalt:
		if e.HasSalt {
			s = "salt " + e.Salt
		}
	default:
		if v := fact(e, f); v != nil {
			s = fmt.Sprint(v)
		}
	}
	return s
}
