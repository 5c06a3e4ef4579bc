// SPDX-License-Identifier: Apache-2.0

// Package sglang is the peer's contract of an SGLang engine, generated from
// sglang.proto.
package sglang
