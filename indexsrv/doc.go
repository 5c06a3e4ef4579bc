// SPDX-License-Identifier: Apache-2.0

// Package indexsrv is the index host: engine event streams in, exact lookups
// out.
//
// # Terminology
//
// A stream is what one publisher, one (worker, rank), sends; the index holds it
// as one holder. A batch is one message of it, numbered by the publisher. A life
// of a publisher is an epoch: a restart begins another.
//
// # Layers
//
//	source    sockets: live messages, replay answers, connection events
//	stream    one stream's lock and its fence; drives the feed, keeps its state readable
//	Feed      admission, decoding, normalisation: no I/O, no clock, no goroutine
//	Writer    the one door to the index's mutating calls
//
// # Ordering
//
// Everything of one stream is applied under that stream's lock, in the
// publisher's order. Every mutating call of the index is made under the
// [Writer]'s lock. A lookup takes neither.
package indexsrv
