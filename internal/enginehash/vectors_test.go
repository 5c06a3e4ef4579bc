// SPDX-License-Identifier: Apache-2.0

package enginehash

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"kindex/internal/kv"
)

type item struct {
	ID     string `json:"id"`
	Offset int    `json:"offset"`
	Length int    `json:"length"`
}

type lora struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

type vllmVector struct {
	Name        string   `json:"name"`
	Algo        string   `json:"algo"`
	Seed        string   `json:"none_hash_seed"`
	NoneHash    string   `json:"none_hash"`
	BlockSize   int      `json:"block_size"`
	Tokens      []uint32 `json:"token_ids"`
	Salt        string   `json:"cache_salt"`
	LoRA        *lora    `json:"lora"`
	MM          []item   `json:"mm"`
	BlockHashes []string `json:"block_hashes"`
	Wire        []uint64 `json:"wire_uint64"`
	Hashed      []string `json:"hashed_bytes_first_blocks"`
}

type sglangVector struct {
	Name     string   `json:"name"`
	PageSize int      `json:"page_size"`
	Bigram   bool     `json:"is_eagle_bigram"`
	Tokens   []uint32 `json:"token_ids"`
	Salt     *string  `json:"cache_salt"`
	ExtraKey *string  `json:"extra_key"`
	LoRA     *lora    `json:"lora"`
	Format   string   `json:"format"`
	Plain    []string `json:"sha256_chain_no_namespace"`
	Wire     []int64  `json:"wire_int64"`
}

func vectors(t testing.TB) (v struct {
	VLLM   []vllmVector   `json:"vllm"`
	SGLang []sglangVector `json:"sglang"`
},
) {
	raw, err := os.ReadFile("../../harness/testdata/fixtures/given/hash_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.VLLM) != 62 || len(v.SGLang) != 19 {
		t.Fatalf("%d and %d vectors, want 62 and 19", len(v.VLLM), len(v.SGLang))
	}
	return v
}

// keys returns the extra keys of block i as vLLM 0.31 and later hash them.
func (v *vllmVector) keys(i int) []Key {
	var out []Key
	if v.LoRA != nil {
		out = append(out, Key{Kind: KeyLoRA, Name: v.LoRA.Name, Path: v.LoRA.Path})
	}
	from, to := i*v.BlockSize, (i+1)*v.BlockSize
	for _, m := range v.MM {
		if m.Offset < to && m.Offset+m.Length > from {
			out = append(out, Key{Kind: KeyItem, Name: m.ID, Offset: int64(m.Offset - from)})
		}
	}
	if i == 0 && v.Salt != "" {
		out = append(out, Key{Kind: KeySalt, Name: v.Salt})
	}
	return out
}

// TestVLLMVectors compares with digests, and the bytes digested, of the engine's
// own functions.
func TestVLLMVectors(t *testing.T) {
	for _, v := range vectors(t).VLLM {
		a, err := Parse(v.Algo)
		if err != nil || a.String() != v.Algo {
			t.Fatal(err)
		}
		h := New(a)
		above := a.None(v.Seed)
		if got := hex.EncodeToString(above[:a.Size()]); got != v.NoneHash {
			t.Errorf("%s %s: seed %q has the digest %s, want %s", v.Name, v.Algo, v.Seed, got, v.NoneHash)
		}
		if n := len(v.Tokens) / v.BlockSize; n != len(v.BlockHashes) {
			t.Fatalf("%s %s: %d blocks, want %d", v.Name, v.Algo, n, len(v.BlockHashes))
		}
		for i := range v.BlockHashes {
			b := Block{Tokens: v.Tokens[i*v.BlockSize : (i+1)*v.BlockSize], Keys: v.keys(i)}
			if i < len(v.Hashed) {
				if got := hex.EncodeToString(h.Bytes(&above, &b)); got != v.Hashed[i] {
					t.Errorf("%s %s: block %d is written as\n%s, want\n%s", v.Name, v.Algo, i, got, v.Hashed[i])
				}
			}
			above = h.Sum(&above, &b)
			if got := hex.EncodeToString(above[:a.Size()]); got != v.BlockHashes[i] || uint64(a.Fold(&above)) != v.Wire[i] {
				t.Errorf("%s %s: block %d is %s, want %s", v.Name, v.Algo, i, got, v.BlockHashes[i])
				break
			}
		}
	}
}

// TestSGLangVectors is TestVLLMVectors for SGLang, namespaces included.
func TestSGLangVectors(t *testing.T) {
	h := New(SGLang)
	for _, v := range vectors(t).SGLang {
		tokens, second := v.Tokens, []uint32(nil)
		if v.Bigram {
			tokens, second = v.Tokens[:len(v.Tokens)-1], v.Tokens[1:]
		}
		chain := func(above *Digest, each func(i int, d *Digest)) {
			for i := range len(tokens) / v.PageSize {
				b := Block{Tokens: tokens[i*v.PageSize : (i+1)*v.PageSize]}
				if second != nil {
					b.Second = second[i*v.PageSize : (i+1)*v.PageSize]
				}
				d := h.Sum(above, &b)
				each(i, &d)
				above = &d
			}
		}
		n := 0
		chain(nil, func(i int, d *Digest) {
			if got := hex.EncodeToString(d[:]); got != v.Plain[i] {
				t.Errorf("%s: page %d is %s, want %s", v.Name, i, got, v.Plain[i])
			}
			n++
		})
		if n != len(v.Wire) {
			t.Errorf("%s: %d pages, want %d", v.Name, n, len(v.Wire))
		}
		var root *Digest
		if v.Salt != nil {
			root = SaltRoot(*v.Salt)
		}
		chain(root, func(i int, d *Digest) {
			got := SGLang.Fold(d)
			switch {
			case v.Format == "dynamo" && (v.Salt != nil || v.ExtraKey != nil):
				ns := MakeNamespace(v.ExtraKey, v.Salt)
				got = ns.Hide(got)
			case v.LoRA != nil:
				ns := MakeNamespace(v.ExtraKey, nil)
				got = ns.Hide(got)
			}
			if got != kv.EngineHash(v.Wire[i]) {
				t.Errorf("%s: page %d is published as %d, want %d", v.Name, i, got, uint64(v.Wire[i]))
			}
		})
	}
}
