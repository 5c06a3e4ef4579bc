// SPDX-License-Identifier: Apache-2.0

// Package mockworker stands in for an engine: it plays a recording of one over
// real ZMQ sockets, a PUB and a replay ROUTER for each rank, as that engine's
// release frames its messages. Told to be an engine instead, it is a small live
// one: package engine, below.
//
// # Time
//
// Messages are published as far apart as they were recorded, divided by the
// speed; long silences are cut. Each batch's timestamp is set to the moment it
// is published, everything else is the engine's own bytes.
//
// # Loops
//
// Each time through the recording is a life of its own: the engine starts with
// an empty cache and an empty replay buffer and counts from 0 again, as a
// restarted process does on the same port. What a recording says was published
// before it began is in the replay buffer when the life begins.
//
// # Reports
//
// With a report writer, every request of the recording is told in a line of JSON
// when it is sent, and the engine's own number of cached tokens when it is
// answered. With a gate the player waits, at the start and after each request, for
// a line: so that somebody may ask an index first and compare.
package mockworker
