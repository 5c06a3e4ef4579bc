// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package asm

func expandSlotsAVX512(_ *uint32, _ int, _ *uint32, _, _ *uint64, _ int, _ uint32) int {
	panic(noAssembly)
}

func expandSlotsAVX2(_ *uint32, _ int, _ *uint32, _, _ *uint64, _ int, _ uint32, _ *[256]uint64) int {
	panic(noAssembly)
}
