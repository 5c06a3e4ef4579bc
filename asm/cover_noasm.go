// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package asm

func andWordsAVX512(_, _ *uint64, _ int, _ *uint64, _ int) (all bool) { panic(noAssembly) }
func andWordsAVX2(_, _ *uint64, _ int, _ *uint64, _ int) (all bool)   { panic(noAssembly) }

func listBitsAVX512(_ *uint64, _ int, _ *uint64, _ int, _ uint64, _ *[256]uint64) int {
	panic(noAssembly)
}

func listBitsAVX2(_ *uint64, _ int, _ *uint64, _ int, _ uint64, _ *[256]uint64) int {
	panic(noAssembly)
}
