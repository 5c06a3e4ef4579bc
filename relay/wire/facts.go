// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"kindex/internal/kv"
)

// Disagreement compares a decoded batch with what the engine was asked to
// publish, one JSON object per event with the wire's field names and numbers as
// [json.Number]. It returns "" when they agree, else the first difference.
//
// A field that is null there must be absent here, a field that is not there at
// all as well. Integer hashes are equal when their 64 bits are; bytes are hex or
// base64 there, or the integer they fold to.
func Disagreement(b *kv.Batch, events []map[string]any) string {
	if len(b.Events) != len(events) {
		return fmt.Sprintf("%d events, want %d", len(b.Events), len(events))
	}
	for i, want := range events {
		if s := disagreement(&b.Events[i], want); s != "" {
			return fmt.Sprintf("event %d: %s", i, s)
		}
	}
	return ""
}

func disagreement(e *kv.Event, want map[string]any) string {
	if want["type"] != e.Kind.String() {
		return fmt.Sprintf("type %q, want %v", e.Kind, want["type"])
	}
	for name := range want {
		if f := fieldOf([]byte(name)); f == fieldNone {
			return fmt.Sprintf("a field %q that is unknown here", name)
		}
	}
	for f := FieldHashes; f < numFields; f++ {
		w, got := want[f.String()], fact(e, f)
		if w == nil && got == nil {
			continue
		}
		if !same(got, w) {
			return fmt.Sprintf("%s is %v, want %v", f, got, w)
		}
	}
	return ""
}

// fact returns what e says in field f as JSON would, with hashes as uint64 or
// their digests' bytes; nil when it says nothing.
func fact(e *kv.Event, f Field) any {
	switch f {
	case FieldHashes:
		if e.Kind == kv.KindCleared {
			return nil
		}
		out := make([]any, len(e.Hashes))
		for i, h := range e.Hashes {
			out[i] = uint64(h)
			if e.Digests != nil && e.Digests[i] != nil {
				out[i] = e.Digests[i]
			}
		}
		return out
	case FieldTokens:
		if e.Kind != kv.KindStored {
			return nil
		}
		out := make([]any, len(e.Tokens))
		for i, t := range e.Tokens {
			out[i] = int64(t)
			if e.Second != nil {
				out[i] = []any{int64(t), int64(e.Second[i])}
			}
		}
		return out
	case FieldBlockSize:
		if e.Kind != kv.KindStored {
			return nil
		}
		return int64(e.BlockSize)
	default:
	}
	if !has(e, f) {
		return nil
	}
	switch f {
	case FieldParent:
		if e.ParentDigest != nil {
			return e.ParentDigest
		}
		return uint64(e.Parent)
	case FieldLoRAID:
		return e.LoRAID
	case FieldGroup:
		return int64(e.Group)
	case FieldWindow:
		return int64(e.Window)
	case FieldExtraKeys:
		return extraFact(e.Extra)
	case FieldLookahead:
		out := make([]any, len(e.Lookahead))
		for i, list := range e.Lookahead {
			tokens := make([]any, len(list))
			for j, t := range list {
				tokens[j] = int64(t)
			}
			out[i] = tokens
		}
		return out
	default:
		return wordOf(e, f)
	}
}

func extraFact(lists [][]kv.ExtraKey) any {
	out := make([]any, len(lists))
	for i, keys := range lists {
		if len(keys) == 0 {
			continue
		}
		entry := make([]any, len(keys))
		for j, k := range keys {
			switch k.Kind {
			case kv.ExtraItem:
				entry[j] = []any{k.ID, k.Offset}
			case kv.ExtraBytes:
				entry[j] = []byte(k.ID)
			case kv.ExtraString:
				entry[j] = k.ID
			}
		}
		out[i] = entry
	}
	return out
}

// same compares a fact with a JSON value.
func same(got, want any) bool {
	switch g := got.(type) {
	case nil:
		return want == nil
	case string:
		return g == want
	case int64:
		n, ok := want.(json.Number)
		return ok && n.String() == strconv.FormatInt(g, 10)
	case uint64:
		n, ok := want.(json.Number)
		return ok && (n.String() == strconv.FormatUint(g, 10) || n.String() == strconv.FormatInt(int64(g), 10))
	case []byte:
		if n, ok := want.(json.Number); ok {
			return same(uint64(Fold(g)), n)
		}
		return want == hex.EncodeToString(g) || want == base64.StdEncoding.EncodeToString(g)
	case []any:
		w, ok := want.([]any)
		if !ok || len(w) != len(g) {
			return false
		}
		for i := range g {
			if !same(g[i], w[i]) {
				return false
			}
		}
		return true
	}
	return false
}

// loadFacts names the figures of a load reading as the engine's own snapshot
// does, in the wire's order.
var loadFacts = [...]string{
	"num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "dp_rank",
	"num_waiting_uncached_tokens", "num_total_tokens", "max_running_requests",
	"total_prefill_uncached_tokens", "total_prefill_busy_us",
}

// LoadDisagreement compares a load reading with the engine's own snapshot. It
// returns "" when each figure that was sent agrees, else the first that does not.
func LoadDisagreement(l *kv.Load, snapshot map[string]any) string {
	figures := loadFigures(l)
	for i, name := range loadFacts[:min(max(l.Fields, 0), len(loadFacts))] {
		if !same(*figures[i], snapshot[name]) {
			return fmt.Sprintf("%s is %d, want %v", name, *figures[i], snapshot[name])
		}
	}
	return ""
}
