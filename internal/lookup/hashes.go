// SPDX-License-Identifier: Apache-2.0

package lookup

import "kindex/internal/kv"

// DefaultName is the routing group, and the tenant, of those who name none.
const DefaultName = "default"

// AppendHashes appends the content hashes of q's whole blocks, extra keys folded in.
// blockSize is the model's, in tokens. It is how a client hashes that knows it.
func (q *Query) AppendHashes(dst []kv.ContentHash, blockSize int) ([]kv.ContentHash, error) {
	return AppendHashes(dst, kv.ContentSeed(q.LoRA, q.Salt), blockSize, q.Tokens, q.Hashes, q.Extra)
}

// AppendHashes is [Query.AppendHashes] of a query's parts, under the seed of its names.
// dst may be hashes, emptied.
func AppendHashes(dst []kv.ContentHash, seed uint64, blockSize int, tokens []uint32, hashes []kv.ContentHash, extra [][]byte) ([]kv.ContentHash, error) {
	if len(tokens) == 0 {
		if n := len(extra); n != 0 && n != len(hashes) {
			return dst, extraCount(len(hashes), n)
		}
		for i, h := range hashes {
			if len(extra) > 0 && len(extra[i]) > 0 {
				h = kv.HashExtra(seed, h, extra[i])
			}
			dst = append(dst, h)
		}
		return dst, nil
	}
	n := len(tokens) / blockSize
	b := kv.Blocks{Tokens: tokens[:n*blockSize], BlockSize: blockSize}
	if given := len(extra); given != 0 {
		if tail := len(tokens)%blockSize != 0; given != n && (!tail || given != n+1) {
			return dst, extraCount(n, given)
		}
		b.Extra = extra[:n]
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
		of = " of tenant " + string(AppendJSONString(nil, tenant))
	}
	return Refuse(ErrNotFound, "model_name: no worker is registered for model %q in routing group %q%s", model, group, of)
}
