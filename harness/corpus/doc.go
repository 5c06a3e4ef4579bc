// SPDX-License-Identifier: Apache-2.0

// Package corpus reads, writes and makes corpora: files that hold one complete,
// ordered stream of lookups, stored and removed blocks for a fleet of workers,
// from which every index derives the same hashes.
//
// # Terminology
//
//   - A node is one block in its prefix context. Nodes form a prefix tree, are
//     numbered in order of first appearance, and so come after their parents.
//   - A content says what a block's tokens are. Two nodes of one content are the
//     same block under different prefixes.
//   - An operation is a lookup, a stored event, a removed event or a clear, with
//     a deadline in billionths of the replay window.
//   - A block operation is one block looked up, stored or removed.
//
// # Format KVCORP01
//
// One zstd frame. Inside, little-endian: the 8 bytes KVCORP01; a uint32 length and
// so many bytes of JSON, the header; then sections until the end, each a 4-byte
// tag, a uint64 length and so many bytes.
//
//	NPAR  per node a uvarint d: 0 for a first block, else the parent is d nodes before
//	NCON  per node a varint: its content minus that of the node before it
//	OPKD  per operation a byte: 0 lookup, 1 stored, 2 removed, 3 clear
//	OPTS  per operation a uvarint: its deadline minus that of the one before it
//	OPWK  per operation a uvarint: its worker
//	OPAR  per operation, by kind:
//	      lookup  uvarint v: 0 for a prompt shorter than one block, else its last node + 1
//	      stored   uvarint last, uvarint n: the n blocks of the path that ends at node last
//	      removed  uvarint n, n varints: nodes, each minus the one before it in the list
//	      clear    nothing
//
// # Hashes
//
// A node's content hash is splitmix64 of its content. Its engine hash is that of a
// first block itself, else XXH3-64 with seed 1337 over the parent's engine hash and
// its own content hash, as Dynamo's indexers recompute it.
//
// # Rule SIM1
//
// [Simulate] turns a request trace into a corpus without any engine's code: see
// sim.go. The result depends on nothing but its arguments, so that a port in another
// language can be held against this one section by section.
//
// # Limits
//
// [Read] refuses, with one line, whatever is not exactly this format or is past
// [MaxBytes], [MaxBlockOps] or [MaxWorkers]; it allocates in proportion to what the
// file really holds.
package corpus
