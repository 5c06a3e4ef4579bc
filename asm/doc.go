// SPDX-License-Identifier: Apache-2.0

// Package asm holds the kernels of the index: the leaf loops that its time is
// spent in, with plain values and memory in and out.
//
// # Terminology
//
//   - A kernel is one function here. Its generic twin is the Go code in a file
//     named *_generic.go; a variant for one instruction set takes the same
//     arguments and gives the same results.
//   - A dictionary is a table of lines of 64 bytes, see [DictLine].
//   - A run is one header line and the arrays behind it, see [ReadRun].
//
// # Rules
//
// Kernels know no type of ours: hashes are uint64. They neither allocate nor
// block and touch no memory but what they are given. Every kernel has its
// generic twin, always compiled, and each variant is tested against it. Kernels
// are called directly, so that arguments do not escape.
//
// # Not supported
//
// Instruction set variants are not written yet: every kernel is its twin.
package asm
