// SPDX-License-Identifier: Apache-2.0

// Package engine is a small live engine: it answers requests over the gRPC
// contract of a real one, keeps a prefix cache as that one does, and publishes
// the cache's events over real sockets in that one's own layout.
//
// # Parts
//
//	front_*.go, admin.go   requests in, answers out
//	engine.go              the ranks of one engine; who gets a request
//	rank.go                one rank's passes: admit, compute, publish, answer
//	cache.go, pool.go      one rank's prefix cache: values in, events out
//	publisher.go           sequence, replay buffer, PUB and ROUTER
//
// Each part knows only the one below. The cache knows no clock, no socket and no
// goroutine, so that the same requests in the same order give the same events.
//
// # What is as in the real engine, and what is not
//
// Block hashes, batches, framings, replay, the pool of physical blocks with its
// reference counts, the least recently used chain losing its tail first, a
// removal for each physical copy, the last block of a fully cached prompt
// computed anew, the clear that is published with the next pass only: as there.
// The tokens of an answer are drawn from a seed; a pass costs a fixed time. A
// request is admitted only when all that it may need is free, so that nothing is
// ever preempted; a prompt is computed in one pass.
package engine
