// SPDX-License-Identifier: Apache-2.0

// Package lookupbench measures one question on every way into an index, beside the
// field's own indexer: in process, over shared memory, over gRPC and over HTTP.
//
// # What is measured
//
// A seeded fleet of publishers announces a million memberships, once, to all hosts: one
// in this process, two programs of ours (one for shared memory whose thread spins on a
// core of its own, one for everything else) and Dynamo's indexer. Every host is held
// against the content before anything is timed. Then, in rounds, each arm in a fresh
// order:
//
//   - Round trip: of single questions by the asking goroutine's monotonic clock. One
//     read of that clock is within it.
//   - CPU of a lookup, of this process and of the host's apart: what their threads used
//     (the scheduler's count) over the questions answered meanwhile.
//   - Others: CPUs that neither this process nor its children kept busy. A trial with
//     too much of it is thrown away, counted and taken again.
//   - Every answer is held against the content. Of structs that is within the CPU of
//     this process (some tens of nanoseconds), and not within the round trip; replies
//     over HTTP are kept and read after the trial.
//
// Bodies of HTTP questions are made before, and the hashes of all others: what a question
// costs to write is in no figure, whoever is asked.
//
// The arm word is no lookup: a word sent to another core and back, which bounds what any
// answer from there can take. An arm again, the control, says what the machine alone does.
package lookupbench
