// SPDX-License-Identifier: Apache-2.0

// Package rpc serves the engines' own gRPC contracts before a fleet of them, for
// callers that tokenise: a client of one engine is a client of all of its kind.
//
//	server.go    the services, their connections and their end
//	kind.go      what differs between the contracts: numbers of fields
//	scan.go      what routing needs of a message, without decoding the rest
//	call.go      one request: admitted, placed, tried, answered
//	try.go       one try of it on one worker
//	dial.go      connections to workers, one each
//	control.go   what is asked of a fleet as if it were one engine
//	loads.go     its load
//	codec.go     messages that pass through as they are
//
// Generate and Embed pass through undecoded in both directions: fields that this
// version does not know reach the other side. The request is read for its token ids,
// the answer for its counts of tokens. Only the rank is added to it, where the worker
// that was chosen has several.
//
// A request is tried again, on another worker, only where the first answered UNAVAILABLE
// or not at all and nothing of an answer reached the client. A client that goes away
// ends the call to the engine at once.
//
// What concerns one engine alone is not served: flushing caches, profiles, adapters,
// events of caches.
//
// # Concurrency
//
// Any goroutine.
package rpc
