// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"unicode/utf8"

	"kindex/internal/kv"
)

// MaxName bounds a name and an instance id, in bytes.
const MaxName = 512

// Check returns what is wrong with q, whoever is asked: ErrInvalid, with the name
// that the contracts have for the field.
func (q *Query) Check() error {
	switch {
	case q.Model == "":
		return Refuse(ErrInvalid, "model_name: must not be empty")
	case len(q.Tokens) > 0 && len(q.Hashes) > 0:
		return Refuse(ErrInvalid, "block_hashes: must be left out where token_ids is given")
	case q.Limit < 0 || q.Limit > MaxResults:
		return Refuse(ErrInvalid, "limit: must be an integer from 1 to %d, or 0 for all", MaxResults)
	case len(q.Only) > MaxInstances:
		return Refuse(ErrInvalid, "instances: must have at most %d ids", MaxInstances)
	}
	for i, s := range [...]string{q.Model, q.Group, q.Tenant, q.LoRA, q.Salt} {
		switch {
		case len(s) > MaxName:
			return Refuse(ErrInvalid, "%s: must be at most %d bytes", nameFields[i], MaxName)
		case !utf8.ValidString(s):
			return Refuse(ErrInvalid, "%s: must be valid UTF-8", nameFields[i])
		}
	}
	for _, id := range q.Only {
		switch {
		case len(id) > MaxName:
			return Refuse(ErrInvalid, "instances: each must be at most %d bytes", MaxName)
		case !utf8.ValidString(id):
			return Refuse(ErrInvalid, "instances: each must be valid UTF-8")
		}
	}
	for i, e := range q.Extra {
		if !kv.ValidExtraKeys(e) {
			return Refuse(ErrInvalid, "extra_keys[%d]: must be extra keys in their encoding, or empty", i)
		}
	}
	return nil
}

// Check returns what is wrong with f: ErrInvalid, with the name that the contracts
// have for the field.
func (f Filter) Check() error {
	for i, s := range [...]string{f.Model, f.Group, f.Tenant} {
		if !utf8.ValidString(s) {
			return Refuse(ErrInvalid, "%s: must be valid UTF-8", nameFields[i])
		}
	}
	return nil
}

// nameFields are the names of a query's texts.
var nameFields = [...]string{"model_name", "routing_group", "tenant_id", "lora_name", "cache_salt"}
