// SPDX-License-Identifier: Apache-2.0

// Package enginehash computes the engines' own hashes of cached blocks, as
// released engines do.
//
// # vLLM
//
// A block's digest is that of the tuple (digest above, tokens, extra keys),
// written by Python's pickle or as canonical CBOR, and digested by SHA-256 or
// XXH3-128. The first block's digest above is the digest of a seed text. The wire
// shows the last eight bytes, unless it shows all. What the extra keys look like
// has changed: see [KeyKind].
//
// Pickle writes an object that it has written before as a reference, by identity
// and not by value. Two items of one block with equal identifiers therefore hash
// in two ways, and which one depends on how the engine came by the request:
// [Block.Shared] chooses.
//
// # SGLang
//
// A page's digest is SHA-256 over the digest above and the tokens, where the first
// page has nothing above it, or the digest of its salt. The wire shows the first
// eight bytes, for some namespaces hashed again: see [Namespace].
//
// # Not supported
//
// Python's salted hash() (vLLM before 0.10.2) and its hash of tuples (SGLang before
// 0.5.6), pickles beyond one frame (64 KiB: blocks of more than 13,000 tokens).
//
// # Concurrency
//
// A [Hasher] belongs to one goroutine. Functions may be called from any.
package enginehash
