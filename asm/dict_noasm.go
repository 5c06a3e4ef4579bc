// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package asm

func dictInsertAVX512(*DictTable, []uint64, uint32, []uint32) int {
	panic(noAssembly)
}
func dictInsertAVX2(*DictTable, []uint64, uint32, []uint32) int {
	panic(noAssembly)
}
func dictDeleteAVX512(*DictTable, []uint64, uint32) int { panic(noAssembly) }
func dictDeleteAVX2(*DictTable, []uint64, uint32) int   { panic(noAssembly) }
func dictProbeAVX512(*DictTable, []uint64, []uint32)    { panic(noAssembly) }
func dictProbeAVX2(*DictTable, []uint64, []uint32)      { panic(noAssembly) }
func dictPrefetchAVX2(*DictTable, []uint64)             { panic(noAssembly) }
