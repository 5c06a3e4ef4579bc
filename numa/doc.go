// SPDX-License-Identifier: Apache-2.0

// Package numa is the one door to the machine's memory nodes: it says what nodes
// there are, pins threads to them, and keeps memory outside the Go heap, on a node
// where that is asked for.
//
// # Terminology
//
//   - A node is a part of the machine's memory, the CPUs near it, or both; its
//     number may be any. [Topology] is what this process may use of them all.
//   - A workplace is a node with CPUs. Its home is the node whose memory serves it.
//     The host of memory is the node whose CPUs work on it. For most nodes both are
//     the node itself.
//   - A [Placement] is where memory should lie, [Placed] what became of that, an
//     [Account] the sum over all memory with one placement.
//   - A [Region] is a stretch of address space. Its usable prefix grows and never
//     shrinks; the rest takes no memory and faults when touched. Memory within the
//     prefix may be given back and taken again.
//   - A [Block] is a piece of usable memory of fixed size, zeroed.
//   - Memory is taken when the kernel finds pages for address space; taking ahead is
//     doing so before somebody waits for it.
//   - Advice is what the kernel may do (huge pages); a refusal is never an error.
//
// # How memory comes to lie on a node
//
//	map -> advise huge -> bind -> [node has room?] -> take -> prefer -> look
//	                                 | no
//	                                 +-> prefer, from here on -> take -> look
//
// Policy comes before the first touch: afterwards it moves nothing. Memory is bound
// only while it is taken, after a look at what the node has free above the kernel's
// watermarks: bound memory that is touched on a full node ends the process, and what
// was given back is touched again without anybody looking. Bound it is taken all the
// same, since a preferred huge page goes elsewhere as soon as the node has only small
// ones. Each huge page is looked up once after it was taken.
//
// Where the kernel may not be told (a container that forbids it), memory lies near
// the thread that touches it first, and the owner's thread takes it. What was asked
// for and is not so is never an error: [Placed] has one line about it.
//
// # Rules
//
// Memory of this package holds no Go pointers: the garbage collector does not
// look at it. Offsets are kept instead, and addresses are derived where they
// are used. On systems other than Linux, and under the race detector, which is
// blind to such memory, a Block is Go heap and a Region cannot be had.
//
// A Region takes memory on a goroutine of its own, which lives while there is some
// to take and is waited for by Release: 2 MiB cost 0.1 to 0.3 ms to zero, and up to
// 5 ms where a host has to find them for a virtual machine first.
//
// A thread is pinned only while its goroutine is locked to it; [LockAndPin] does both
// in the one order that keeps the mask from spreading.
//
// # Not supported
//
// Giving address space of a Region back; memory shared between processes; reserved
// huge pages (hugetlb); placing the Go heap, but for all of a process ([ReexecOn]).
package numa
