// SPDX-License-Identifier: Apache-2.0

// Package hashcheck holds an engine's block hashes against the tokens that its
// events name: it computes each stored block's hash again, as the engine should
// have, and counts what differs.
//
// # What can be checked
//
// A block's hash is made from the full digest of the block above it, of which most
// wires show eight bytes. So a chain can be checked from its first block on, as
// long as every digest was computed here; the digests are kept, newest first, up
// to a limit. Where the wire shows full digests, every block can be checked.
//
// What cannot be checked is counted by [Reason] and is no mismatch: blocks whose
// parent was not seen; blocks of adapters, into whose hashes goes a path or an id
// that no event names; window groups, which name hashes without saying whose
// tokens they are; old releases, which do not announce salts and images.
// Copies in lower tiers repeat what the device was told, and are passed over.
//
// # Warnings
//
// What differs is explained once: another seed, another algorithm (which, by
// trying all), the adapters, or what else fits. The counters go on.
//
// # Cost
//
// A quarter of a microsecond a block of 16 tokens, most of it SHA-256, and no
// allocation. All blocks are checked, up to 100,000 in a second of one stream; what
// comes beyond that within a second is skipped, and counted as such, and so are the
// blocks below it for as long as their parent is not stored again (they count as
// blocks without a parent).
//
// Memory: 40 bytes and a map's overhead for each of at most 262,144 digests, some
// 20 MB a stream.
package hashcheck
