// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"encoding/hex"

	"kindex/harness/record"
	"kindex/internal/enginehash"
	"kindex/internal/kv"
)

// hasher computes vLLM's own hashes of a request's blocks (releases since 0.31). A
// model of window groups alone is the one place where the wire ties no tokens to
// hashes.
type hasher struct {
	none enginehash.Digest
	*enginehash.Hasher
}

// newHasher returns the hasher that a recording's header describes, or nil where
// it does not say enough.
func newHasher(h *record.Header) *hasher {
	a, err := enginehash.Parse(h.HashAlgo)
	if err != nil || a == enginehash.SGLang {
		return nil
	}
	none, err := hex.DecodeString(h.NoneHash)
	if err != nil || len(none) != a.Size() {
		return nil
	}
	out := &hasher{Hasher: enginehash.New(a)}
	copy(out.none[:], none)
	return out
}

// hashes returns the engine hashes of r's whole blocks over tokens.
func (h *hasher) hashes(r *request, tokens []uint32, size int) []kv.EngineHash {
	var out []kv.EngineHash
	above := h.none
	for i := range len(tokens) / size {
		b := enginehash.Block{Tokens: tokens[i*size : (i+1)*size]}
		if r.req.LoRA != nil {
			b.Keys = append(b.Keys, enginehash.Key{Kind: enginehash.KeyLoRA, Name: r.req.LoRA.Name, Path: r.req.LoRA.Path})
		}
		for _, k := range r.keys(i*size, size) {
			b.Keys = append(b.Keys, enginehash.Key{Kind: enginehash.KeyItem, Name: k.ID, Offset: k.Offset})
		}
		if i == 0 && r.req.Salt != "" {
			b.Keys = append(b.Keys, enginehash.Key{Kind: enginehash.KeySalt, Name: r.req.Salt})
		}
		above = h.Sum(&above, &b)
		out = append(out, h.Algorithm().Fold(&above))
	}
	return out
}
