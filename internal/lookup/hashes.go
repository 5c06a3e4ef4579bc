// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"bytes"
	"encoding/json"

	"kindex/internal/kv"
)

// DefaultName is the routing group, and the tenant, of those who name none.
const DefaultName = "default"

// AppendHashes appends the content hashes of q's whole blocks, extra keys folded in.
// blockSize is the model's, in tokens. It is how a client hashes that knows it.
func (q *Query) AppendHashes(dst []kv.ContentHash, blockSize int) ([]kv.ContentHash, error) {
	seed := kv.ContentSeed(q.LoRA, q.Salt)
	if q.Tokens == nil {
		if n := len(q.Extra); n != 0 && n != len(q.Hashes) {
			return dst, extraCount(len(q.Hashes), n)
		}
		for i, h := range q.Hashes {
			if len(q.Extra) > 0 && len(q.Extra[i]) > 0 {
				h = kv.HashExtra(seed, h, q.Extra[i])
			}
			dst = append(dst, h)
		}
		return dst, nil
	}
	n := len(q.Tokens) / blockSize
	b := kv.Blocks{Tokens: q.Tokens[:n*blockSize], BlockSize: blockSize}
	if given := len(q.Extra); given != 0 {
		if tail := len(q.Tokens)%blockSize != 0; given != n && (!tail || given != n+1) {
			return dst, extraCount(n, given)
		}
		b.Extra = q.Extra[:n]
	}
	return b.AppendHashes(dst, seed), nil
}

func extraCount(want, got int) error {
	return Refuse(ErrInvalid, "extra_keys: must have one entry per block, %d, and has %d", want, got)
}

// NoModel is what a host says that has no workers of a model.
func NoModel(tenant, model, group string) error {
	of := ""
	if tenant != DefaultName {
		of = " of tenant " + quoted(tenant)
	}
	return Refuse(ErrNotFound, "model_name: no worker is registered for model %q in routing group %q%s", model, group, of)
}

// quoted returns s as JSON has it.
func quoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return s // a string can always be encoded
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
