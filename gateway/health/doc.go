// SPDX-License-Identifier: Apache-2.0

// Package health tells who of a gateway's workers is alive, and who is better passed
// over.
//
// # States and vetoes
//
// A worker's state is what probes say: pending until enough pass in a row, ready until
// enough fail in a row, and back only by as many passes, whatever else speaks for it.
// Only a ready one is given requests, so that a state is changed by what is certain.
// Vetoes are what is likely: they steer requests to others, and refuse none. They come
// and go within a sweep.
//
//	unreachable   a connection failed, and nothing has come from it for the stall time.
//	              Any sign of life ends it
//	wedged        it holds requests and none moves, or does not answer a probe, for the
//	              wedge time or as long as its prefill may take. A token ends it, or
//	              that nothing is left to wait for
//	stale         it told its load, and has not for the stale time
//	breaker_open  too many faults in a row; lifted for a trial after a while
//	overloaded    full by its own word, in its newest load report or in an answer
//
// Back-pressure (429, 503) is neither a fault nor a success. Nothing here edits what a
// worker carries.
//
// # Probes
//
// Each probe is a connection of its own, so that it says whether others can be made. A
// worker that is well is asked once in an interval. One that is not, or that somebody
// could not connect to, is asked several times a second, in every state and for as long
// as it is registered. A probe without an answer is not given up for its whole timeout,
// since a busy engine may be slow; beside it others are tried, whose good news counts
// and whose bad news does not: what comes back is found at once. While answers move, a
// probe without one does not count against the worker; its own word that it does not
// serve counts always.
//
// # Goroutines
//
// One for all workers, and one for each probe that is under way.
package health
