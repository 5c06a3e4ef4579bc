// SPDX-License-Identifier: Apache-2.0

package asm

import "kindex/asm/internal/cpu"

// LevelAuto names the best level that this build and this machine have.
const LevelAuto = cpu.Auto

// Level returns the name of the set of instructions in use: avx512, avx2 or
// generic. At start it is the best that this build and this machine have.
func Level() string { return cpu.Level() }

// SetLevel makes the level name: avx512, avx2, generic, or auto for the best there
// is.
//
// Concurrency: before anything else of the index runs; kernels read the level
// without synchronisation.
// Errors: one line that names what the machine or the build lacks and the names
// that are right here; the level is then unchanged.
func SetLevel(name string) error { return cpu.Set(name) }

// CheckLevel returns the error that [SetLevel] would, and changes nothing.
func CheckLevel(name string) error { return cpu.Check(name) }
