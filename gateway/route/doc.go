// SPDX-License-Identifier: Apache-2.0

// Package route says which holder a request goes to, and hears what became of it.
//
// A [Router] joins the parts that each know one thing: the registry who serves a
// model, a resolver the prompt's tokens, an index who holds how much of them, the
// overlay what the index cannot know yet, a policy what that is worth against load.
// [Router.Place] asks them in this order and takes a lease; the [Placement] it returns
// is told of each step of the answer, and its [Placement.Done] gives the lease back and
// tells everybody how it ended.
//
// # Who does what
//
//	place.go      pool, prompt, index, overlay, policy, lease
//	request.go    what is asked; the memory that a request needs, used again
//	match.go      an index's answer as holders of a pool
//	placement.go  what became of it: lease, health, accuracy
//	counters.go   how often each way was taken
//
// # Concurrency
//
// Any goroutine may call a Router. No lock is held over two steps of a decision, and
// none by two requests longer than a few words of memory take. A [Request] belongs to
// one goroutine; of a Placement, Done may come from any, the first counts.
package route
