// SPDX-License-Identifier: Apache-2.0

// Package asm holds the kernels of the index: the leaf loops that its time is
// spent in, with plain values and memory in and out.
//
// # Terminology
//
//   - A kernel is one function here. Its generic twin is the Go code in a file
//     named *_generic.go; a variant for one instruction set takes the same
//     arguments and gives the same results.
//   - The level is the set of instructions in use: avx512, avx2 or generic, see
//     [SetLevel].
//   - A dictionary is a table of lines of 64 bytes, see [DictTable].
//   - A run is one header line and the arrays behind it, see [ReadRun].
//
// # Rules
//
// Kernels know no type of ours: hashes are uint64. They neither allocate nor
// block and touch no memory but what they are given. Every kernel has its
// generic twin, always compiled, and each variant is tested against it. Kernels
// are called directly, so that arguments do not escape, and return within about
// 10 us: assembly cannot be preempted, and a stop of the world waits for it.
//
// # Files of a kernel
//
//	x.go          the exported function: its contract, and the branch on the level
//	x_generic.go  the twin
//	x_amd64.go    declarations of the variants, xAVX512 and xAVX2
//	x_amd64.s     the variants
//	x_noasm.go    the same names for builds without assembly, never called
//	x_test.go     its tests, under [kindex/asm/asmtest.ForEachLevel] with its name;
//	              TestMain fails for a declared variant that no test named
package asm
