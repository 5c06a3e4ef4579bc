// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package asm

import "unsafe"

func prefetchRangeAVX2(_ unsafe.Pointer, _ int)      { panic(noAssembly) }
func prefetchLinesAVX2(unsafe.Pointer, *uint32, int) { panic(noAssembly) }
func pauseAVX2()                                     { panic(noAssembly) }
