// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"

	"kindex/harness/record"
)

// FuzzFile gives verify recordings that no recorder made: whatever reads as one
// is judged, and the index under test is never at fault.
func FuzzFile(f *testing.F) {
	for _, name := range []string{"vllm032_prompt_embeds", "vllm032_restart", "sglang0523_load_pub", "vllm032_hybrid_gemma3_retention96", "sglang0523_dp2_page16"} {
		in, err := os.Open("../testdata/fixtures/given/" + name + ".jsonl.gz")
		if err != nil {
			f.Fatal(err)
		}
		z, err := gzip.NewReader(in)
		if err != nil {
			f.Fatal(err)
		}
		b, err := io.ReadAll(io.LimitReader(z, 6_000))
		if err != nil {
			f.Fatal(err)
		}
		_ = in.Close()
		f.Add(b[:bytes.LastIndexByte(b, '\n')])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 20_000 {
			return
		}
		rec, err := record.Parse("x", bytes.NewReader(b))
		if err != nil {
			return
		}
		r, err := File(rec, Options{Index: "chain"})
		if err != nil {
			t.Fatal(err)
		}
		if r.Mismatches > 0 {
			t.Errorf("%d mismatches: %v", r.Mismatches, r.Faults)
		}
	})
}
