// SPDX-License-Identifier: Apache-2.0

// Package feed admits one publisher's stream: every batch once, in the
// publisher's order, whatever the sockets did to it. It knows no index: what is
// admitted goes to a [Sink]. The index host and the relay use the same code.
//
// # Terminology
//
// A stream is what one publisher, one (worker, rank), sends. A batch is one
// message of it, numbered by the publisher. A life of a publisher is an epoch: a
// restart begins another. The cursor is the number of the last batch admitted. A
// gap is a run of numbers that were missing when a later one came; what nobody has
// any more is lost.
//
// # Layers
//
//	Source    sockets: live messages, replay answers, connection events
//	Stream    one stream's lock and its fence; drives the feed, keeps its state readable
//	Feed      admission: no I/O, no clock, no goroutine
//	Sink      what becomes of the batches
package feed
