// SPDX-License-Identifier: Apache-2.0

// Package lanes runs what workers have to do on few threads, each worker's jobs
// in order, and lets one at a time write a shard.
//
// # Terminology
//
//   - A [Worker] is the place of one stream: a bounded queue of jobs.
//   - A [Job] is a piece of a worker's work, a burst of its batches: prepared on a
//     lane, applied to the worker's shard.
//   - A lane is one goroutine. It runs one worker at a time; a worker is on one
//     lane at a time.
//   - A node is the lanes and the shards that belong together, as a rule those of
//     one memory node. Workers of a node run on its lanes only.
//   - A [Turn] is the right to write one shard. Whoever has it is the shard's one
//     writer.
//
// # How it works
//
//	Submit -> worker's queue -> lane's list of ready workers -> Prepare -> turn -> Apply
//	            (bounded)            ^         |                  ^          |
//	                                 |         +-> an idle lane   +----------+
//	                                 +-- more jobs    of the node steals it
//
// A worker with jobs is on the list of the lane that it last ran on. An idle lane
// takes a whole worker from the list of another lane of its node, never one that
// is running. So a worker's jobs, and the batches in them, are prepared and
// applied one after the other, whoever runs them: what a thief applies comes after
// what its victim applied.
//
// There is no writer's thread: the lane that prepared a batch takes the shard's
// turn and applies it, while it is in that core's cache. A lane that finds the
// turn taken puts the worker aside and prepares another's batch; it waits when
// [maxAside] workers are aside or nothing else is left to do. And who waits for its
// own job ([Worker.Do]) runs it in an idle lane's place, unless lanes are locked to
// threads. docs/adr/0010-lanes.md says why.
//
// # Rules
//
//   - Nothing is dropped: who submits to a full queue waits, or is told so.
//   - A job that panics ends its worker, with an error for all who submit to it or
//     wait for it, and nobody else.
//   - Lanes never wait for whoever submits. A job must not wait for a worker of
//     its pool, nor take a turn in Apply.
package lanes
