// SPDX-License-Identifier: Apache-2.0

// Package numa is the one door to memory outside the Go heap: it reserves
// address space, makes it usable piece by piece, gives the kernel advice about
// it and accounts for its pages.
//
// # Terminology
//
//   - A [Region] is a stretch of address space. Its usable prefix grows and never
//     shrinks; the rest takes no memory and faults when touched. Memory within the
//     prefix may be given back and taken again.
//   - A [Block] is a piece of usable memory of fixed size, zeroed.
//   - Memory is taken when the kernel finds pages for address space; taking ahead is
//     doing so before somebody waits for it.
//   - Advice is what the kernel may do (huge pages); a refusal is never an error.
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
// # Not supported
//
// Giving address space of a Region back; memory shared between processes.
package numa
