// SPDX-License-Identifier: Apache-2.0

// Package frames measures the way from an engine's frames into the index as an index
// host goes it, on one lane and on more.
//
// # Workload
//
// Every stream is one engine's: vLLM's frames of 16-token blocks, made by package bench.
// A goroutine for each stream hands over bursts of messages and waits for each, as the
// host's sockets do ([lanes.Worker.Do] with an [feed.Burst]); lanes decode,
// normalise, hash and apply. Frames lie ready before anything is timed.
//
// # What is shown
//
//	decode  frames to events
//	hash    tokens to content hashes
//	copies  what else preparing a burst takes: admission, normalising, copying into the
//	        flat batch that is applied
//	apply   the index, counting of copies included
//	queue   what lanes add: CPU time of the whole process less all of the above
//
// All but queue are measured on one thread by its own CPU clock, over the same bursts in
// the same order, in the same process: decoding; decoding and hashing; preparing;
// preparing and applying. Each is the least of some rounds, each with a fresh index;
// all but the first are differences, so that what is small may come out below
// nothing. Throughput is by the wall clock, and means something only while nobody else
// has the CPUs: the ratio of two lanes to one says when it is void.
package frames
