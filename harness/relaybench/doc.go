// SPDX-License-Identifier: Apache-2.0

// Package relaybench measures relays beside each other: ours, through the peer's
// contract and through our own, and the peer's released one. All get the same batches
// from a publisher of the same kind, one after the other, in rounds.
//
// # What is measured
//
//   - CPU of a batch: what the relay's threads used (the scheduler's count) while so many
//     batches went through it to one subscriber, over their number.
//   - Added latency: from the timestamp that the publisher puts into a batch to its
//     receipt by the subscriber. Both are in this process, on one clock.
//   - Snapshot: a second subscriber from nothing, the relay holding --state live blocks.
//     First chunk and whole, in wall time, and the relay's CPU meanwhile.
//   - Memory of a live block: resident bytes with the state, less those of the idle relay
//     before, over the blocks.
//
// Batches are measured beside histories of 10,000, both relays' default; the state beside
// histories of 100, so that memory is the state's and a subscriber from nothing gets a
// snapshot. Each of the two is a fresh process of every arm in every round.
package relaybench
