// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package asm

// noAssembly is said by variants that this build does not have: the branches that
// call them are constant and not compiled.
const noAssembly = "BUG: asm: a variant was called in a build without assembly"

func matchForwardAVX512(_, _ *uint64, _ int) int { panic(noAssembly) }
func matchForwardAVX2(_, _ *uint64, _ int) int   { panic(noAssembly) }
func matchReverseAVX512(_, _ *uint64, _ int) int { panic(noAssembly) }
func matchReverseAVX2(_, _ *uint64, _ int) int   { panic(noAssembly) }
