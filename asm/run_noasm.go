// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package asm

import "unsafe"

func readRunAVX512(_, _ *uint64, _ int, _ *[RunHeaderWords]uint64) (match int, ok bool) {
	panic(noAssembly)
}

func readRunAVX2(_, _ *uint64, _ int, _ *[RunHeaderWords]uint64) (match int, ok bool) {
	panic(noAssembly)
}

func readRunAndAVX512(_, _ *uint64, _ int, _ *RunRead, _ unsafe.Pointer, _, _ *uint64, _ int) (match int, all, ok bool) {
	panic(noAssembly)
}

func readRunAndAVX2(_, _ *uint64, _ int, _ *RunRead, _ unsafe.Pointer, _, _ *uint64, _ int) (match int, all, ok bool) {
	panic(noAssembly)
}
