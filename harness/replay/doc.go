// SPDX-License-Identifier: Apache-2.0

// Package replay applies a corpus to an index and measures it: block operations by
// thread CPU time, lookups one by one.
//
// # Terminology
//
//   - A [Target] is an index with a holder for each of a corpus's workers.
//   - A [Lanes] is the threads that apply events: each takes them, in order, from a
//     bounded queue of its own. A worker, and the shard it lives in, belong to one lane.
//   - The front is the thread that issues operations and looks up inline.
//   - Bare means without lanes: the measuring thread applies events itself.
//
// # Method
//
// Events, prompts and hashes are ready in flat arrays before timing starts. CPU time
// is that of the threads that worked, read on themselves; a lane's ends with its last
// event. Lookups write into a buffer of the caller's that is big enough; each is timed
// by the monotonic clock, and CPU time is taken in a pass of its own without clock
// reads. What the published indexes' tool calls write, lookup, contend, mixed and
// replay is the same here, operation by operation.
//
// A queue holds one pointer for each event and is published in batches; a front that
// finds [MaxWaiting] events waiting sleeps until half are done, a lane that finds none
// spins briefly and sleeps.
//
// # Ordering
//
//	queue slots     written by the front before tail (atomic), read by the lane after it
//	head            written by the lane after applying, read by the front
//	sleeping flags  set before the last look at the other's counter, so that no wake is lost
package replay
