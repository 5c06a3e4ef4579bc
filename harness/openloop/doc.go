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
//   - The trace's reuse is what a single endless cache could have reused: it depends
//     on nothing but rows, their order and the block size.
//   - The model oracle is what a single cache as large as the whole fleet's could have
//     reused: of the trace and the fleet's size alone, so two replays have the same.
//   - The fleet's oracle is what the best worker could have reused when a request
//     arrived, as the mock engines say: it knows what really was in their caches then,
//     and so depends on the router and on timing. A request that waits may find more than
//     there was when it arrived.
//
// # The way of a request
//
//	trace.go, csv.go   rows
//	pace.go            when each is due
//	prompt.go, body.go its prompt and its body, made when it is due
//	client.go          sends it; stream.go reads the answer's events
//	record.go          what is kept of it
//	fleet.go           what the fleet says of it, joined by its id
//	summary.go         all of them; output.go, report.go, plot.go write that down
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
// The seed and the rows settle every request's bytes, id and due time, the trace's reuse
// and the model oracle, so these are equal in every replay. Requests due at one instant
// are sent in their order. What engines find in their caches when one arrives depends on
// how far they are with those before it, and so on timing: the fleet's oracle differs by
// what that moves, unless requests are sent one by one.
package openloop
