// SPDX-License-Identifier: Apache-2.0

// Package cpu decides which variant of each kernel runs: the level.
//
// # Terminology
//
//   - A level is a set of instructions: avx512 (AVX-512 F, BW, DQ and VL on top
//     of avx2), avx2 (AVX2, BMI1, BMI2, LZCNT and POPCNT) or generic (plain Go).
//   - A level is had when this build has assembly and the machine and its
//     operating system can run it.
//
// The level is the best that is had, from before any package that imports this
// one is initialised, until [Set] says otherwise. Kernels read [AVX512] and
// [AVX2] by a branch around direct calls: a function variable would make their
// arguments escape.
//
// A build with the tag purego, with the race detector, which does not see
// assembly, or for another machine than amd64 has generic only.
package cpu
