// SPDX-License-Identifier: Apache-2.0

// Package compare says whether two indexes answer alike, and how much of them
// it compared to say so. It is how an index is held against the reference: in
// the proofs of package shard, and wherever recorded streams are replayed.
//
// A [Side] is one index or several whose answers are united (one per shard). A
// [Comparer] holds one or more sides against the one that is right, is told
// which holder of one is which of the other, and then compares
//
//   - content: every position with every copy of it (engine hash, tier, group,
//     count), and the holes above held positions ([Comparer.Holder]),
//   - counts: HolderStats and Stats, and the content digest,
//   - lookups: all holders' depths in all tiers, for a chain as it is, its first
//     half, its middle block replaced, its tail replaced and extended
//     ([Comparer.Chain]).
//
// The first difference comes back as an error that wraps [ErrDiffers] and names
// the holder, the chain and both answers. Nothing here writes to an index, but a
// comparison counts as a writer's call: no other may run at the same time.
package compare
