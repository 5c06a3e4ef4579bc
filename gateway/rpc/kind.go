// SPDX-License-Identifier: Apache-2.0

// Before: a request of one contract. After: scan.go, which reads any of them.

package rpc

import (
	"kindex/gateway/fleet"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// kind is one engine's contract, as far as a gateway reads it. A number that is 0 is a
// field that the contract does not have.
// Source: the contracts in proto/peer.
type kind struct {
	engine  string // as fleet.Spec has it
	service string
	file    string // that describes it, for reflection

	// Of a GenerateRequest.
	generate request
	// Of an EmbedRequest.
	embed request

	answer answer // a GenerateResponse
	// Of an EmbedResponse.
	embedPrompt int32

	abortIDs int32 // of an AbortRequest
}

// request are the numbers of a request's fields.
type request struct {
	id, tokenized, stream, lora, rank int32
	params, n                         int32    // n of params
	ids                               int32    // of tokenized
	items                             [3]int32 // more than text: tokens alone do not say what is cached
	zeroFree                          bool     // a rank of 0 is none
}

// answer are the numbers of an answer's fields.
type answer struct {
	chunk, complete           int32
	chunkTokens               tokens
	completeTokens            tokens
	chunkIDs, completeIDs     int32
	chunkIndex, completeIndex int32
}

// tokens are the numbers of a part's counts.
type tokens struct{ prompt, completion, cached int32 }

var kinds = [...]*kind{
	{
		engine: fleet.VLLM, service: vllm.VllmEngine_ServiceDesc.ServiceName, file: "peer/vllm/vllm.proto",
		generate: request{id: 1, tokenized: 2, params: 4, stream: 5, items: [3]int32{7, 10, 11}, rank: 9, n: 15, ids: 2},
		embed:    request{id: 1, tokenized: 2, ids: 2},
		answer: answer{
			chunk: 1, complete: 2, chunkTokens: tokens{2, 3, 4}, completeTokens: tokens{3, 4, 5},
			chunkIDs: 1, completeIDs: 1, chunkIndex: 7, completeIndex: 8,
		},
		embedPrompt: 2, abortIDs: 1,
	},
	{
		engine: fleet.SGLang, service: sglang.SglangScheduler_ServiceDesc.ServiceName, file: "peer/sglang/sglang.proto",
		generate: request{id: 1, tokenized: 2, items: [3]int32{3, 14}, params: 4, lora: 15, rank: 16, stream: 17, n: 17, ids: 2},
		embed:    request{id: 1, tokenized: 2, items: [3]int32{4}, rank: 8, ids: 2, zeroFree: true},
		answer: answer{
			chunk: 2, complete: 3, chunkTokens: tokens{2, 3, 4}, completeTokens: tokens{3, 4, 5},
			chunkIDs: 1, completeIDs: 1, chunkIndex: 8, completeIndex: 11,
		},
		embedPrompt: 6, abortIDs: 1,
	},
}
