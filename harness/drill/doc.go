// SPDX-License-Identifier: Apache-2.0

// Package drill breaks real programs on purpose and judges by a rule how they come
// through: a publisher that fails on command, a link that can be cut, the build's relay
// and index host as processes of their own, and subscribers that know no code of theirs.
//
// # How a drill judges
//
// The publisher knows its truth at every number (harness/publish). Subscribers of both
// contracts hold every state they pass through against it. The index host is asked for
// all of its content, with the cursor at which it holds, again and again: it is exact at
// a moment when each rank is active, stands at a batch that is no older than the fault's
// end, and holds the truth of that batch; times are to the arrival of that answer, the
// asking included. It must then stay so. At the end the publisher falls silent and
// everybody must hold its last word.
//
// A rule's times are of the programs, not of the machine's other work: what the kernel
// counts as ready to run and without a CPU, of them and of this program, is not counted
// (waits.go), up to [mostWaited] times the rule's own. Where the want of a CPU is the fault
// itself, lookups have no such allowance.
//
// # The index's drills
//
// Each has two index hosts follow one engine: one straight at its sockets, one behind a
// relay beside it. What a rule says is judged of both, and measured of each. While the
// fault is under way a watch reads each host's streams, its content and its streams
// again: a stream that is active before and behind must hold the truth of its cursor,
// of a life no older than one it has held; and every lookup must be answered in time. At
// the end each host must answer prompts by the truth. Two drills have a live engine
// (harness/mockworker/engine) in a process of its own, which can be killed and stopped;
// its truth is known where it is silent. A partition is a network namespace with a switch
// between (namespace.go): it takes root and ip.
//
// # The soak
//
// [Soak] runs windows of a minute: faults drawn from the seed and the window's number,
// under load, then silence, in which two index hosts must hold the truth of every engine
// and answer by it. One host runs from begin to end, so that its memory can be judged; one
// is killed at times, and where an engine's replay goes no longer back to the begin of its
// life it cannot know all: then it must not call itself exact, and the engine is restarted
// in the next window. The truth of a window's faults needs no window before it, so an
// interrupted series can be gone on with.
//
// # How to add a drill
//
// Write a function that takes an [Env], does what its name says, and returns the figure
// it measured; an error is a broken rule. Give it an entry in all, with the rule in words
// that an operator can hold the figure against: first the fault, which is also the drill's
// line in the list, then a colon and what is demanded. Names begin with what breaks:
// relay-, engine-, index-, gateway-.
package drill
