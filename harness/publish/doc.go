// SPDX-License-Identifier: Apache-2.0

// Package publish is an engine's event stream that can be told to fail: real ZMQ
// sockets, a replay buffer with a bound, a cache whose content is known at every
// number, and faults on command.
//
// # Terminology
//
//   - A life is the time between two restarts of a publisher. Each numbers its batches
//     from 0.
//   - The truth is what the batches of one life, in order and without any missing, make
//     of an empty rank, by the index's rules: [Content]. It is recorded at every number.
//   - A batch that is dropped stays off the wire and in the replay buffer. One that is
//     delayed is sent later, in order.
//
// # A restart with the cache kept
//
// An engine that keeps its blocks over a restart of its publisher begins at number 0 and
// does not tell again what it holds. Nobody can know those blocks: the truth of the new
// life is what was announced since. Blocks stored below an untold one are orphans until
// it is stored in this life; removals of untold blocks cost nothing.
//
// # Not supported
//
// Placeholders, block sizes that change, blocks whose namespace is not in the event:
// recordings of real engines have those, see harness/verify.
package publish
