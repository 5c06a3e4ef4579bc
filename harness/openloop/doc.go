// SPDX-License-Identifier: Apache-2.0

// Package openloop replays a trace of requests against an OpenAI endpoint, each at
// its time whatever the answers do, and scores what came back, beside what a fleet of
// mock engines says of itself.
//
// # Terminology
//
//   - A row is one request of a trace; rows are numbered in file order from 0.
//   - An id stands for [TokensPerID] tokens of a prompt in their prefix's context.
//     Equal ids give equal tokens, so equal leading ids give equal prefixes.
//   - A request is due at its row's time over the speedup; it is sent then, or late,
//     or dropped where too many are in flight. Nothing waits for an answer.
//   - Cached tokens are those of a prompt that the engine did not compute again.
//   - The oracle is what the fleet would have reused behind an ideal router: the mock
//     engine's own model, one a rank, run in virtual time before the first request is
//     sent. It depends on rows, due times, answers' lengths and the fleet's shape (its
//     engines, blocks and passes' times) alone, so two replays have the same. hit/oracle is
//     cached tokens over the oracle's.
//   - Prefix reuse is what one cache without bounds would have reused: of rows, their
//     order and the block size alone.
//   - Best at arrival is what the best worker held of a prompt when that arrived, as the
//     mock engines say: of what really was in their caches then, and so of the router and
//     of timing. It is this run's alone: the next one has another. A request that waits
//     may find more than there was when it arrived.
//
// # The way of a request
//
//	trace.go, csv.go     rows
//	pace.go              when each is due
//	reuse.go, oracle.go  what could be reused of it, before any is sent
//	prompt.go, body.go   its prompt and its body, made when it is due
//	client.go            sends it; stream.go reads the answer's events
//	record.go            what is kept of it
//	fleet.go             what the fleet says of it, joined by its id
//	summary.go           all of them; output.go, report.go, plot.go write that down
//
// # Time
//
// TTFT is from the moment a request is handed to the connection to the first event
// that carries text; ITL is every later gap between two such events. How late a request
// is sent is told apart: a replay whose own lateness is past its bound is marked
// invalid, since then it was no open loop.
//
// # Twice the same
//
// The seed and the rows settle every request's bytes, id and due time, prefix reuse and,
// with the fleet's shape, the oracle, so these are equal in every replay. Requests due at
// one instant are sent in their order. What engines find in their caches when one arrives
// depends on how far they are with those before it, and so on timing: what is cached, and
// best at arrival, differ by what that moves, unless requests are sent one by one.
package openloop
