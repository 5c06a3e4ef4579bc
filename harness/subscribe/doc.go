// SPDX-License-Identifier: Apache-2.0

// Package subscribe is a relay's subscriber for drills and soaks, of the peer's contract
// and of our own: written from the contracts alone, with no code of the relay or of its
// client, so that it can contradict them. Behind every batch and every snapshot it holds
// what it has against the publisher's truth.
//
// It reconnects by itself, as fast as a link can heal, with the cursor that its contract
// gives it:
//
//   - The peer's has one cursor, rank 0's. OUT_OF_RANGE and DATA_LOSS empty all ranks and
//     lead to a subscription from 0 at once. Other ranks of a resumed stream come as
//     snapshots.
//   - Ours has one a rank, with epoch and check. Whatever a cursor does not give comes in
//     the stream.
package subscribe
