// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"kindex/harness/record"
	"kindex/internal/kv"
)

// TestEngineHashes compares the hashes of requests with the engine's own.
func TestEngineHashes(t *testing.T) {
	raw, err := os.ReadFile("../testdata/fixtures/given/hash_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		VLLM []struct {
			Name      string          `json:"name"`
			Algo      string          `json:"algo"`
			NoneHash  string          `json:"none_hash"`
			BlockSize int             `json:"block_size"`
			Tokens    []uint32        `json:"token_ids"`
			Salt      string          `json:"cache_salt"`
			LoRA      *record.LoRA    `json:"lora"`
			MM        []record.MMItem `json:"mm"`
			Wire      []kv.EngineHash `json:"wire_uint64"`
		} `json:"vllm"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.VLLM) < 60 {
		t.Fatalf("%d vectors, want all", len(v.VLLM))
	}
	for _, c := range v.VLLM {
		h := newHasher(&record.Header{HashAlgo: c.Algo, NoneHash: c.NoneHash})
		if h == nil {
			t.Fatalf("%s %s: no hasher", c.Name, c.Algo)
		}
		r := &request{req: &record.Req{Salt: c.Salt, LoRA: c.LoRA, MM: c.MM}}
		if got := h.hashes(r, c.Tokens, c.BlockSize); !slices.Equal(got, c.Wire) {
			t.Errorf("%s %s: %d, want %d", c.Name, c.Algo, got, c.Wire)
		}
	}
	for _, h := range []record.Header{{}, {HashAlgo: "sha256"}, {HashAlgo: "sha256", NoneHash: "00"}, {HashAlgo: "sglang", NoneHash: "00"}} {
		if newHasher(&h) != nil {
			t.Errorf("a hasher for %q and %q", h.HashAlgo, h.NoneHash)
		}
	}
}
