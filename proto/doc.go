// SPDX-License-Identifier: Apache-2.0

// Package proto holds the contracts: each .proto with its generated code beside
// it. `make generate` makes the code again, with the tools that tools/ pins.
//
//   - kindex/v1: the index host's contract.
//   - kindex/relay/v1: the relay's own contract.
//   - peer/common, peer/vllm, peer/sglang: the contracts of the closest peer, written
//     here with its names and numbers so that either side may be the released one.
package proto

//go:generate go tool -modfile=../tools/buf/go.mod buf lint
//go:generate go tool -modfile=../tools/buf/go.mod buf generate
