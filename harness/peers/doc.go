// SPDX-License-Identifier: Apache-2.0

// Package peers builds and runs index-peers, a Rust program of ours around released
// crates that replays a corpus into the published prefix indexes: Dynamo's and SMG's.
//
// The sources are within this program (index-peers/). [Build] unpacks them into the
// cache folder and has cargo build them, once for each version of the sources; the
// crates and their versions are pinned in Cargo.lock and told with every result. No
// code of a peer is copied here.
//
// # How the figures are made comparable
//
//   - A block operation is one block looked up, stored or removed; events, prompts and
//     hashes are built before timing, in the crate's own types.
//   - CPU figures are thread CPU clocks. The last of two runs in one fresh process is
//     taken, so that a peer does not pay for the first touch of its memory.
//   - All indexes allocate through mimalloc.
//   - A lookup timed is the crate's find_matches, result map included. SMG also has
//     score_into, which builds no map: cpu_ns_per_lookup_no_result_map.
package peers
