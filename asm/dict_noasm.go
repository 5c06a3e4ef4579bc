// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package asm

func dictInsertAVX512(*DictTable, []uint64, uint32, []uint32) int {
	panic("BUG: asm: no assembly in this build")
}
func dictInsertAVX2(*DictTable, []uint64, uint32, []uint32) int {
	panic("BUG: asm: no assembly in this build")
}
func dictDeleteAVX512(*DictTable, []uint64, uint32) int { panic("BUG: asm: no assembly in this build") }
func dictDeleteAVX2(*DictTable, []uint64, uint32) int   { panic("BUG: asm: no assembly in this build") }
func dictProbeAVX512(*DictTable, []uint64, []uint32)    { panic("BUG: asm: no assembly in this build") }
func dictProbeAVX2(*DictTable, []uint64, []uint32)      { panic("BUG: asm: no assembly in this build") }
func dictPrefetchAVX2(*DictTable, []uint64)             { panic("BUG: asm: no assembly in this build") }
