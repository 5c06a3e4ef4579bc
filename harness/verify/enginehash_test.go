// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"kindex/harness/record"
)

// TestEngineHashes compares the hasher with the engine's own functions.
func TestEngineHashes(t *testing.T) {
	raw, err := os.ReadFile("../testdata/fixtures/given/hash_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		VLLM []struct {
			Name        string          `json:"name"`
			Algo        string          `json:"algo"`
			NoneHash    string          `json:"none_hash"`
			BlockSize   int             `json:"block_size"`
			Tokens      []uint32        `json:"token_ids"`
			Salt        string          `json:"cache_salt"`
			LoRA        *record.LoRA    `json:"lora"`
			MM          []record.MMItem `json:"mm"`
			BlockHashes []string        `json:"block_hashes"`
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
		got := h.digests(r, c.Tokens, c.BlockSize)
		if len(got) != len(c.BlockHashes) {
			t.Fatalf("%s %s: %d blocks, want %d", c.Name, c.Algo, len(got), len(c.BlockHashes))
		}
		for i := range got {
			if s := hex.EncodeToString(got[i]); s != c.BlockHashes[i] {
				t.Errorf("%s %s: block %d is %s, want %s", c.Name, c.Algo, i, s, c.BlockHashes[i])
				break
			}
		}
	}
}
