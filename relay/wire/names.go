// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"unicode/utf8"

	"kindex/internal/kv"
)

// Field is one field of an event, by its name on the wire.
type Field uint8

// The fields of all releases.
const (
	fieldNone Field = iota
	fieldType
	FieldHashes
	FieldParent
	FieldTokens
	FieldBlockSize
	FieldLoRAID
	FieldMedium
	FieldLoRAName
	FieldExtraKeys
	FieldGroup
	FieldSpec
	FieldWindow
	FieldLocality
	FieldOwnership
	FieldSession
	FieldSalt
	FieldLookahead
	numFields
)

var fieldNames = [numFields]string{
	fieldType:      "type",
	FieldHashes:    "block_hashes",
	FieldParent:    "parent_block_hash",
	FieldTokens:    "token_ids",
	FieldBlockSize: "block_size",
	FieldLoRAID:    "lora_id",
	FieldMedium:    "medium",
	FieldLoRAName:  "lora_name",
	FieldExtraKeys: "extra_keys",
	FieldGroup:     "group_idx",
	FieldSpec:      "kv_cache_spec_kind",
	FieldWindow:    "kv_cache_spec_sliding_window",
	FieldLocality:  "locality",
	FieldOwnership: "ownership",
	FieldSession:   "session_id",
	FieldSalt:      "cache_salt",
	FieldLookahead: "lookahead_token_ids",
}

// String returns the field's name on the wire.
func (f Field) String() string {
	if f < numFields {
		return fieldNames[f]
	}
	return ""
}

// fieldOf returns the field of a name, fieldNone for one that is not ours.
func fieldOf(name []byte) Field {
	switch string(name) {
	case "type":
		return fieldType
	case "block_hashes":
		return FieldHashes
	case "parent_block_hash":
		return FieldParent
	case "token_ids":
		return FieldTokens
	case "block_size":
		return FieldBlockSize
	case "lora_id":
		return FieldLoRAID
	case "medium":
		return FieldMedium
	case "lora_name":
		return FieldLoRAName
	case "extra_keys":
		return FieldExtraKeys
	case "group_idx":
		return FieldGroup
	case "kv_cache_spec_kind":
		return FieldSpec
	case "kv_cache_spec_sliding_window":
		return FieldWindow
	case "locality":
		return FieldLocality
	case "ownership":
		return FieldOwnership
	case "session_id":
		return FieldSession
	case "cache_salt":
		return FieldSalt
	case "lookahead_token_ids":
		return FieldLookahead
	}
	return fieldNone
}

// fieldSet has bit f set for each [Field] f in it.
type fieldSet uint32

func setOf(fields ...Field) (s fieldSet) {
	for _, f := range fields {
		s |= 1 << f
	}
	return s
}

// positions is the order of the array form's fields after the tag. Every
// release's order is a prefix of it, except TokenSpeed's, which just ends
// earlier.
var positions = [...][]Field{
	kv.KindStored: {
		FieldHashes, FieldParent, FieldTokens, FieldBlockSize, FieldLoRAID, FieldMedium,
		FieldLoRAName, FieldExtraKeys, FieldGroup, FieldSpec, FieldWindow,
	},
	kv.KindRemoved: {FieldHashes, FieldMedium, FieldGroup},
	kv.KindCleared: {},
}

// accepts is the set of the map form's fields; another kind's field is as
// unknown as any other.
var accepts = [...]fieldSet{
	kv.KindStored:  (1<<numFields - 1) &^ setOf(fieldNone, fieldType),
	kv.KindRemoved: setOf(FieldHashes, FieldMedium, FieldGroup, FieldLocality, FieldOwnership),
	kv.KindCleared: 0,
}

// required is what every release sends. A parent that is not there is as good
// as nil.
var required = [...]fieldSet{
	kv.KindStored:  setOf(FieldHashes, FieldTokens, FieldBlockSize),
	kv.KindRemoved: setOf(FieldHashes),
	kv.KindCleared: 0,
}

// TierOf returns the tier that a medium's name means, case as on the wire.
func TierOf(medium string) kv.Tier {
	switch medium {
	case "", "GPU":
		return kv.TierDevice
	case "CPU", "CPU_PINNED":
		return kv.TierHost
	case "DISK", "STORAGE":
		return kv.TierDisk
	case "EXTERNAL":
		return kv.TierRemote
	}
	return kv.TierUnknown
}

// SpecOf returns the attention kind that a cache group's kind means.
// Source: vllm/v1/kv_cache_interface.py, KVCacheSpecKind.
func SpecOf(name string) kv.SpecKind {
	switch name {
	case "":
		return kv.SpecUnstated
	case "full_attention", "mla_attention", "sink_full_attention":
		return kv.SpecFull
	case "sliding_window", "sliding_window_mla":
		return kv.SpecWindow
	}
	return kv.SpecOther
}

// Limits of what an interner keeps.
const (
	internEntries = 1 << 9
	internBytes   = 256
)

// interner gives equal bytes the same string, so that names which come again
// with every event are allocated once. It forgets everything when full.
type interner struct{ known map[string]string }

// name returns b as a string, and false when it is no UTF-8.
func (t *interner) name(b []byte) (string, bool) {
	if s, ok := t.known[string(b)]; ok {
		return s, true
	}
	if !utf8.Valid(b) {
		return "", false
	}
	s := string(b)
	if len(b) <= internBytes {
		if t.known == nil {
			t.known = make(map[string]string)
		}
		if len(t.known) >= internEntries {
			clear(t.known)
		}
		t.known[s] = s
	}
	return s, true
}
