// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// FuzzScan holds the scanner against the generated contracts: what these can read it
// reads, and finds the same in it.
func FuzzScan(f *testing.F) {
	rank := int32(3)
	a, _ := proto.Marshal(&vllm.GenerateRequest{
		RequestId: "a", Stream: true, DataParallelRank: &rank, SamplingParams: &vllm.SamplingParams{N: 2},
		Input: &vllm.GenerateRequest_Tokenized{Tokenized: &vllm.TokenizedInput{InputIds: []uint32{1, 200, 1 << 31}}},
	})
	b, _ := proto.Marshal(&sglang.GenerateRequest{
		RequestId: "b", LoraId: "l", Tokenized: &sglang.TokenizedInput{InputIds: []uint32{7, 1 << 20}}, SamplingParams: &sglang.SamplingParams{N: 3},
	})
	f.Add(a)
	f.Add(b)
	f.Add([]byte{0x12, 0x02, 0x10, 0x05, 0x12, 0x02, 0x10, 0x06}) // tokens one by one, in two parts
	f.Add(withRank(a, 9, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		var got asked
		var v vllm.GenerateRequest
		if proto.Unmarshal(b, &v) == nil && v.GetText() == "" {
			if err := got.scan(b, &kinds[0].generate); err != nil {
				t.Fatalf("the contract reads it, the scan does not: %v", err)
			}
			if !slices.Equal(got.tokens, v.GetTokenized().GetInputIds()) || got.id != v.GetRequestId() || got.stream != v.GetStream() {
				t.Errorf("scanned %+v of %v", got, &v)
			}
			if r := v.DataParallelRank; r != nil && *r >= 0 && *r <= maxRank && got.rank != int(*r) {
				t.Errorf("rank %d, want %d", got.rank, *r)
			}
		}
		var s sglang.GenerateRequest
		if proto.Unmarshal(b, &s) == nil {
			if err := got.scan(b, &kinds[1].generate); err != nil {
				t.Fatalf("the contract reads it, the scan does not: %v", err)
			}
			if !slices.Equal(got.tokens, s.GetTokenized().GetInputIds()) || got.id != s.GetRequestId() || got.lora != s.GetLoraId() {
				t.Errorf("scanned %+v of %v", got, &s)
			}
		}
		var n counted
		n.scan(b, &kinds[0].answer)
		n.scan(b, &kinds[1].answer)
	})
}

func TestScanAnswers(t *testing.T) {
	for i, m := range []proto.Message{
		&vllm.GenerateResponse{Response: &vllm.GenerateResponse_Chunk{Chunk: &vllm.GenerateStreamChunk{TokenIds: []uint32{5}, PromptTokens: 10, CompletionTokens: 3, CachedTokens: 8, Index: 1}}},
		&vllm.GenerateResponse{Response: &vllm.GenerateResponse_Complete{Complete: &vllm.GenerateComplete{OutputIds: []uint32{5}, PromptTokens: 10, CompletionTokens: 3, CachedTokens: 8, Index: 1}}},
		&sglang.GenerateResponse{Response: &sglang.GenerateResponse_Chunk{Chunk: &sglang.GenerateStreamChunk{TokenIds: []uint32{5}, PromptTokens: 10, CompletionTokens: 3, CachedTokens: 8, Index: 1}}},
		&sglang.GenerateResponse{Response: &sglang.GenerateResponse_Complete{Complete: &sglang.GenerateComplete{OutputIds: []uint32{5}, PromptTokens: 10, CompletionTokens: 3, CachedTokens: 8, Index: 1}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var n counted
		n.scan(b, &kinds[i/2].answer)
		if want := (counted{part: i%2 == 0, whole: i%2 == 1, output: true, index: 1, prompt: 10, completion: 3, cached: 8}); n != want {
			t.Errorf("message %d: %+v, want %+v", i, n, want)
		}
	}
}
