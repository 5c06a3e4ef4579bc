// SPDX-License-Identifier: Apache-2.0

// Package gatewaybench measures what gateways cost and add, side by side: ours, the
// released peer, a bare proxy that knows nothing, and no gateway at all.
//
// # Terminology
//
//   - A target is where requests go: a gateway with its settings, the bare proxy, or,
//     under [Direct], the first worker itself.
//   - A worker gives fixed answers at once. What it takes is no part of the gateway's
//     CPU, and is in every target's latency.
//   - A cell is a kind of request and a number of connections. In a round every target
//     is put through every cell; the targets of one cell follow one another, beginning
//     with another one in each cell and round, so that what else the machine does meets
//     all of them.
//   - Added latency is a target's median less the direct one's of the same round and cell.
//
// # Where things run
//
// With [PinSplit] every gateway has the first CPU to itself, as only one is asked at a
// time, and workers and client share the second. A gateway's CPU time is the scheduler's
// count over all its threads and children while requests were counted, over those.
//
// # Rounds
//
// Each round starts all programs afresh, one after the other, and times each from its
// start to the first 200 of its readiness; then it leaves them alone and reads resident
// memory and CPU at idle; then the cells; then resident memory again.
//
// Every answer is held against the worker's, byte for byte, stream or not. One that
// differs ends the measurement with an error.
package gatewaybench
