// SPDX-License-Identifier: Apache-2.0

// Package vllm is the peer's contract of a vLLM engine, generated from vllm.proto.
package vllm
