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
//	relay/feed  sockets and admission: each batch once, in the publisher's order
//	relayed     in its place where a relay has admitted the batches
//	stream      one stream's place on the lanes; its state, readable without a lock
//	indexSink   decoding, normalisation; a batch's operations into the holder
//	Writer      the one door to the index's mutating calls
//
// # Ordering
//
// Everything of one stream is applied under that stream's lock, in the
// publisher's order. Every mutating call of the index is made under the
// [Writer]'s lock. A lookup takes neither.
package indexsrv
